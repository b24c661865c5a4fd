"""A stand-in for Azure Resource Manager: serves resources of the tests, with paging and errors."""

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
    """A fake credential with a valid token."""

    def get_token(self, *scopes: str, **others: object) -> AccessToken:
        return AccessToken("a-token", 4_102_444_800)


@dataclass
class State:
    """The state of the server, which tests fill. Paths are case-insensitive, as in Azure."""

    resources: dict[str, Any] = field(default_factory=dict)  # id → body of a GET
    lists: dict[str, list[Any]] = field(default_factory=dict)  # path → items, which are paged
    answers: dict[str, Any] = field(default_factory=dict)  # path → body of a POST's response
    denied: set[str] = field(default_factory=set)  # paths with the response 403
    # Unregistered provider → error message of all requests to it.
    unregistered: dict[str, str] = field(default_factory=dict)
    # Responses (status, headers, body) to the next requests; the last one repeats.
    raw: list[tuple[int, Mapping[str, str], bytes]] = field(default_factory=list)
    # All requests: (method, path, API version).
    asked: list[tuple[str, str, str]] = field(default_factory=list)

    def found(self, method: str, path: str, skip: int, here: str) -> tuple[int, Any]:
        """Return status and body of the response; `here` is the URL for a link to the next page."""
        plain = path.lower()
        if plain in {one.lower() for one in self.denied}:
            return 403, {"error": {"code": "AuthorizationFailed", "message": "no"}}
        for name, message in self.unregistered.items():
            if f"/providers/{name}/".lower() in plain:
                code = "MissingSubscriptionRegistration"
                return 409, {"error": {"code": code, "message": message}}
            if plain.endswith(f"/providers/{name}".lower()):
                return 200, {"namespace": name, "registrationState": "NotRegistered"}
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
    """Run a server of the state; yield its URL and certificate. It requires the token."""

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
            headers: Mapping[str, str] = {"Content-Type": "application/json"}
            if state.raw:
                # Send them one after another; the last one repeats.
                status, headers, sent = state.raw.pop(0) if len(state.raw) > 1 else state.raw[0]
            self.send_response(status)
            for name, value in {"Content-Length": str(len(sent)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_POST = _answer

        def log_message(self, *args: object) -> None:
            """Log nothing."""

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
