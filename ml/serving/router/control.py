"""What the router's own port answers: read the routes again, keep the lease, what was counted.

It listens on the loopback address and asks for the token in the router's file, which the owner of
the endpoint alone can read. Nothing here can send traffic anywhere that the routes file does not.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import asdict
from urllib.parse import parse_qs, urlsplit

from ml.serving.router.exchange import Respond, Switchboard
from ml.serving.router.upstream import Headers

_JSON = [(b"content-type", b"application/json")]


class Control:
    """POST /refresh, POST /renew, GET /answers?since=N; all but the last answer with the state."""

    def __init__(self, board: Switchboard, token: str) -> None:
        self._board = board
        self._expected = f"Bearer {token}".encode()

    def handle(
        self, method: bytes, target: bytes, headers: Headers, body: bytes, respond: Respond
    ) -> None:
        """Answer at once."""
        given = dict(headers).get(b"authorization", b"")
        if not hmac.compare_digest(given, self._expected):
            respond(401, list(_JSON), b'{"error": {"message": "no token, or another"}}')
            return
        asked = urlsplit(target.decode("latin-1"))
        call = f"{method.decode('latin-1')} {asked.path}"
        if call == "GET /answers":
            since = parse_qs(asked.query).get("since", ["0"])[0]
            found: object = self._answers(int(since) if since.isdecimal() else 0)
        elif call in ("POST /refresh", "POST /renew", "GET /state"):
            if call == "POST /refresh":
                self._board.refresh()
            if call == "POST /renew":
                self._board.renew()
            found = self._state()
        else:
            respond(404, list(_JSON), b'{"error": {"message": "no such call"}}')
            return
        respond(200, list(_JSON), json.dumps(found).encode())

    def _state(self) -> object:
        board = self._board
        return {
            "generation": board.generation,
            "problem": board.problem,
            "leased": board.leased,
            "routes": asdict(board.routes) if board.routes else None,
            "tallies": {name: asdict(tally) for name, tally in board.tallies.items()},
            "draining": [
                {"deployment": name, "port": port, "in_flight": tally.in_flight}
                for (name, port), tally in board.draining.items()
                if tally.in_flight
            ],
            "last_answer": board.recent.last,
            "collected": {
                "written": board.collector.written,
                "lost": board.collector.lost,
                "problem": board.collector.problem,
            },
        }

    def _answers(self, since: int) -> object:
        return [
            {
                "number": one.number,
                "deployment": one.deployment,
                "status": one.status,
                "body": None if one.body is None else one.body.decode("utf-8", "replace"),
            }
            for one in self._board.recent.since(since)
        ]
