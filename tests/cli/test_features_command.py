"""`ml features` on the files of a team."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ml.cli.app import main
from ml.core.errors import Exit
from tests.conftest import ROOT
from tests.features.conftest import ENTITY, write_set
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
    (tmp_path / "pyproject.toml").touch()
    project = tmp_path / "ml/projects/payments"
    path = write_set(project / "features")
    path.with_name("account.yml").write_text(ENTITY)
    hours = (datetime.now(UTC) - datetime(2026, 3, 1, tzinfo=UTC)) / timedelta(hours=1)
    rows = [payment(hours - 0.5, amount=2), payment(hours - 0.4, amount=3)]
    write(project / "source", "1.parquet", rows)
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
        ("plan", ["--store", "/dev/null"], "unreadable-state"),
        ("show", ["--store", "/dev/null"], "unreadable-state"),
        ("get", ["a", "--store", "/dev/null"], "not-materialized"),
        ("materialize", ["--store", "/dev/null"], "cannot-write"),
        ("materialize", ["--store", "/proc/x"], "cannot-write"),
    ],
)
def test_a_wrong_call_is_an_error(
    command: str, extra: list[str], code: str, call: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a traceback."""
    assert ml(command, *call, *extra) == Exit.WRONG_CALL
    assert f"error[{code}]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "before", "after", "problem"),
    [
        ("account_payments.yml", ": written", ": [1]", "yml:9: `tags.arrival_column` is [1]"),
        ("account_payments.yml", "account:1", "acount:1", "yml:7: no entity `azureml:acount:1`"),
        ("account_payments.yml", "azureml:account:1", "account:2", "yml:7: no entity `account:2`"),
        ("account.yml", ENTITY, "", "yml:7: no entity `azureml:account:1`"),
        ("account.yml", "- name: account", "- name: card", "yaml:17: the keys are account (string"),
        (
            "account_payments/FeatureSetSpec.yaml",
            "name: spent_30h",
            "name: count_3h",
            "yaml:15: two columns are called `count_3h`",
        ),
    ],
)
def test_a_wrong_definition_is_an_error_with_its_line(
    *,
    file: str,
    before: str,
    after: str,
    problem: str,
    call: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As `ml check` reports it, before anything is read or written."""
    path = Path(call[0]).parent / file
    path.write_text(path.read_text().replace(before, after))
    for command in ("plan", "materialize"):
        assert ml(command, *call) == Exit.WRONG_CALL
        assert problem in capsys.readouterr().err


def test_an_unknown_name_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """The feature sets of the repository are named."""
    assert ml("show", "nothing") == Exit.WRONG_CALL
    assert "error[no-feature-set]: there is no feature set `nothing`" in capsys.readouterr().err


def test_a_name_of_two_files_is_an_error(
    call: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two versions may be there; the path of a file says which."""
    file = Path(call[0])
    file.with_name("second.yml").write_text(file.read_text().replace('"1"', '"2"'))
    monkeypatch.chdir(file.parents[4])
    assert ml("plan", "account_payments") == Exit.WRONG_CALL
    error = capsys.readouterr().err
    assert "error[ambiguous-feature-set]: 2 files define `account_payments`" in error
    assert str(file) in error and "second.yml" in error
    assert ml("plan", *call) == Exit.DONE


def test_the_commands_of_the_page_run(call: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """On this feature set instead of the page's."""
    page = (ROOT / "docs/features.md").read_text()
    lines = [line.split() for line in page.splitlines() if line.startswith("ml features ")]
    assert [words[2] for words in lines] == ["plan", "materialize", "show", "get"]
    for words in lines:
        extra = ["a" if word == "CARD" else word for word in words[4:]]
        assert ml(words[2], *call, *extra) == Exit.DONE
    assert "a: found" in capsys.readouterr().err
