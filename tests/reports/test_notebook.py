"""A run as Jupyter shows it: escaped, with its children, updated until it ends."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from ml.backends.local.runs import jobs, records
from ml.core.errors import Problem, UserError
from ml.reports import notebook
from tests.backends.made_runs import LINEAGE, made, made_sweep

HOSTILE = "<script>alert(1)</script>"


def test_texts_are_escaped(own_home: Path) -> None:
    """Names, metrics and errors are the code's: none is markup or a formula."""
    error = Problem("script-failed", HOSTILE)
    lineage = {"studio": "javascript:alert(1)"}
    made(
        "one_oak_01",
        status="Failed",
        experiment=HOSTILE,
        metrics={HOSTILE: 0.5},
        error=error,
        lineage=lineage,
    )
    html = notebook.run("one_oak_01")._repr_html_()
    assert html.count("&lt;script&gt;") == 3
    assert "<script" not in html and "javascript:" not in html
    assert html.startswith('<div class="tex2jax_ignore mathjax_ignore">')


def test_the_page_in_the_studio_is_linked(own_home: Path) -> None:
    """Its address is an attribute that a quote does not end."""
    made("one_oak_01", lineage={"studio": 'https://ml.azure.com/runs/a"onclick="b'})
    html = notebook.run("one_oak_01")._repr_html_()
    assert 'href="https://ml.azure.com/runs/a&#34;onclick=&#34;b"' in html


def test_a_finished_sweep(own_home: Path) -> None:
    """A row for each trial; of many the best is among those that are shown."""
    made_sweep("sweep_oak_01", 0.9, *(number / 1000 for number in range(60)))
    view = notebook.run("sweep_oak_01")
    html = view._repr_html_()
    assert html.count("sweep_oak_01_") == notebook.CHILDREN
    assert "<td>sweep_oak_01_0</td><td>Completed, the best</td>" in html
    assert "<td>score=0.9000</td>" in html and "sweep_oak_01_60" in html
    assert "sweep_oak_01_5<" not in html and "and 11 more" in html
    assert repr(view) == "sweep_oak_01: Completed, 1 min 00 s"


class Handle:
    """What IPython's `display` returns with a `display_id`; `shown` has each update."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def display(self, bundle: Mapping[str, str], raw: bool, display_id: bool) -> Handle:
        assert display_id
        self.update(bundle, raw)
        return self

    def update(self, bundle: Mapping[str, str], raw: bool) -> None:
        assert raw
        self.shown.append(bundle["text/html"])


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> Handle:
    """Stands in for IPython, which no lock has."""
    handle, module = Handle(), ModuleType("IPython.display")
    module.__dict__["display"] = handle.display
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return handle


def test_a_run_is_watched_until_it_ends(
    own_home: Path, handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One display, updated in place; the last update has the end and its metrics."""
    going = made("one_oak_01", status="Running", ended=None)
    done = replace(going, status="Completed", ended=going.started + 5, metrics={"loss": 0.25})
    sleeps: list[float] = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) == 2:
            records.write(done, LINEAGE)

    monkeypatch.setattr("ml.reports.notebook.time.sleep", sleep)
    with jobs.hold("one_oak_01"):
        notebook.run("one_oak_01").watch()
    assert ["Running" in html for html in handle.shown] == [True, True, False]
    assert "Completed" in handle.shown[-1] and "<th>loss</th><td>0.2500</td>" in handle.shown[-1]
    assert sleeps == [notebook.UPDATE_S] * 2


def test_a_run_that_was_removed_ends_the_watching(
    own_home: Path, handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the run; the last table stays."""
    going = made("one_oak_01", status="Running", ended=None)

    def remove(seconds: float) -> None:
        (going.folder / records.FILE).unlink()

    monkeypatch.setattr("ml.reports.notebook.time.sleep", remove)
    with jobs.hold("one_oak_01"), pytest.raises(UserError) as refused:
        notebook.run("one_oak_01").watch()
    assert refused.value.problems[0].code == "no-such-run"
    assert len(handle.shown) == 1
