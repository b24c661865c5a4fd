"""Serve a scoring script: `python -m ml.serving.fast --entry-script score.py --port 5001`.

Without arguments it reads AML_APP_ROOT and AZUREML_ENTRY_SCRIPT, which Azure ML sets from a
deployment's `code_configuration`. The same score.py, with Azure ML's `init()` and `run(body)`, runs
under azureml-inference-server-http. The differences: uvicorn and orjson instead of Flask, one
request at a time (a small model responds faster than a thread starts), and no access log. A custom
container sets the port and routes in its `inference_config`:
learn.microsoft.com/azure/machine-learning/how-to-deploy-custom-container.

uvicorn limits neither the time nor the size of a request's headers while they arrive. Put a proxy
in front of it; a managed endpoint and the local router are such proxies.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import logging
import os
import socket
import sys
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from types import ModuleType
from typing import Any

import orjson
import uvicorn

PORT = 5001
MAX_BODY = 10 * 2**20  # bytes; the limit of a managed online endpoint
MAX_HEADERS = 64 * 2**10
# Seconds: a connection may be idle between requests, and a body may take to arrive.
IDLE_S, SLOW_S = 75, 30.0
SHUTDOWN_S = 8  # seconds for the requests in progress
SCORE, PROBES = "/score", ("/", "/ready")
# Headers with ids of a request, and their maximum length (azureml-inference-server-http).
_ID, _CLIENT_ID, _LEGACY_ID = b"x-request-id", b"x-ms-client-request-id", b"x-ms-request-id"
MAX_ID = 100
_FAILED = (b"x-ms-run-function-failed", b"True")  # Azure ML's header for an error in score.py
_CLOSE = (b"connection", b"close")

Headers = list[tuple[bytes, bytes]]
Response = tuple[int, Headers, bytes]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_log = logging.getLogger("ml.serving.fast")


class App:
    """An ASGI app: POST /score runs the script; GET / and GET /ready respond after init()."""

    def __init__(self, run: Callable[[bytes], object]) -> None:
        # Import it late, from the deployment's code on sys.path, not from the image.
        from ml.serving.scoring.messages import is_finite

        self._run, self._is_finite = run, is_finite

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Respond to one request."""
        headers: Headers = scope["headers"]
        ids = _request_ids(headers)
        try:
            if any(len(value) > MAX_ID for _, value in ids):
                raise _Rejected(431, f"a request id is longer than {MAX_ID} characters")
            async with asyncio.timeout(SLOW_S):
                body = await _read(headers, receive)
        except TimeoutError:
            response = _error(408, f"the request did not arrive within {SLOW_S:g} s")
        except _Rejected as error:
            response = _error(*error.args)
        else:
            response = self._respond(scope["method"], scope["path"], body)
        status, more, content = response
        more = [(b"content-type", b"application/json"), *more]
        more += [(name, value) for name, value in ids if len(value) <= MAX_ID]
        if _upgrades(headers):
            more.append(_CLOSE)
        if status not in (204, 304):
            more.append((b"content-length", b"%d" % len(content)))
        await send({"type": "http.response.start", "status": status, "headers": more})
        await send({"type": "http.response.body", "body": content})

    def _respond(self, method: str, path: str, body: bytes) -> Response:
        if path == SCORE and method == "POST":
            return self._score(body)
        if path in PROBES and method in ("GET", "HEAD"):
            return 200, [], b'"Healthy"'
        if path == SCORE or path in PROBES:
            return 405, [], b'{"message": "method not allowed"}'
        return 404, [], b'{"message": "no such route"}'

    def _score(self, body: bytes) -> Response:
        try:
            result: Any = self._run(body)
            status, is_text = 200, True
            if hasattr(result, "status_code"):  # an AMLResponse
                status, content = int(result.status_code), bytes(result.get_data())
            else:
                # orjson never writes NaN, so only a text result can contain it.
                is_text = isinstance(result, str | orjson.Fragment)
                content = _dumps(result)
                if b"null" in content:  # orjson writes NaN and infinities as null
                    json.dumps(result, default=_plain, allow_nan=False)
            if is_text and status < 300 and not self._is_finite(content):
                raise ValueError("the answer has an infinite number or NaN")
            return status, [], content
        except Exception:
            _log.exception("the scoring script failed")
            message = b'{"message": "An unexpected error occurred in scoring script."}'
            return 500, [_FAILED], message


def _dumps(result: object) -> bytes:
    """Serialise the result to JSON; use `json` for lone surrogates, which orjson rejects."""
    try:
        return orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        if "surrogates" not in str(error):
            raise
        return json.dumps(result, default=_plain, allow_nan=False).encode()


def _request_ids(headers: Headers) -> Headers:
    """Return the id headers of the response: the request's ids, or new ones."""
    named = dict(headers)
    request_id = named.get(_ID) or str(uuid.uuid4()).encode()
    legacy = named.get(_LEGACY_ID)
    client = named.get(_CLIENT_ID) or legacy
    ids = [(_ID, request_id), (_LEGACY_ID, legacy or client or request_id)]
    return [*ids, (_CLIENT_ID, client)] if client else ids


class _Rejected(Exception):
    """The error of a refused request: (HTTP status, message)."""


async def _read(headers: Headers, receive: Receive) -> bytes:
    """Return the body of the request; raise _Rejected for forbidden headers or a large body."""
    if sum(len(name) + len(value) for name, value in headers) > MAX_HEADERS:
        raise _Rejected(431, f"the headers are larger than {MAX_HEADERS} bytes")
    if any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in headers):
        raise _Rejected(501, "a body with another coding than `chunked`")
    named = dict(headers)
    length = int(named.get(b"content-length", 0))
    if _upgrades(headers) and (length or b"transfer-encoding" in named):
        # httptools would treat the body as data of the other protocol.
        raise _Rejected(501, "a request with a body and a protocol upgrade")
    body, more = bytearray(), True
    while more:
        if max(len(body), length) > MAX_BODY:
            raise _Rejected(413, f"the body is larger than {MAX_BODY} bytes")
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Rejected(400, "the caller disconnected")
        body += message["body"]
        more = message["more_body"]
    return bytes(body)


def _upgrades(headers: Headers) -> bool:
    return any(name == b"connection" and b"upgrade" in value.lower() for name, value in headers)


def _error(status: int, message: str) -> Response:
    return status, [_CLOSE], orjson.dumps({"error": {"message": message}})


def _plain(value: Any) -> object:
    """Convert an array, a numpy number or an object's fields for `json`."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return vars(value) if hasattr(value, "__dict__") else None


def load(script: Path) -> ModuleType:
    """Import a scoring script and call its init(); raises the exceptions of both."""
    spec = importlib.util.spec_from_file_location("score", script)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(f"{script} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules["score"] = module
    spec.loader.exec_module(module)
    module.init()
    return module


def main() -> None:
    """Load the script, then listen, so that a container that responds is ready."""
    parser = argparse.ArgumentParser(prog="python -m ml.serving.fast", description=__doc__)
    parser.add_argument("--entry-script", default=os.environ.get("AZUREML_ENTRY_SCRIPT", ""))
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 in a container")
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--listener", type=int, help="the descriptor of a socket that is inherited")
    options = parser.parse_args()
    if not options.entry_script:
        parser.error("no scoring script: --entry-script, or AZUREML_ENTRY_SCRIPT")
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    root = Path(os.environ.get("AML_APP_ROOT", "."))
    script = (root / options.entry_script).resolve()
    sys.path.insert(0, str(root.resolve()))
    sys.path.insert(0, str(script.parent))
    app = App(load(script).run)
    if options.listener is None:
        listener = socket.create_server((options.host, options.port))
    else:
        listener = socket.socket(fileno=options.listener)
    config = uvicorn.Config(
        app,
        http="httptools",
        loop="uvloop",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    print("listening on {}:{}".format(*listener.getsockname()), file=sys.stderr, flush=True)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
