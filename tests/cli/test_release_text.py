"""What `ml release status` says."""

from __future__ import annotations

from dataclasses import replace

from ml.cli.commands.release import status_text
from ml.release.rollout.status import Status

SERVED = Status(
    project="tiny",
    environment="prod",
    endpoint="tiny-prod",
    model="tiny",
    declared="2",
    digest="sha256:" + "a" * 64,
    champion="2",
    serving="2",
    url="http://127.0.0.1:8000",
    beside="",
    signed_off="ana",
    last_attempt=None,
    refused=(),
    audit="",
    verdict="as declared",
)


def test_who_signed_off_is_told_of_what_serves() -> None:
    """Nobody stands for a server that was stopped."""
    said = status_text(SERVED)
    assert "  serving   2 at http://127.0.0.1:8000, signed off by ana" in said
    said = status_text(replace(SERVED, serving=None, url=None))
    assert said.splitlines()[-1] == "  serving   nothing"
