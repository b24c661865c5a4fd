"""ml.measures.evaluation, requests.jsonl: rows of an evaluation as a client sends them."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from ml.measures.evaluation import (
    REQUESTS,
    Request,
    RequestsRefused,
    content,
    covering,
    read_requests,
)


def table(*cells: object) -> dict[str, object]:
    """A row as a request of a table."""
    return {"input_data": {"columns": ["place", "note", "size"], "data": [[*cells]]}}


def rows(count: int = 400) -> list[Request]:
    """Notes that nobody else has, and one place, missing size and great size that are rare."""
    cells: list[list[object]] = [
        ["north" if at % 2 else "south", f"note {at}", at % 7 + 1.5] for at in range(400)
    ]
    cells[301][0], cells[302][2], cells[303][2] = "rare", None, 1e6
    return [Request("test", f"r{at}", table(*of)) for at, of in enumerate(cells)][:count]


def test_the_first_requests_show_what_is_rare() -> None:
    """Each text and missing value of a column, its least and greatest number: texts that are as
    many as rows come last.
    """
    first = [of.unit for of in covering(rows(), 10)]
    assert {"r301", "r302", "r303"} <= {*first}
    places = {of.request["input_data"]["data"][0][0] for of in covering(rows(), 10)}  # type: ignore[index]
    assert places == {"north", "south", "rare"}


def test_the_others_follow_each_once() -> None:
    """All of them, as long as they are not too many."""
    assert sorted(of.unit for of in covering(rows())) == sorted(of.unit for of in rows())
    assert len(covering(rows(), 50)) == 50 and covering([]) == []


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Line breaks and separators in a text do not end a line."""
    written = [Request("test", "a\u2028b", {"text": "one\ntwo\u2028three\x85"}), *rows(3)]
    (tmp_path / REQUESTS).write_bytes(content(written))
    digest = sha256(content(written)).hexdigest()
    assert read_requests(tmp_path / REQUESTS, digest) == written


@pytest.mark.parametrize(
    "line",
    [
        *(b"[1]\n", b"no json\n", b'{"split": "test"}\n', b"[" * 100_000 + b"\n", b"\xff\n"),
        b'{"split": "a", "unit": "b", "request": 3}\n',
    ],
)
def test_a_file_of_another_form_is_refused(line: bytes, tmp_path: Path) -> None:
    """Without a traceback, whatever is in it."""
    (tmp_path / REQUESTS).write_bytes(line)
    with pytest.raises(RequestsRefused):
        read_requests(tmp_path / REQUESTS, sha256(line).hexdigest())


def test_a_file_with_another_digest_is_refused(tmp_path: Path) -> None:
    """And one that is not there."""
    with pytest.raises(RequestsRefused, match="No such file"):
        read_requests(tmp_path / REQUESTS, "a" * 64)
    (tmp_path / REQUESTS).write_bytes(content(rows(3)))
    with pytest.raises(RequestsRefused, match="not the file whose sha256"):
        read_requests(tmp_path / REQUESTS, "a" * 64)
