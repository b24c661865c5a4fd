"""`ml report` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ml.cli.app import main
from tests.reports import run_records
from tests.reports.run_records import TrialRecord


def ml(*words: str) -> int:
    """The exit code of `ml …`."""
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def test_the_page_is_written_to_the_home(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its path on stdout, the summary on stderr; a second report replaces the first."""
    run_records.sweep([TrialRecord([0.5], {"x": 1}), TrialRecord([0.6], {"x": 2})])
    for _ in range(2):
        assert ml("report", "brave_lake_01") == 0
        output = capsys.readouterr()
        assert output.out.strip() == str(home / "reports" / "brave_lake_01.html")
        assert "trial 1 won with score 0.6000" in output.err
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
        out = tmp_path / "deep" / f"{name}.html"
        assert ml("report", wanted, "--out", str(out), "--json") == 0
        output = json.loads(capsys.readouterr().out)
        assert (output["run"], output["status"], output["path"]) == (name, "Completed", str(out))
        assert output["bytes"] == out.stat().st_size
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
    assert ml("report", "latest", "--open") == 0
    assert opened.read_text().strip() == (home / "reports" / "calm_river_01.html").as_uri()


def test_errors(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No such run; a folder in place of a file."""
    assert ml("report", "nobody") == 2
    assert "no-such-run" in capsys.readouterr().err
    run_records.command()
    assert ml("report", "latest", "--out", str(tmp_path)) == 2
    assert "is a directory" in capsys.readouterr().err
