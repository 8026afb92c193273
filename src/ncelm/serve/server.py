"""Start and stop the HTTP server."""

import gc
import ipaddress
import resource
import socket
import sys
from contextlib import suppress
from typing import Any

import uvicorn

from ncelm.errors import NcelmError
from ncelm.serve.app import Options, create_app
from ncelm.serve.service import Service

KEEP_ALIVE = 20  # seconds after which an idle connection is closed
DRAIN = 30  # seconds that running requests have after SIGTERM


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def serve(service: Service, options: Options, host: str, port: int) -> None:
    """Answer requests until SIGTERM or Ctrl-C; then finish those that are running."""
    if not is_loopback(host) and options.token is None:
        raise NcelmError(f"other machines can reach {host}: give a `token`, or use `host` 127.0.0.1")
    listening = _listen(host, port)
    _raise_limit()
    app: Any = create_app(service, options)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=DRAIN, lifespan="off", date_header=False, limit_concurrency=None,
    )  # fmt: skip
    with service:
        service.warm_up()
        gc.collect()
        gc.freeze()  # models and libraries stay: the garbage collector need not visit them again
        app.state.ready = True
        name = f"[{host}]" if ":" in host else host
        print(f"ncelm: http://{name}:{listening.getsockname()[1]}/ (Ctrl-C to stop)", file=sys.stderr, flush=True)
        uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(2048)
    except OSError as error:
        raise NcelmError(
            f"cannot listen on {host}, port {port} ({error.strerror or error}): give another `port`"
        ) from None
    return listening


def _raise_limit() -> None:
    """Allow as many open connections as the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))
