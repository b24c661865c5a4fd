"""`ml runs open`: the addresses of a run, and which of them a browser opens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ml.backends.runs import Service
from ml.cli.render.links import Links, has_desktop
from ml.reports.pages import default_path
from tests.backends.made_runs import made
from tests.release.test_commands import ml


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the browser of this machine lists what it opened."""
    urls, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >> {urls}\n')
    browser.chmod(0o755)
    monkeypatch.setattr("webbrowser._tryorder", None)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    return urls


def test_without_a_report(own_home: Path, opened: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run of this machine has no page and no services: the command that writes the report."""
    made("one_oak_01")
    code, out, err = ml(capsys, "runs", "open", "one_oak_01")
    assert (code, out, err.strip()) == (
        0,
        "",
        "no report yet; write it: ml report one_oak_01",
    )
    assert not opened.exists()


def test_the_report_is_opened(
    own_home: Path, opened: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--print and --json only print it."""
    report = default_path(made("one_oak_01").name)
    report.parent.mkdir()
    report.touch()
    code, out, _ = ml(capsys, "runs", "open", "one_oak_01", "--print")
    assert (code, out.split()) == (0, ["report", str(report)])
    code, out, _ = ml(capsys, "runs", "open", "one_oak_01", "--json")
    assert code == 0 and json.loads(out) == {
        "run": "one_oak_01",
        "studio": "",
        "report": str(report),
        "report_command": "ml report one_oak_01",
        "services": [],
    }
    assert not opened.exists()
    assert ml(capsys, "runs", "open", "one_oak_01")[0] == 0
    assert opened.read_text().split() == [report.as_uri()]


def test_a_server_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No browser can show a page where there is no display."""
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert not has_desktop()
    monkeypatch.setenv("DISPLAY", ":0")
    assert has_desktop()


def test_only_https_is_opened() -> None:
    """A job can write the address of its service: another scheme or an option is printed only."""
    addresses = ["https://lab.example.org", "file:///etc/passwd", "--version", "javascript:1", ""]
    services = [Service("lab", "JupyterLab", "Running", address, "") for address in addresses]
    links = Links("a", "https://ml.azure.com/runs/a", None, "", tuple(services))
    assert [*links.urls()] == ["https://ml.azure.com/runs/a", "https://lab.example.org"]
    assert len([*links.lines()]) == 6
