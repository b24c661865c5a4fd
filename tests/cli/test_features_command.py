"""`ml features` on the files of a team."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ml.cli.app import main
from ml.core.errors import Exit
from tests.conftest import ROOT
from tests.features.conftest import write_set
from tests.features.test_materialize import payment, write


def ml(*words: str) -> int:
    """The exit status of `ml features …`."""
    with pytest.raises(SystemExit) as ended:
        main(["features", *words])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture
def call(tmp_path: Path) -> list[str]:
    """The set's file and a store, with a source of two payments of this hour."""
    path = write_set(tmp_path / "features")
    hours = (datetime.now(UTC) - datetime(2026, 3, 1, tzinfo=UTC)) / timedelta(hours=1)
    rows = [payment(hours - 0.5, amount=2), payment(hours - 0.4, amount=3)]
    write(tmp_path / "source", "1.parquet", rows)
    return [str(path), "--store", str(tmp_path / "store")]


def test_a_set_is_planned_materialised_looked_up_and_shown(
    call: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The values are those of both payments."""
    assert ml("plan", *call, "--json") == Exit.DONE
    planned = json.loads(capsys.readouterr().out)
    assert {row["reason"] for row in planned} == {"new"}
    assert ml("materialize", *call) == Exit.DONE
    written = f"account_payments 1: {len(planned)} partitions and 1 entities written\n"
    assert capsys.readouterr().out == written
    assert ml("plan", *call) == Exit.DONE
    assert "account_payments is up to date" in capsys.readouterr().err
    assert ml("get", *call, "a", "--json") == Exit.DONE
    answer = json.loads(capsys.readouterr().out)
    assert answer["status"] == "found" and 1000 < answer["age_seconds"] < 2000
    assert answer["values"] == {"count_3h": 2, "spent_30h": 5.0}
    assert ml("get", *call, "b") == Exit.DONE
    printed = capsys.readouterr()
    assert printed.err == "b: unknown\n" and "count_3h   None" in printed.out
    assert ml("show", *call) == Exit.DONE
    assert "count_3h   long    0.0%  1.5" in capsys.readouterr().out
    assert ml("show", *call, "--json") == Exit.DONE
    shown = json.loads(capsys.readouterr().out)
    assert shown["rows"] == 2 and shown["late"] is False


@pytest.mark.parametrize(
    ("command", "extra", "code"),
    [
        ("plan", ["--source", "nowhere"], "missing-file"),
        ("plan", ["--start", "soon"], "not-a-date"),
        ("materialize", ["--start", "2026-02-02", "--end", "2026-02-01"], "wrong-window"),
        ("get", ["a", "b"], "wrong-keys"),
        ("get", ["a"], "not-materialized"),
        ("show", [], "not-materialized"),
    ],
)
def test_a_wrong_call_is_an_error(
    command: str, extra: list[str], code: str, call: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a traceback."""
    assert ml(command, *call, *extra) == Exit.WRONG_CALL
    assert f"error[{code}]" in capsys.readouterr().err


def test_an_unknown_name_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """The feature sets of the repository are named."""
    assert ml("show", "nothing") == Exit.WRONG_CALL
    assert "error[no-feature-set]: there is no feature set `nothing`" in capsys.readouterr().err


def test_the_commands_of_the_page_run(call: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """On this feature set instead of the page's."""
    page = (ROOT / "docs/features.md").read_text()
    lines = [line.split() for line in page.splitlines() if line.startswith("ml features ")]
    assert [words[2] for words in lines] == ["plan", "materialize", "show", "get"]
    for words in lines:
        extra = ["a" if word == "CARD" else word for word in words[4:]]
        assert ml(words[2], *call, *extra) == Exit.DONE
    assert "a: found" in capsys.readouterr().err
