"""A stand-in for App Service's endpoint, from which azure-identity gets managed identity tokens.

learn.microsoft.com/azure/app-service/overview-managed-identity, "REST endpoint reference": a GET
with `resource`, `api-version` and the header X-IDENTITY-HEADER.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

HEADER = "the-machine"


@contextmanager
def running(tokens: Mapping[str, str]) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Run the server; yield its environment variables, and the list of requested audiences.

    `tokens` maps audiences to tokens; requests for others are rejected.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            audience = query.get("resource", [""])[0].rstrip("/")
            asked.append(audience)
            known = audience in tokens and self.headers.get("X-IDENTITY-HEADER") == HEADER
            body = {"error": "invalid_request", "error_description": "nobody"}
            if known:
                body = {
                    "access_token": tokens[audience],
                    "expires_on": str(int(time.time()) + 3600),
                    "resource": audience,
                    "token_type": "Bearer",
                }
            sent = json.dumps(body).encode()
            self.send_response(200 if known else 400)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/token"
    try:
        yield {"IDENTITY_ENDPOINT": address, "IDENTITY_HEADER": HEADER}, asked
    finally:
        server.shutdown()
        server.server_close()
