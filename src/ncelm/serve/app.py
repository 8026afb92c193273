"""The HTTP interface: routes, limits, errors, token, access log."""

import asyncio
import hmac
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ncelm import __version__
from ncelm.errors import NcelmError
from ncelm.io.files import parse_json
from ncelm.serve.completions import (
    COMPLETIONS,
    DETOKENIZE,
    TOKENIZE,
    complete_openai,
    describe_models,
    describe_tokenizer,
    detokenize,
    stream_openai,
    tokenize,
)
from ncelm.serve.fields import Endpoint, Field, RequestError, openapi, read_fields
from ncelm.serve.metrics import Metrics
from ncelm.serve.service import Service, endpoints

STATIC = {
    "index.html": "text/html; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "uPlot.iife.min.js": "text/javascript; charset=utf-8",
    "uPlot.min.css": "text/css; charset=utf-8",
}
OPEN_PATHS = {"/", "/healthz", "/readyz", *(f"/static/{name}" for name in STATIC)}  # need no token
SECURITY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Options:
    """Options of the service that concern HTTP."""

    token: str | None = None
    allowed_hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]")
    cors_origins: tuple[str, ...] = ()
    access_log: bool = True


def create_app(service: Service, options: Options | None = None) -> ASGIApp:
    """Return the application."""
    options = options or Options()
    metrics, described = Metrics(), endpoints(service.limits)
    state = _State(service, metrics)
    answers: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {
        "/score": service.score,
        "/perplexity": service.perplexity,
        "/next-words": service.next_words,
        "/generate": service.generate,
        "/complete": service.complete,
        "/neighbors": service.neighbors,
    }
    routes = [Route(path, state.json_endpoint(described[path], answer), methods=["POST"])
              for path, answer in answers.items()]  # fmt: skip
    plain = [
        Endpoint("/models", "The models", method="GET"),
        Endpoint("/models/{name}/run", "Training curves and settings of a model", method="GET"),
        Endpoint("/models/{name}/map", "Frequent words in two dimensions", method="GET"),
        Endpoint("/models/{name}/log-z", "Histogram of log Z on held-out text", method="GET"),
        Endpoint("/healthz", "Whether the process answers", method="GET"),
        Endpoint("/readyz", "Whether the models are loaded and compiled", method="GET"),
        Endpoint("/metrics", "Counters for Prometheus", method="GET"),
        Endpoint("/v1/models", "The models, as OpenAI lists them", method="GET"),
        Endpoint("/v1/completions", "Completions, as OpenAI has them", COMPLETIONS),
        Endpoint("/tokenizer_info", "The special words, as vLLM returns them", method="GET"),
        Endpoint("/tokenize", "The ids of the words of a text, as vLLM returns them", TOKENIZE),
        Endpoint("/detokenize", "The words with these ids, as vLLM returns them", DETOKENIZE),
    ]
    document = openapi([*described.values(), *plain], __version__)

    async def models(request: Request) -> Response:
        return JSONResponse({"models": service.describe()})

    async def run_page(request: Request) -> Response:
        return JSONResponse(await state.limited(service.run_data(request.path_params["name"])))

    async def word_map(request: Request) -> Response:
        return JSONResponse(await state.limited(service.word_map(request.path_params["name"])))

    async def log_z(request: Request) -> Response:
        return JSONResponse(await state.limited(service.log_z(request.path_params["name"])))

    async def ready(request: Request) -> Response:
        return PlainTextResponse("ready\n") if state.ready else PlainTextResponse("loading\n", 503)

    async def show_metrics(request: Request) -> Response:
        batcher = service.batcher
        text = metrics.text(batcher.batches, batcher.jobs, len(batcher.waiting))
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    routes += [
        Route("/", _static("index.html")),
        *(Route(f"/static/{name}", _static(name)) for name in STATIC),
        Route("/models", models),
        Route("/models/{name}/run", run_page),
        Route("/models/{name}/map", word_map),
        Route("/models/{name}/log-z", log_z),
        Route("/healthz", lambda request: PlainTextResponse("ok\n")),
        Route("/readyz", ready),
        Route("/metrics", show_metrics),
        Route("/openapi.json", lambda request: JSONResponse(document)),
        Route("/v1/models", lambda request: JSONResponse(describe_models(service))),
        Route("/v1/completions", state.openai_endpoint, methods=["POST"]),
        Route("/tokenizer_info", lambda request: JSONResponse(describe_tokenizer(service))),
        Route("/tokenize", state.lenient_endpoint(TOKENIZE, tokenize), methods=["POST"]),
        Route("/detokenize", state.lenient_endpoint(DETOKENIZE, detokenize), methods=["POST"]),
    ]
    middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=list(options.allowed_hosts), www_redirect=False)]
    if options.cors_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(options.cors_origins),
                allow_methods=["GET", "POST"],
                allow_headers=["authorization", "content-type"],
            )
        )
    app = Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={
            404: _not_found,
            405: _wrong_method,
            RequestError: _request_error,
            NcelmError: _ncelm_error,
            Exception: _internal_error,
        },
    )
    app.router.redirect_slashes = False  # /score/ is an error, not a redirect
    paths = {route.path for route in routes}
    guarded = _Guard(app, metrics, options, paths)
    guarded.state = state
    return guarded


# -- requests --------------------------------------------------------------------------------------------------------


class _State:
    """What the handlers of requests share."""

    def __init__(self, service: Service, metrics: Metrics) -> None:
        self.service, self.metrics, self.ready = service, metrics, False

    def json_endpoint(
        self, endpoint: Endpoint, answer: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler of an endpoint."""

        async def handle(request: Request) -> Response:
            values = read_fields(endpoint.fields, await self.read_json(request))
            if values.get("stream"):
                lines = self.service.stream(values)
                return StreamingResponse(await _started(lines, _json_line), media_type="application/x-ndjson")
            result = await self.limited(answer(values))
            self.metrics.words += sum(each.get("tokens", 0) for each in result.get("results", ()))
            return JSONResponse(result)

        return handle

    def lenient_endpoint(
        self, fields: tuple[Field, ...], answer: Callable[[Service, dict[str, Any]], dict[str, Any]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler of an endpoint of another program's interface, which may have fields that are not used."""

        async def handle(request: Request) -> Response:
            values = read_fields(fields, await self.read_json(request), ignore_others=True)
            (found,) = await self.limited(
                self.service.batcher.run(None, lambda _: [answer(self.service, values)], [None], 1)
            )
            return JSONResponse(found)

        return handle

    async def openai_endpoint(self, request: Request) -> Response:
        """Answer a request of OpenAI's interface."""
        content = await self.read_json(request)
        values = read_fields(COMPLETIONS, content, ignore_others=True)
        if values["stream"]:
            events = stream_openai(self.service, values)
            return StreamingResponse(await _started(events, lambda event: f"data: {event}\n\n"),
                                     media_type="text/event-stream")  # fmt: skip
        return JSONResponse(await self.limited(complete_openai(self.service, values)))

    async def read_json(self, request: Request) -> Any:
        """Return the body of a request, which must be JSON, not too long, and arrive in time."""
        limits = self.service.limits
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > limits.body_bytes:
            raise RequestError(413, f"the body has more than {limits.body_bytes} bytes")
        try:
            body = await asyncio.wait_for(_read_body(request, limits.body_bytes), limits.body_seconds)
        except TimeoutError:
            raise RequestError(408, f"the body did not arrive within {limits.body_seconds:g} s") from None
        try:
            content = parse_json(body)
            if b"\\ud" in body.lower():  # half of a surrogate pair is no character, and cannot be returned
                json.dumps(content, ensure_ascii=False).encode()
        except (ValueError, NcelmError):
            raise RequestError(400, "the body is not valid JSON in UTF-8") from None
        return content

    async def limited(self, answer: Awaitable[Any]) -> Any:
        """Return an answer, or raise an error if it takes too long."""
        try:
            return await asyncio.wait_for(answer, self.service.limits.seconds)
        except TimeoutError:
            raise RequestError(
                503, f"no answer within {self.service.limits.seconds:g} s: repeat the request later"
            ) from None


async def _read_body(request: Request, limit: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise RequestError(413, f"the body has more than {limit} bytes")
    return bytes(body)


async def _started(items: AsyncIterator[Any], line: Callable[[Any], str]) -> AsyncIterator[str]:
    """Return the lines of a response. Errors before the first line are raised here, and have a status."""
    try:
        first = await anext(items)
    except StopAsyncIteration:
        first = None

    async def lines() -> AsyncIterator[str]:
        if first is not None:
            yield line(first)
        async for item in items:
            yield line(item)

    return lines()


def _json_line(value: Any) -> str:
    return json.dumps(value, allow_nan=False) + "\n"


def _static(name: str) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of a file of the page."""

    async def handle(request: Request) -> Response:
        content = files("ncelm.serve").joinpath("page", name).read_bytes()
        return Response(content, media_type=STATIC[name])

    return handle


# -- errors ----------------------------------------------------------------------------------------------------------


def _error(status: int, message: str) -> JSONResponse:
    # after 408, the rest of the body may still arrive: it is no request
    headers = {503: {"retry-after": "1"}, 408: {"connection": "close"}}.get(status)
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error"}}, status, headers)


def _request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return _error(error.status, str(error))


def _ncelm_error(request: Request, error: Exception) -> Response:
    return _error(422, str(error))


def _internal_error(request: Request, error: Exception) -> Response:
    return _error(500, "internal error")


def _not_found(request: Request, error: Exception) -> Response:
    return _error(404, "there is no such page: see /openapi.json")


def _wrong_method(request: Request, error: Exception) -> Response:
    return _error(405, f"{request.method} is not allowed here: see /openapi.json")


# -- around all requests ---------------------------------------------------------------------------------------------


class _Guard:
    """Checks the token, adds headers, counts and logs requests, and turns failures into responses."""

    state: _State

    def __init__(self, app: ASGIApp, metrics: Metrics, options: Options, paths: set[str]) -> None:
        self.app, self.metrics, self.options, self.paths = app, metrics, options, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        began, status, sent = time.perf_counter(), 0, 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [(name.encode(), value.encode()) for name, value in SECURITY.items()]
                message = {**message, "headers": [*message.get("headers", ()), *headers]}
            else:
                sent += len(message.get("body", b""))
            await send(message)

        self.metrics.running += 1
        try:
            if self._is_allowed(scope):
                await self.app(scope, receive, send_with_headers)
            else:
                response = _error(401, "a token is needed: send the header Authorization: Bearer TOKEN")
                response.headers["www-authenticate"] = "Bearer"
                await response(scope, receive, send_with_headers)
        except ClientDisconnect:
            status = status or 499
        except Exception as error:
            print(f"ncelm: internal error: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            if status == 0:
                await _internal_error(Request(scope), error)(scope, receive, send_with_headers)
        finally:
            self.metrics.running -= 1
            seconds = time.perf_counter() - began
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.add(path, status, seconds)
            if self.options.access_log:
                self._log(scope, status, sent, seconds)

    def _is_allowed(self, scope: Scope) -> bool:
        """Return whether a request has the token, compared in constant time."""
        if self.options.token is None or scope["path"] in OPEN_PATHS:
            return True
        given = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(given, f"Bearer {self.options.token}".encode())

    @staticmethod
    def _log(scope: Scope, status: int, sent: int, seconds: float) -> None:
        client = scope.get("client")
        record = {
            "time": round(time.time(), 3),
            "client": client[0] if client else None,
            "method": scope["method"],
            "path": scope["path"][:200],
            "status": status,
            "bytes": sent,
            "ms": round(1000 * seconds, 2),
        }
        print(json.dumps(record), file=sys.stderr, flush=True)
