"""The router's collector: what it records, what it omits, and how it fails."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ml.backends import traffic
from ml.backends.local.serving import processes
from ml.backends.local.serving.router import process, records
from ml.backends.local.serving.router.records import Collector, numbered
from ml.backends.traffic import position, ticket
from tests.backends.serving.backends import Routed, backend, routed, scripted

DIGESTS = {"blue": "sha256:b", "green": "sha256:g"}


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Routed]:
    """Blue and green behind a router that records all requests of blue."""
    with backend("blue") as blue, backend("green") as green:
        two = {"green": green.port, "blue": blue.port}
        with routed(tmp_path, ports=two, collect={"blue": 1.0}, digests=DIGESTS) as made:
            yield made


def ask(at: Routed, body: bytes, **headers: str) -> int:
    """The status of one request."""
    connection = http.client.HTTPConnection(processes.HOST, at.router.port, timeout=20)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST", "/score", body, named)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def collected(at: Routed) -> list[dict[str, Any]]:
    """Every line on the disk after a refresh, which flushes the buffer."""
    at.router.refresh()
    folder = at.file.parent / records.FOLDER
    return [json.loads(line) for path in numbered(folder) for line in path.open()]


def test_requests_and_answers_are_recorded(both: Routed) -> None:
    """Both bodies, the deployment and the status; no header; readable by the owner alone."""
    assert ask(both, b'{"q": "how?"}', authorization="Bearer secret") == 200
    (line,) = collected(both)
    assert line["request"] == {"q": "how?"} and line["answer"]["by"] == "blue"
    assert (line["deployment"], line["digest"], line["status"]) == ("blue", "sha256:b", 200)
    folder = both.file.parent / records.FOLDER
    assert "secret" not in numbered(folder)[0].read_text()
    assert folder.stat().st_mode & 0o077 == 0 and numbered(folder)[0].stat().st_mode & 0o077 == 0
    assert both.router.state()["collected"] == {"written": 1, "lost": 0, "problem": ""}


def test_an_id_that_is_not_utf_8_is_recorded_as_latin_1(tmp_path: Path) -> None:
    """A server may answer with the bytes of the caller's header; the request is answered."""
    answer = b"HTTP/1.1 200 OK\r\nx-request-id: m\xfcller\r\ncontent-length: 2\r\n\r\n{}"
    with (
        scripted(answer) as port,
        routed(tmp_path, ports={"blue": port}, collect={"blue": 1}) as at,
    ):
        assert ask(at, b"{}") == 200
        assert [line["id"] for line in collected(at)] == ["müller"]


def test_only_sampled_requests_are_recorded(both: Routed) -> None:
    """Green has no share; a named deployment is a probe; a body that is not JSON is null."""
    ask(both, b"{}", azureml_model_deployment="green")
    ask(both, b"{}", azureml_model_deployment="blue")
    assert collected(both) == []
    ask(both, b"no JSON")
    assert [line["request"] for line in collected(both)] == [None]


def test_nothing_is_recorded_during_a_canary(both: Routed) -> None:
    """Its traffic may be the project's samples."""
    found = json.loads(both.file.read_text())["routes"]
    both.put(**{**found, "lease_s": 30.0})
    ask(both, b"{}")
    assert collected(both) == []


def test_an_experiment_records_the_deployment_of_each_key(both: Routed) -> None:
    """One line per key, with the ticket and never the key; the ticket determines the deployment."""
    found = json.loads(both.file.read_text())["routes"]
    half = {"green": 50, "blue": 50}
    both.put(**{**found, "experiment": "wording", "salt": "s", "traffic": half})
    keys = [f"customer-{number}" for number in range(12)]
    for key in [*keys, *keys]:
        ask(both, b"{}", x_routing_key=key)
    text = (both.file.parent / records.EXPOSED / "wording.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["id"] for line in lines] == [ticket(key, "s") for key in keys]
    assert all((line["arm"] == "green") == (position(line["id"]) < 50) for line in lines)
    assert {line["arm"] for line in lines} == {"green", "blue"} and "customer" not in text


def test_a_restarted_router_appends_to_the_same_file(both: Routed) -> None:
    """SIGTERM flushes the buffer; a line that a kill cut off damages no other line."""
    ask(both, b'{"n": 1}')
    collected(both)
    folder = both.file.parent / records.FOLDER
    with numbered(folder)[0].open("a") as stream:
        stream.write('{"torn": ')
    again = Routed(process.start(both.router.folder, both.file, both.router.port), both.file)
    ask(again, b'{"n": 2}')
    again.router.refresh()
    lines = numbered(folder)[0].read_text().splitlines()
    assert [json.loads(line)["request"] for line in (lines[0], lines[2])] == [{"n": 1}, {"n": 2}]
    assert lines[1] == '{"torn": '


def test_the_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest files are removed; the latest lines remain, in order."""
    monkeypatch.setattr(records, "MAX_FILE", 1000)
    loop = asyncio.new_event_loop()
    made = Collector(tmp_path, loop)
    for number in range(200):
        made.add("blue", "d", json.dumps(number).encode(), 200, b"")
        made.flush()
    loop.close()
    files = numbered(tmp_path)
    assert len(files) <= records.MAX_FILES + 1
    assert sum(path.stat().st_size for path in files) < 1300 * (records.MAX_FILES + 1)
    kept = [json.loads(line)["request"] for path in files for line in path.open()]
    assert kept == list(range(kept[0], 200)) and kept[0] > 0


def test_a_body_that_is_too_long_is_null(tmp_path: Path) -> None:
    """Its line is written."""
    loop = asyncio.new_event_loop()
    made = Collector(tmp_path, loop)
    long = json.dumps("x" * traffic.MAX_BODY).encode()
    made.add("blue", "d", long, 200, b"7")
    made.flush()
    loop.close()
    line = json.loads(numbered(tmp_path)[0].read_text())
    assert (line["request"], line["answer"]) == (None, 7)


def test_lines_that_cannot_be_written_are_counted(tmp_path: Path) -> None:
    """A full disk, or a file in place of the folder: nothing is raised, the loss is counted."""
    (tmp_path / "taken").write_text("a file where the folder should be")
    loop = asyncio.new_event_loop()
    made = Collector(tmp_path / "taken", loop)
    made.add("blue", "d", b"{}", 200, b"{}")
    made.flush()
    loop.close()
    assert (made.written, made.lost) == (0, 1) and made.problem
