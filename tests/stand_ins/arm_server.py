"""Azure Resource Manager on this machine: what tests put there, in pages, with its errors."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from azure.core.credentials import AccessToken

from tests.stand_ins.certificate import certified

PAGE = 3


class SignedIn:
    """Somebody with a token."""

    def get_token(self, *scopes: str, **others: object) -> AccessToken:
        return AccessToken("a-token", 4_102_444_800)


@dataclass
class State:
    """`resources` by id, `lists` and `answers` (to POST) by path; `denied` paths are 403.

    Paths compare without case, as Azure's do. `asked` is every request: method, path, version.
    """

    resources: dict[str, Any] = field(default_factory=dict)
    lists: dict[str, list[Any]] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    denied: set[str] = field(default_factory=set)
    asked: list[tuple[str, str, str]] = field(default_factory=list)

    def found(self, method: str, path: str, skip: int, here: str) -> tuple[int, Any]:
        """Status and body."""
        plain = path.lower()
        if plain in {one.lower() for one in self.denied}:
            return 403, {"error": {"code": "AuthorizationFailed", "message": "no"}}
        if method == "POST":
            return _or_404({key.lower(): one for key, one in self.answers.items()}, plain)
        lists = {key.lower(): one for key, one in self.lists.items()}
        if plain in lists:
            page: dict[str, Any] = {"value": lists[plain][skip : skip + PAGE]}
            if len(lists[plain]) > skip + PAGE:
                page["nextLink"] = f"{here}&$skiptoken={skip + PAGE}"
            return 200, page
        return _or_404({key.lower(): one for key, one in self.resources.items()}, plain)


def _or_404(known: Mapping[str, Any], path: str) -> tuple[int, Any]:
    if path in known:
        return 200, known[path]
    return 404, {"error": {"code": "ResourceNotFound", "message": path}}


@contextmanager
def running(state: State, folder: Path) -> Iterator[tuple[str, Path]]:
    """Address and certificate of a server of that state; without a token nobody is answered."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            parts = urlsplit(self.path)
            query = parse_qs(parts.query)
            version = query.get("api-version", [""])[0]
            state.asked.append((self.command, parts.path, version))
            status, body = 401, {"error": {"code": "Unauthenticated"}}
            if self.headers.get("Authorization") == "Bearer a-token":
                here = f"https://{self.headers['Host']}{parts.path}?api-version={version}"
                skip = int(query.get("$skiptoken", ["0"])[0])
                status, body = state.found(self.command, parts.path, skip, here)
            if not version:
                status, body = 400, {"error": {"code": "MissingApiVersionParameter"}}
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            sent = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_POST = _answer

        def log_message(self, *args: object) -> None:
            """Quiet."""

    certificate, key = certified(folder)
    secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secure.load_cert_chain(certificate, key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = secure.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"https://127.0.0.1:{server.server_port}", certificate
    finally:
        server.shutdown()
        server.server_close()
