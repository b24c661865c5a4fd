"""ml.backends.local.serving.server: incomplete answers, and the hardware of a latency."""

from __future__ import annotations

import http.client

import pytest

from ml.backends.endpoints import Answer
from ml.backends.local.serving import server
from ml.release.evidence.cost import hardware
from tests.backends.serving.backends import scripted


def response(body: bytes, length: int | None = None) -> bytes:
    """A complete answer; with `length` its header announces another length."""
    stated = len(body) if length is None else length
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (stated, body)


@pytest.mark.parametrize(
    "answer",
    [b"garbage", b"", response(b"{}", 99), response(b"x" * 2000), b"HTTP/1.1 200 OK\r\n\r\n" * 99],
)
def test_an_invalid_answer_raises(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not HTTP, empty, half an answer, too much."""
    monkeypatch.setattr(server, "MAX_ANSWER", 1000)
    with (
        scripted(answer, closing=True) as port,
        pytest.raises((OSError, http.client.HTTPException)),
    ):
        server.score(port, {})


@pytest.mark.parametrize("body", [b"[" * 100_000, b"9" * 5000, b"\xff\x00", b"{} {}"])
def test_a_body_that_is_not_json_is_text(body: bytes) -> None:
    """Deeply nested, a number of thousands of digits, bytes that are not text, two documents."""
    with scripted(response(body), closing=True) as port:
        found = server.score(port, {})
    assert found.status == 200 and isinstance(found.body, str)


def test_an_excerpt_is_the_beginning_of_an_answer() -> None:
    """On one line, with control characters escaped."""
    assert Answer(500, "no\nroom \x1b[2J").excerpt == r"no\nroom \x1b[2J"
    assert Answer(200, {"a": "ä"}).excerpt == "{'a': 'ä'}"
    for body in ("x" * 10**6, {"x": "y" * 10**6}, "\n" * 10**6):
        assert (
            len(Answer(200, body).excerpt) <= 2 * 300 + 1 and Answer(200, body).excerpt[-1] == "…"
        )


def test_the_instance_type_names_the_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    """The latency gate compares it with the deployment's; without it the machine is described."""
    monkeypatch.setenv("MLOPS_INSTANCE_TYPE", " Standard_DS3_v2 ")
    assert hardware() == "Standard_DS3_v2"
    for unstated in ("", "  "):
        monkeypatch.setenv("MLOPS_INSTANCE_TYPE", unstated)
        assert " cores, " in hardware() and "GiB" in hardware()
