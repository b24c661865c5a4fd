"""ml.release.watch.requests: rows of every form, and lines that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ml.backends.local.serving import endpoint
from ml.backends.local.serving.router.records import FOLDER, numbered
from ml.core.errors import UserError
from ml.release.watch import requests


def kept(own_home: Path, *lines: object, torn: str = "") -> None:
    """What a router left."""
    path = endpoint.folder("tiny") / FOLDER / "00000001.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + torn)


def line(at: float = 1.0, digest: str = "d", **more: object) -> dict[str, object]:
    return {"at": at, "digest": digest, "status": 200, "request": {"q": "a"}, "answer": 1, **more}


def test_what_a_router_left_is_read(own_home: Path) -> None:
    """Of the model asked for, since then; what is torn, another's or refused is counted."""
    rubbish = ([], {"at": "x"}, {"at": float("nan"), "request": 1})
    kept(own_home, line(1), line(9), line(9, "e"), line(9, status=400), *rubbish, torn='{"at": 9')
    found = requests.read_collected(endpoint.collected("tiny"), "d", since=5.0)
    assert (len(found.rows), found.unreadable, found.others, found.failed) == (2, 4, 1, 1)
    assert (found.earlier, found.requests, found.crashed) == (1, 2, 0)
    lines = [*(line(9, status=500) for _ in range(5)), line(9, status="none")]
    assert requests.read_collected(lines, "d").failing.startswith("5 of 6 requests failed")
    assert requests.read_collected(lines[1:], "d").failing == ""
    assert found.rows[0].value("q") == "a" and found.rows[0].value("none/0") is None


def test_failures_now_are_not_hidden_by_a_day_of_answers() -> None:
    """100 newest requests are judged on their own, whatever the order of the log; past ones that
    failed are no fault of now.
    """
    good = [line(n) for n in range(10_000)]
    bad = [line(20_000 + n, status=500) for n in range(400)]
    for lines in ([*good, *bad], [*bad, *good]):
        found = requests.read_collected(lines, "d")
        assert found.failing == "100 of 100 newest requests failed with a status of 500 or more"
    assert requests.read_collected([*good, *bad[:9]], "d").failing == ""
    healed = [line(30_000 + n) for n in range(200)]
    assert requests.read_collected([*good, *bad, *healed], "d").failing == ""


def test_an_empty_log_has_no_rows(own_home: Path) -> None:
    """Neither has one that is not there."""
    assert requests.read_collected(endpoint.collected("tiny"), "d").rows == []
    kept(own_home)
    assert requests.read_collected(endpoint.collected("tiny"), "d").rows == []


def test_a_table_is_as_many_rows(tmp_path: Path) -> None:
    """By column, each with the model's word on it; in a request or as a file."""
    path = tmp_path / "rows.jsonl"
    table = {"input_data": {"columns": ["x", "y"], "data": [[1, "a"], [None, "b"], "no row"]}}
    path.write_text(json.dumps({"request": table, "answer": [0.5, 0.7]}))
    found = requests.read_file(path)
    assert [row.value("x") for row in found.rows] == [1.0, None, None]
    assert [row.predicted("prediction") for row in found.rows] == [0.5, 0.7, None]
    path = tmp_path / "rows.csv"
    path.write_text("x,y\n1,a\n,b\n")
    found = requests.read_file(path)
    assert [(row.value("x"), row.value("y")) for row in found.rows] == [(1.0, "a"), (None, "b")]


@pytest.mark.parametrize("columns", [None, 3, "xy", {}])
def test_a_table_whose_columns_are_none_has_no_values(own_home: Path, columns: object) -> None:
    """Whoever can ask a model can write such a line into what is watched."""
    table = {"input_data": {"columns": columns, "data": [[1, 2], [3, 4]]}}
    kept(own_home, line(request=table, status=400), line())
    found = requests.read_collected(endpoint.collected("tiny"), "d")
    assert [row.value("x") for row in found.rows] == [None] * 3


def test_the_answer_to_a_table_may_be_a_list_or_have_one(tmp_path: Path) -> None:
    """As `Table.answer` of ml.serving.scoring.table gives it."""
    path = tmp_path / "requests.jsonl"
    table = {"input_data": {"columns": ["x"], "data": [[1], [2]]}}
    answers = ([0.1, 0.9], {"predictions": [0.1, 0.9], "model_digest": "sha256:ab"}, {"other": 1})
    for answer, expected in zip(answers, ([0.1, 0.9], [0.1, 0.9], [None, None]), strict=True):
        path.write_text(json.dumps({"request": table, "answer": answer}) + "\n")
        assert [row.predicted("prediction") for row in requests.read_file(path).rows] == expected


def test_a_column_may_have_a_slash_in_its_name(tmp_path: Path) -> None:
    """It is not taken for a way into something."""
    path = tmp_path / "rows.csv"
    path.write_text("debt/income,x\n0.3,1\n")
    (row,) = requests.read_file(path).rows
    assert (row.value("debt/income"), row.value("x"), row.value("debt")) == (0.3, 1.0, None)


def test_rows_of_one_request_have_names_of_their_own(tmp_path: Path) -> None:
    """So that a label is of one of them; the only row of a request has the request's."""
    path = tmp_path / "rows.jsonl"
    tables = [{"input_data": {"columns": ["x"], "data": data}} for data in ([[1], [2]], [[3]])]
    path.write_text(
        "".join(
            json.dumps({"id": f"r{number}", "request": table, "answer": [0.5] * 2}) + "\n"
            for number, table in enumerate(tables)
        )
    )
    assert [row.id for row in requests.read_file(path).rows] == ["r0/0", "r0/1", "r1"]


def test_a_file_that_goes_while_it_is_read(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The router drops its oldest when it begins another: what is left is read."""
    kept(own_home, line())
    gone = endpoint.folder("tiny") / FOLDER / "00000000.jsonl"
    monkeypatch.setattr(endpoint, "numbered", lambda folder: [gone, *numbered(folder)])
    assert len(requests.read_collected(endpoint.collected("tiny"), "d").rows) == 1


def test_what_is_a_number_in_a_table(tmp_path: Path) -> None:
    """As it is written in JSON: a postcode, a word and a separator make none."""
    path = tmp_path / "rows.csv"
    path.write_text("x\n1\n-2.5e3\n0.5\n007\nnan\nInfinity\n1_000\n", encoding="utf-8-sig")
    found = [row.request["x"] for row in requests.read_file(path).rows]
    assert found == [1.0, -2500.0, 0.5, "007", "nan", "Infinity", "1_000"]


def test_a_file_of_requests(tmp_path: Path) -> None:
    """A request a line; one that is none is counted."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"q": "a"}\n\nno JSON\n{"q": "b"}\n')
    found = requests.read_file(path)
    assert [row.value("q") for row in found.rows] == ["a", "b"] and found.unreadable == 1
    with pytest.raises(UserError, match="unreadable"):
        requests.read_file(tmp_path / "none.jsonl")


def test_labels(tmp_path: Path) -> None:
    """By id; a line that is none is named."""
    path = tmp_path / "labels.csv"
    path.write_text("1,a\n\n2,3.5\n")
    assert requests.labels(path) == {"1": "a", "2": "3.5"}
    path.write_text("1,a\n2\n")
    with pytest.raises(UserError, match=r"labels\.csv:2"):
        requests.labels(path)
    path.write_text("1,a\n2,b\n2,b\n", encoding="utf-8-sig")
    assert requests.labels(path) == {"1": "a", "2": "b"}
    for text, where in (("1,a\n1,b\n", 2), (",a\n", 1), ("1,\n", 1)):
        path.write_text(text)
        with pytest.raises(UserError, match=rf"labels\.csv:{where}"):
            requests.labels(path)


def test_what_an_answer_costs() -> None:
    """Right or wrong for a category, how far it is for a number; None where that is not known."""
    categories = (("a", "a"), ("a", "b"), (None, "a"), (1.0, "1"), (7.0, "1"), ("007", "7"))
    assert [requests.loss("categorical", *pair) for pair in categories] == [0, 1, 1, 0, 1, 1]
    numbers = ((3.0, "3.5"), (3.0, "x"), (None, "3.5"), ("a", "3.5"), (3.0, "nan"), (3.0, "1e999"))
    assert [requests.loss("numeric", *pair) for pair in numbers] == [0.5, *[None] * 5]
