"""Start and stop the HTTP server."""

import asyncio
import gc
import ipaddress
import resource
import socket
import sys
from contextlib import suppress
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ncelm.errors import NcelmError
from ncelm.serve.app import Options, create_app
from ncelm.serve.service import Service

KEEP_ALIVE = 20  # seconds after which an idle connection is closed
DRAIN = 30  # seconds that running requests have after SIGTERM
HEAD_SECONDS = 10.0  # until the head of a request has arrived, and the rest of a body that is not read
HEAD_BYTES = 1 << 16  # request line and headers


class Protocol(HttpToolsProtocol):
    """HTTP/1.1 of uvicorn, with limits that it lacks: the time and the size of the head of a request.

    Without them, a client could hold a connection open for ever, or fill the memory with one header.
    """

    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0  # that have arrived of a head that is not complete
    _in_head = False
    _too_large = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Wait for the first request."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse data. A head that is too long is refused before it is complete."""
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._refuse("431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        """Wait for the head of the request."""
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self._start_timer()

    def on_headers_complete(self) -> None:
        """Start the request, unless its head is too long."""
        self._in_head = False
        self._stop_timer()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > HEAD_BYTES:
            self._too_large = True
            raise ValueError("the head is too long")  # the parser stops; uvicorn sends a response
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Wait for the rest of a body that was not read: until then, there is no next request."""
        super().on_response_complete()
        if self.cycle.response_complete and self.cycle.more_body and not self.transport.is_closing():
            self._start_timer()

    def send_400_response(self, msg: str) -> None:
        """Send an error, and close the connection."""
        if self._too_large:
            self._refuse("431 Request Header Fields Too Large")
        else:
            super().send_400_response(msg)

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(HEAD_SECONDS, self._too_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self) -> None:
        if self._in_head:
            self._refuse("408 Request Timeout")
        else:
            self.transport.close()

    def _refuse(self, status: str) -> None:
        """Send an error without content, and close the connection."""
        if not self.transport.is_closing():
            self.transport.write(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())
            self.transport.close()


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
        http=Protocol,
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
