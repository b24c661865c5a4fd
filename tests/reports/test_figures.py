"""A project's own charts: on the page of a run and in its artifacts."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ml.backends.runs import Run
from ml.core import home
from ml.reports.pages import report
from tests.conftest import ROOT
from tests.local import BACKEND
from tests.release.test_commands import ml
from tests.reports import run_records
from tests.reports.html_page import Page

CHARTS = """
import altair as alt
import matplotlib.pyplot as plt

from ml.toolkit.figures import RunFiles


def curve(run: RunFiles):
    rows = alt.Data(values=[{"x": 1, "y": run.metrics["loss"], "name": "<script>"}])
    return alt.Chart(rows).mark_point().encode(x="x:Q", y="y:Q", tooltip="name:N")


def bars(run):
    print("a word on the way")
    figure, axes = plt.subplots()
    axes.bar(["lr"], [run.parameters["lr"]])
    return figure


def large(run):
    rows = alt.Data(values=[{"x": n} for n in range(3000)])
    return alt.Chart(rows).mark_point().encode(x="x:Q", y="x:Q")


def broken(run):
    return run.metrics["accuracy"]


def text(run):
    return f"<b>{run.name}</b>"


def remote(run):
    return alt.Chart("http://127.0.0.1:1/rows.json").mark_point().encode(x="x:Q")


CHARTS = {
    "Nothing": lambda run: None,
    "Loss <b>": curve, "Rate": bars, "Many": large,
    "Accuracy": broken, "Text": text, "Remote": remote,
}
"""


@pytest.fixture
def project(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in a repository of its own, in which the test works."""
    folder = tmp_path / "ml/projects/tiny"
    folder.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "ml/toolkit").symlink_to(ROOT / "ml/toolkit")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_records, "LINEAGE", run_records.LINEAGE | {"spec": f"{SPEC}:1"})
    return folder


SPEC = "ml/projects/tiny/jobs/train.yml"


def job(name: str = "calm_river_01") -> Run:
    return run_records.command(name, parameters={"lr": 0.1}, curves={"loss": [1.0, 0.5]})


def test_a_projects_charts_are_on_the_page(project: Path) -> None:
    """As images, which run nothing; what cannot be drawn is a sentence with its line."""
    (project / "charts.py").write_text(CHARTS)
    html = report(job(), BACKEND).html
    page = Page(html)
    assert page.problems == []
    images = [of for name, of in page.elements if name == "img"]
    kinds = [re.match(r"data:image/(\S+);base64,", of["src"] or "") for of in images]
    assert [kind and kind[1] for kind in kinds] == ["svg+xml", "svg+xml", "png"]
    assert [of["alt"] for of in images] == ["Loss <b>", "Rate", "Many"]
    assert "img-src data:" in html and len(html) < 1_000_000
    line = 1 + CHARTS.splitlines().index('    return run.metrics["accuracy"]')
    assert f"Not drawn: charts.py:{line}: KeyError: 'accuracy'" in page.text
    assert "expected an Altair chart or a matplotlib figure, not a str" in page.text
    assert "External data url not allowed" in page.text
    assert "Traceback" not in page.text and "a word on the way" not in page.text


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("CHARTS = {", "charts.py:1: SyntaxError: '{' was never closed"),
        ("import no_such_package", "charts.py:1: ModuleNotFoundError: No module named"),
        ("", "AttributeError: module 'ml.projects.tiny.charts' has no attribute 'CHARTS'"),
        ("import os; os._exit(3)", "the process exited with code 3"),
        (
            "import os, pathlib, sys\n"
            "os.write(1, b'\\xff')\n"
            "pathlib.Path(sys.argv[2], 'figures.json').write_text('[{\"title\": 1}]')\n"
            "os._exit(0)",
            "the process exited with code 0",
        ),
        ("CHARTS = ['a']", "CHARTS must map each title to a function"),
    ],
)
def test_a_charts_py_that_cannot_be_used(project: Path, code: str, words: str) -> None:
    """The page is complete, and says why there are no charts."""
    (project / "charts.py").write_text(code)
    page = Page(report(job(), BACKEND).html)
    assert page.problems == [] and words in page.text
    assert "Lineage" in page.text


@pytest.mark.attack("Charts of a project leave what never ends, is elsewhere, or fills the memory")
@pytest.mark.parametrize(
    "made",
    ["os.mkfifo(svg)", "os.symlink('/etc/hosts', svg)", "open(svg, 'wb').truncate(10**11)"],
)
def test_a_figure_is_a_small_file(project: Path, made: str) -> None:
    """Of other files the page says that they are none."""
    (project / "charts.py").write_text(
        "import json, os, sys\nfolder = sys.argv[2]\nsvg = folder + '/0.svg'\n"
        f"{made}\ndrawn = [{{'title': 'x', 'file': '0.svg'}}]\n"
        "open(folder + '/figures.json', 'w').write(json.dumps(drawn))\nos._exit(0)\n"
    )
    (figure,) = report(job(), BACKEND).figures
    assert figure.title == "x" and "not a regular file of at most" in figure.fault


@pytest.mark.attack("Charts of a project take a token from the variables of who asks for a report")
def test_charts_are_drawn_without_the_callers_variables(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that draws gets the few variables that it needs."""
    monkeypatch.setenv("GH_TOKEN", "secret")
    (project / "charts.py").write_text(
        "import os\ndef names(run): raise ValueError(sorted(os.environ))\nCHARTS = {'a': names}"
    )
    text = Page(report(job(), BACKEND).html).text
    assert "ValueError" in text and "GH_TOKEN" not in text


def test_the_charts_are_logged(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`ml report` leaves the figures among the artifacts of the run, where MLflow shows them."""
    (project / "charts.py").write_text(CHARTS)
    run, artifacts = job(), tmp_path / "artifacts"
    with closing(sqlite3.connect(home.database())) as connection, connection:
        row = (str(artifacts), run.id)
        connection.execute("UPDATE runs SET artifact_uri = ? WHERE run_uuid = ?", row)
    for _ in range(2):
        assert ml(capsys, "report", run.name)[0] == 0
    names = {"Loss__b_.svg", "Many.png", "Rate.svg"}
    assert {path.name for path in (artifacts / "charts").iterdir()} == names


def test_a_run_without_charts(project: Path) -> None:
    """There is no section, and no program is started."""
    assert "Charts of" not in report(job(), BACKEND).html
