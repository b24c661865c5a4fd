"""The page of a run: content, escaping, size, no references."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from ml.backends.local.runs import records
from ml.backends.local.runs.store import LocalRuns
from ml.release.comparison import Side
from ml.reports.pages import breakable, default_path, endpoint_links, page_links, report, reports_of
from ml.specs.plan.plans import Value
from policies.promotion.evidence import Evidence, Lineage
from tests.docs.test_site import CHROMIUM, too_wide
from tests.local import BACKEND
from tests.reports import run_records
from tests.reports.html_page import Page
from tests.reports.run_records import TrialRecord

HOSTILE = "</title></script><script>alert(1)</script><img src=x onerror=alert(2)>\"'`&\x1b[31m\x00"


def open_page(name: str = "latest") -> Page:
    """The report of a run, taken apart."""
    html = report(LocalRuns().find(name), BACKEND).html
    html.encode()
    page = Page(html)
    assert page.problems == []
    assert page.fetched() == []
    return page


def some_trials() -> list[TrialRecord]:
    """Two completed, one stopped, one failed."""
    return [
        TrialRecord([0.1, 0.4], {"lr": 0.1, "kind": "a"}),
        TrialRecord([0.2, 0.8], {"lr": 0.2, "kind": "b"}),
        TrialRecord([0.1], {"lr": 0.3, "kind": "b"}, "Canceled", "bandit"),
        TrialRecord([], {"lr": 0.4, "kind": "a"}, "Failed", error=run_records.failed()),
    ]


def test_a_sweep(home: Path, snapshot: SnapshotAssertion) -> None:
    """Verdict, charts by outcome, the policy, the table, lineage, and the failed trial's log."""
    run_records.sweep(some_trials(), log="first line\nboom at the end\n")
    run_records.tag("id-brave_lake_01-2", "ended_by", "bandit at interval 1: best so far 0.1")
    page = open_page()
    assert page.sections(home) == snapshot
    # A mark in the history and a line in the parallel coordinates each; a line in the learning
    # curves of those with two values.
    assert page.trials("best") == ["1"] * 3
    assert page.trials("bad") == ["3"] * 2
    assert page.trials("stopped") == ["2"] * 2
    assert page.trials("q4") == ["0"] and page.trials("q3") == ["0"] * 2


def test_a_job(home: Path, snapshot: SnapshotAssertion) -> None:
    """Parameters, last metrics, and a curve for each metric that was logged more than once."""
    run_records.command(parameters={"lr": 0.1}, curves={"loss": [1.0, 0.5, 0.25], "final": [0.9]})
    page = open_page()
    assert page.sections(home) == snapshot
    # Steps have no ticks between them.
    assert page.trials("best") == [""] and "0 1 2 step" in page.text


def test_a_pipeline(home: Path, snapshot: SnapshotAssertion) -> None:
    """Its steps and their statuses, their sweep, the log of the failed step."""
    run_records.pipeline()
    page = open_page("calm_lake_01")
    assert page.sections(home) == snapshot
    assert page.trials("best") == ["1"] * 2


def test_the_contents_link_to_every_section(home: Path) -> None:
    """One link a heading, in the order of the page."""
    run_records.pipeline()
    html = report(LocalRuns().find("calm_lake_01"), BACKEND).html
    links = re.findall(r'<a href="#([^"]+)">([^<]+)</a>', html)
    assert links == re.findall(r'<h2 id="([^"]+)">([^<]+)</h2>', html)
    assert [title for _, title in links][-3:] == ["Steps", "Sweep of step search", "Lineage"]
    assert len({anchor for anchor, _ in links}) == len(links) == 5


def test_wide_content_scrolls_in_its_own_box(home: Path) -> None:
    """A phone shows the page without clipping: every table is in a box that scrolls."""
    run_records.sweep(some_trials())
    html = report(LocalRuns().find("latest"), BACKEND).html
    assert html.count("<table") == len(re.findall(r'<div class="scroll"><table', html)) > 1
    assert html.count("<figure>") == len(re.findall(r'<div class="scroll"><svg', html)) + 1
    assert "Not computed: fANOVA needs 10 completed trials" in html  # the figure without a chart


def test_paths_break_after_a_slash_only() -> None:
    """A hash or a word stays on one line, and the text between is escaped."""
    assert breakable("a/b<c>/d_e") == "a/<wbr>b&lt;c&gt;/<wbr>d_e"


def test_the_name_of_a_nested_step(home: Path) -> None:
    """It contains the pipelines that the step is in."""
    inner = run_records.pipeline("outer_lake_02.inner")
    outer = replace(inner, name="outer_lake_02", folder=home / "jobs" / "outer_lake_02")
    outer.folder.mkdir(parents=True)
    records.write(replace(outer, steps=(inner,)), {})
    page = open_page("outer_lake_02")
    assert "inner.evaluate Failed" in page.text
    assert "Sweep of step inner.search" in page.text


def test_a_failed_job(home: Path) -> None:
    """Error, place, hint, and the end of its log once."""
    lines = "\n".join(f"line {number}" for number in range(100))
    run_records.command(
        status="Failed", error=run_records.failed(), log=f"{lines}\nValueError: no rows\n"
    )
    page = open_page()
    assert "The job failed after 7.5 s: the command exited with 3." in page.text
    assert "jobs/sweep.yml:7" in page.text
    assert "Next: read it" in page.text
    assert page.text.count("ValueError: no rows") == 1
    assert "line 99" in page.text
    assert "line 10 " not in page.text


def test_a_sweep_of_one_trial(home: Path, snapshot: SnapshotAssertion) -> None:
    """Nothing to compare, no parallel coordinates, and no division by zero."""
    run_records.sweep([TrialRecord([0.5], {"lr": 0.1})])
    page = open_page()
    assert page.sections(home) == snapshot
    assert page.trials("best") == ["0"]


def test_a_sweep_without_a_best_trial(home: Path, snapshot: SnapshotAssertion) -> None:
    """All trials failed: the page is complete."""
    run_records.sweep(
        [TrialRecord([], {"x": n}, "Failed", error=run_records.failed()) for n in range(3)],
        log="boom",
    )
    page = open_page()
    assert page.sections(home) == snapshot
    assert page.trials("bad") == []


def test_values_that_are_not_finite(home: Path) -> None:
    """NaN and infinities are counted, the other values drawn."""
    run_records.sweep(
        [
            TrialRecord([0.1, math.nan, 0.2], {"lr": 0.1}),
            TrialRecord([math.inf, -math.inf], {"lr": math.nan}),
            TrialRecord([0.3, 0.4], {"lr": 0.2}),
        ]
    )
    page = open_page()
    assert "trial 2 won with score 0.4000, the only one that completed" in page.text
    assert "completed, not ranked" in page.text
    for _, attributes in page.elements:
        for name in ("transform", "cx", "cy", "x", "y", "x1", "y1", "d"):
            assert "nan" not in (attributes.get(name) or "").lower()
            assert "inf" not in (attributes.get(name) or "").lower()
    run_records.command("calm_river_02", curves={"loss": [math.nan, 1.0, 0.5], "lost": [math.nan]})
    page = open_page("calm_river_02")
    assert "1 value NaN or infinite, not drawn." in page.text
    assert "lost NaN" in page.text


@pytest.mark.attack("A name injects HTML into a report")
def test_hostile_text_is_text(home: Path) -> None:
    """Names, values, metrics, logs and messages of a run cannot become markup."""
    problem = run_records.failed(HOSTILE)
    trials = [
        TrialRecord([n / 20, n / 10], {HOSTILE: f"{HOSTILE}{n}", "x": n, f"on{n}": 1})
        for n in range(12)
    ]
    trials.append(TrialRecord([], {HOSTILE: HOSTILE}, "Failed", error=problem))
    run_records.sweep(trials, metric=HOSTILE, log=HOSTILE * 3)
    run_records.tag("id-brave_lake_01-0", "ended_by", HOSTILE)
    run_records.command(
        "calm_river_02", "Failed", {HOSTILE: HOSTILE}, {HOSTILE: [1.0, 2.0]}, problem, HOSTILE
    )
    for name in ("brave_lake_01", "calm_river_02"):
        page = open_page(name)
        assert "alert(1)" in page.text
        names = [element for element, _ in page.elements]
        assert names.count("script") == 1
        assert "img" not in names
        attributes = {attribute for _, attributes in page.elements for attribute in attributes}
        assert not [attribute for attribute in attributes if attribute.startswith("on")]


def test_a_page_has_no_references(home: Path) -> None:
    """No address, no import; the policy allows only the style and script of the page."""
    run_records.sweep(some_trials())
    html = report(LocalRuns().find("latest"), BACKEND).html
    assert not re.search(r"https?://|//[a-z]|@import|url\(", html.partition("</style>")[0])
    assert "<link" not in html
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy
    for element in ("style", "script"):
        content = re.search(rf"<{element}>(.*?)</{element}>", html, re.S)
        assert content
        digest = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in policy[1]
    assert "default-src 'none'; img-src data:;" in policy[1]
    # The policy would refuse a style attribute.
    assert not [attributes for _, attributes in Page(html).elements if "style" in attributes]


@pytest.mark.slow
def test_a_thousand_trials_fit(home: Path) -> None:
    """Below a megabyte, with the longest names and texts; notes count the rest."""
    long = "x" * 250
    names = [f"{long}{number}" for number in range(25)]

    def trial(number: int) -> TrialRecord:
        attributes: dict[str, Value] = dict.fromkeys(names[:12], f"{long}{number % 7}")
        attributes |= dict.fromkeys(names[12:], number * 0.37 % 1)
        if number % 10 == 9:
            return TrialRecord(
                [], attributes, "Failed", error=run_records.failed(f"{long * 4} {number}")
            )
        curve = [number / 1000 + step / 1e4 for step in range(150)]
        ended = ("Canceled", "bandit") if number % 10 == 8 else ("Completed", "")
        return TrialRecord(curve, attributes, ended[0], ended[1])  # type: ignore[arg-type]

    run_records.sweep([trial(number) for number in range(1000)])
    large = report(LocalRuns().find("latest"), BACKEND)
    assert len(large.html.encode()) < 1_000_000
    page = open_page()
    # In the history alone; then lines.
    marks = sum(len(page.trials(colour)) for colour in ("best", "q4", "bad", "stopped"))
    assert 1000 < marks < 1500
    assert "300 of 1,000 trials drawn: the best, and an even sample." in page.text
    assert "60 of 900 curves drawn" in page.text
    assert "Long curves are downsampled to 100 values." in page.text
    assert "100 of 1,000 trials, best first; job.json has all." in page.text
    assert "20 of 25 parameters; job.json has all." in page.text
    assert "fANOVA on 134 completed trials" in page.text


@pytest.mark.parametrize(
    ("built", "python"),
    [("", "3.11.7, this interpreter"), ("ab12", "3.11.7, built from the conda file as ab12")],
)
def test_the_interpreter_and_the_assets_of_a_run(home: Path, built: str, python: str) -> None:
    """The lineage names the Python that ran it, and the assets that its outputs became."""
    run = replace(run_records.command(), registered={"model": "azureml:speller:3"})
    records.write(run, run_records.LINEAGE | {"interpreter": {"python": "3.11.7", "built": built}})
    text = open_page().text
    assert python in text
    assert "azureml:speller:3" in text


@pytest.mark.parametrize(
    ("run", "out", "address"),
    [
        ("calm_river_01", "reports/page.html", "calm_river_01.html"),
        ("calm_river_01_3", "elsewhere/page.html", "../reports/calm_river_01.html"),
        ("other_river_01", "reports/page.html", None),
        ("../calm_river_01", "reports/page.html", None),
        ('calm_river_01"><b>', "reports/page.html", None),
    ],
)
@pytest.mark.attack("The name of a run in evidence links a page to another file")
def test_pages_link_to_pages_that_exist(
    home: Path, run: str, out: str, address: str | None
) -> None:
    """By relative addresses; a name that is no name of a file is no link."""
    for name in ("calm_river_01", "../calm_river_01"):
        default_path(name).parent.mkdir(parents=True, exist_ok=True)
        default_path(name).write_text("")
    champion = Side("tiny 6", "", Evidence(lineage=Lineage(run_name=run)))
    links = {link for _, link in page_links(home / out, reports_of(champion))}
    assert links == {address} - {None}


@pytest.mark.parametrize(
    ("url", "is_link"), [("http://127.0.0.1:1/score", True), (None, False), ("data:x", False)]
)
def test_pages_link_the_endpoint_that_serves(url: str | None, is_link: bool) -> None:
    """By its web address alone."""
    endpoints: Any = SimpleNamespace(name_of="{}-{}".format, url=lambda name: url)
    links = endpoint_links(SimpleNamespace(endpoints=endpoints), "tiny", "dev")  # type: ignore[arg-type]
    assert links == [("endpoint tiny-dev", url)] * is_link


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt install chromium")
def test_pages_have_no_horizontal_scroll_bar(home: Path, tmp_path: Path) -> None:
    """A sweep, at the width of a phone and of a desktop."""
    run_records.sweep(some_trials())
    pages = {
        "run": report(LocalRuns().find("latest"), BACKEND).html,
        "wide": "<!doctype html><h1>wide</h1><p style='width: 2000px'>wide</p>",
    }
    for name, html in pages.items():
        (tmp_path / f"{name}.html").write_text(html)
    wide = too_wide([tmp_path / f"{name}.html" for name in pages], tmp_path)
    assert {page.stem for page, _, _ in wide} == {"wide"}
