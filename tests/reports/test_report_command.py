"""`ml report` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.release.test_commands import ml
from tests.reports import run_records
from tests.reports.run_records import TrialRecord


def test_the_page_is_written_to_the_home(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its path on stdout, the summary on stderr; a second report replaces the first."""
    run_records.sweep([TrialRecord([0.5], {"x": 1}), TrialRecord([0.6], {"x": 2})])
    for _ in range(2):
        code, out, err = ml(capsys, "report", "brave_lake_01")
        assert (code, out.strip()) == (0, str(home / "reports" / "brave_lake_01.html"))
        assert "trial 1 won with score 0.6000" in err
    assert [path.name for path in (home / "reports").iterdir()] == ["brave_lake_01.html"]


def test_by_id_latest_trial_and_file(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By name, id, `latest` or trial; --out names the file; --json has path and summary."""
    run_records.sweep([TrialRecord([0.5], {"x": 1})])
    for wanted, name in (
        ("latest", "brave_lake_01"),
        ("id-brave_lake_01", "brave_lake_01"),
        ("brave_lake_01_0", "brave_lake_01_0"),
    ):
        file = tmp_path / "deep" / f"{name}.html"
        code, out, _ = ml(capsys, "report", wanted, "--out", str(file), "--json")
        output = json.loads(out)
        assert (code, output["run"], output["status"]) == (0, name, "Completed")
        assert (output["path"], output["bytes"]) == (str(file), file.stat().st_size)
        assert output["verdict"]


def test_it_opens_in_a_browser(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--open starts the browser of the machine."""
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    monkeypatch.setattr("webbrowser._tryorder", None)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    run_records.command()
    assert ml(capsys, "report", "latest", "--open")[0] == 0
    assert opened.read_text().strip() == (home / "reports" / "calm_river_01.html").as_uri()


def test_errors(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No such run; a folder in place of a file."""
    code, _, err = ml(capsys, "report", "nobody")
    assert code == 2 and "no-such-run" in err
    run_records.command()
    code, _, err = ml(capsys, "report", "latest", "--out", str(tmp_path))
    assert code == 2 and "is a directory" in err
