"""Records of runs that somebody edited: a record with another form is an unreadable record."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ml.backends.local.runs import records
from ml.backends.local.runs.store import LocalRuns
from ml.core.errors import UserError
from tests.backends.made_runs import made

RUNS = LocalRuns()
# What an editor, a fault or an attacker may leave in a field.
WRONG: list[tuple[str, Any]] = [
    ("warnings", ["x"]),
    ("warnings", [{"code": "x"}]),
    ("warnings", "x"),
    ("error", "x"),
    ("error", {"place": "x"}),
    ("metrics", {"a": "b"}),
    ("metrics", []),
    ("outputs", {"o": 5}),
    ("outputs", {"o": "../../../etc"}),
    ("outputs", {"o": "/etc"}),
    ("trials", ["x"]),
    ("steps", {"a": 1}),
    ("name", "../../x"),
    ("name", "\x1b[31m"),
    ("name", 5),
    ("started", "yesterday"),
    ("started", None),
    ("ended", []),
    ("status", "Fine"),
    ("pauses", [1]),
    ("restarts", [None]),
    ("registered", []),
    ("former", [[]]),
    ("lineage", "x"),
]


@pytest.mark.attack("a record of a run with a field of another form")
@pytest.mark.parametrize(("name", "value"), WRONG, ids=str)
def test_a_record_of_another_form_is_unreadable(name: str, value: Any) -> None:
    """It is told as a damaged record is, and hides no other run."""
    run = made("torn_oak_01")
    made("whole_oak_02")
    assert records.read_if_whole(run.folder) == run
    file = run.folder / records.FILE
    file.write_text(json.dumps({**json.loads(file.read_text()), name: value}))
    entries = RUNS.entries()
    assert [entry.run.name for entry in entries] == ["whole_oak_02"]
    assert RUNS.unreadable(entries) == ["torn_oak_01"]
    with pytest.raises(UserError, match="record-unreadable"):
        RUNS.find("torn_oak_01")


@pytest.mark.attack("a record that is no mapping, or is nested without end")
@pytest.mark.parametrize("text", ["[]", "null", "5", "[" * 5000, '{"id": 1e999}'])
def test_a_record_that_is_no_record(text: str) -> None:
    """Nor does a file that holds something else end with a traceback."""
    run = made("torn_oak_01")
    (run.folder / records.FILE).write_text(text)
    assert RUNS.entries() == [] and RUNS.unreadable([]) == ["torn_oak_01"]
