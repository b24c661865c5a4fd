"""The page: what it says, that it is safe, whole, small, and needs nothing from outside."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ml.backends.local.runs import records, runs
from ml.reports.charts.svg import LEGENDS
from ml.reports.pages import report
from ml.specs.plan.plan import Value
from tests.reports import made
from tests.reports.made import STORE, Made
from tests.reports.reading import Page

HOSTILE = "</title></script><script>alert(1)</script><img src=x onerror=alert(2)>\"'`&\x1b[31m\x00"


def page(name: str = "latest") -> Page:
    """The report of a run, taken apart."""
    html = report(runs.find(name), STORE).html
    html.encode()
    found = Page(html)
    assert found.problems == []
    assert found.fetched() == []
    return found


def some_trials() -> list[Made]:
    """Two completed, one stopped, one failed."""
    return [
        Made([0.1, 0.4], {"lr": 0.1, "kind": "a"}),
        Made([0.2, 0.8], {"lr": 0.2, "kind": "b"}),
        Made([0.1], {"lr": 0.3, "kind": "b"}, "Canceled", "bandit"),
        Made([], {"lr": 0.4, "kind": "a"}, "Failed", error=made.failed()),
    ]


def test_a_sweep(home: Path) -> None:
    """Verdict, charts by outcome, the policy, the table, lineage, and the failed trial's log."""
    made.sweep(some_trials(), log="first line\nboom at the end\n")
    made.tag("id-brave_lake_01-2", "ended_by", "bandit at interval 1: best so far 0.1")
    found = page()
    assert "4 trials ran in 1 min 40 s; trial 1 won with score 0.8000, 0.4000 better" in found.text
    assert found.count("circle", "best") == 1
    assert found.count("circle", "done") == 1
    assert found.count("path", "failed") == 1
    assert found.count("path", "stopped") == 1
    # A line each in the parallel coordinates; the two with two values in the learning curves too.
    assert found.count("polyline", "trial") == 4 + 2
    assert "bandit at interval 1: best so far 0.1" in found.text
    assert "it needs 10 completed trials, and there are 2" in found.text
    assert "script-failed: the command exited with 3" in found.text
    assert "boom at the end" in found.text
    for link in (
        "azureml:faq:1",
        "eeeeeeeeeeee",
        "cccccccccccc",
        "dddddddddddd",
        "brave_lake_01_1",
    ):
        assert link in found.text


def test_a_job(home: Path) -> None:
    """Parameters, last metrics, and a curve of each that was logged more than once."""
    made.command(parameters={"lr": 0.1}, curves={"loss": [1.0, 0.5, 0.25], "final": [0.9]})
    found = page()
    assert "The job completed in 7.5 s." in found.text
    assert "lr 0.1" in found.text
    assert "loss 0.2500" in found.text
    assert found.count("polyline", "trial") == 1


def test_a_pipeline(home: Path) -> None:
    """Its steps and how they ended, the sweep among them, the log of the step that failed."""
    made.pipeline()
    found = page("calm_lake_01")
    assert "The pipeline failed after 7.5 s: the command exited with 3." in found.text
    assert "Step search: 2 trials ran in 1 min 40 s; trial 1 won with score 0.8000" in found.text
    assert "search Completed 1 min 40 s" in found.text
    assert "evaluate Failed 7.5 s script-failed: the command exited with 3" in found.text
    assert "register Canceled step evaluate failed" in found.text
    assert "Sweep of step search" in found.text
    assert "best trial middle fifth" in found.text
    assert found.count("circle", "best") == 1
    assert "End of the log of calm_lake_01.evaluate boom at the end" in found.text


def test_a_step_of_a_nested_pipeline_says_where_it_is(home: Path) -> None:
    """`train` of one is not the `train` of another."""
    inner = made.pipeline("outer_lake_02.inner")
    outer = replace(inner, name="outer_lake_02", folder=home / "jobs" / "outer_lake_02")
    outer.folder.mkdir(parents=True)
    records.write(replace(outer, steps=(inner,)), {})
    found = page("outer_lake_02")
    assert "inner.evaluate Failed" in found.text
    assert "Sweep of step inner.search" in found.text


def test_every_colour_of_a_legend_has_its_word() -> None:
    """Few trials leave out the fifths that would explain the others."""
    assert all(LEGENDS.values())


def test_a_failed_job(home: Path) -> None:
    """Why, where, what next, and the end of its log, once."""
    lines = "\n".join(f"line {number}" for number in range(100))
    made.command(status="Failed", error=made.failed(), log=f"{lines}\nValueError: no rows\n")
    found = page()
    assert "The job failed after 7.5 s: the command exited with 3." in found.text
    assert "jobs/sweep.yml:7" in found.text
    assert "Next: read it" in found.text
    assert found.text.count("ValueError: no rows") == 1
    assert "line 99" in found.text
    assert "line 10 " not in found.text


def test_a_sweep_of_one_trial(home: Path) -> None:
    """Nothing to compare: said so, and nothing is divided by nothing."""
    made.sweep([Made([0.5], {"lr": 0.1})])
    found = page()
    assert "1 trial ran in 1 min 40 s; trial 0 won with score 0.5000, the only one" in found.text
    assert found.count("circle", "best") == 1
    assert "Parallel coordinates" not in found.text


def test_a_sweep_that_nobody_won(home: Path) -> None:
    """All failed: the page is whole and says so."""
    made.sweep([Made([], {"x": n}, "Failed", error=made.failed()) for n in range(3)], log="boom")
    found = page()
    assert "The sweep failed: 3 trials" in found.text
    assert "none could be ranked by score" in found.text
    assert found.count("polyline", "trial") == 0


def test_values_that_are_no_numbers(home: Path) -> None:
    """NaN and infinities are named, not drawn; the others are."""
    made.sweep(
        [
            Made([0.1, math.nan, 0.2], {"lr": 0.1}),
            Made([math.inf, -math.inf], {"lr": math.nan}),
            Made([0.3, 0.4], {"lr": 0.2}),
        ]
    )
    found = page()
    assert "trial 2 won with score 0.4000, the only one that completed" in found.text
    assert "completed, not ranked" in found.text
    for _, given in found.elements:
        for name in ("points", "cx", "cy", "x", "y", "x1", "y1", "d"):
            assert "nan" not in (given.get(name) or "").lower()
            assert "inf" not in (given.get(name) or "").lower()
    made.command("calm_river_02", curves={"loss": [math.nan, 1.0, 0.5], "lost": [math.nan]})
    found = page("calm_river_02")
    assert "1 value NaN or infinite, not drawn." in found.text
    assert "lost NaN" in found.text


def test_hostile_text_stays_text(home: Path) -> None:
    """A name, a value, a metric, a log and a message of a run cannot become markup."""
    problem = made.failed(HOSTILE)
    trials = [
        Made([n / 20, n / 10], {HOSTILE: f"{HOSTILE}{n}", "x": n, f"on{n}": 1}) for n in range(12)
    ]
    trials.append(Made([], {HOSTILE: HOSTILE}, "Failed", error=problem))
    made.sweep(trials, metric=HOSTILE, log=HOSTILE * 3)
    made.tag("id-brave_lake_01-0", "ended_by", HOSTILE)
    made.command(
        "calm_river_02", "Failed", {HOSTILE: HOSTILE}, {HOSTILE: [1.0, 2.0]}, problem, HOSTILE
    )
    for name in ("brave_lake_01", "calm_river_02"):
        found = page(name)
        assert "alert(1)" in found.text
        names = [element for element, _ in found.elements]
        assert names.count("script") == 1
        assert "img" not in names
        given = {attribute for _, attributes in found.elements for attribute in attributes}
        assert not [attribute for attribute in given if attribute.startswith("on")]


def test_nothing_comes_from_outside(home: Path) -> None:
    """No address, no import; the page's own policy forbids everything but its style and script."""
    made.sweep(some_trials())
    html = report(runs.find("latest"), STORE).html
    assert not re.search(r"https?://|//[a-z]|@import|url\(", html.partition("</style>")[0])
    assert "<link" not in html
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy
    for element in ("style", "script"):
        content = re.search(rf"<{element}>(.*?)</{element}>", html, re.S)
        assert content
        digest = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in policy[1]
    assert "default-src 'none'" in policy[1]
    # The policy would refuse a style attribute.
    assert not [given for _, given in Page(html).elements if "style" in given]


@pytest.mark.slow
def test_a_thousand_trials_fit(home: Path) -> None:
    """Below a megabyte, with the longest names and texts; what is left out is said."""
    long = "x" * 250
    names = [f"{long}{number}" for number in range(25)]

    def trial(number: int) -> Made:
        given: dict[str, Value] = dict.fromkeys(names[:12], f"{long}{number % 7}")
        given |= dict.fromkeys(names[12:], number * 0.37 % 1)
        if number % 10 == 9:
            return Made([], given, "Failed", error=made.failed(f"{long * 4} {number}"))
        curve = [number / 1000 + step / 1e4 for step in range(150)]
        ended = ("Canceled", "bandit") if number % 10 == 8 else ("Completed", "")
        return Made(curve, given, ended[0], ended[1])  # type: ignore[arg-type]

    made.sweep([trial(number) for number in range(1000)])
    made_page = report(runs.find("latest"), STORE)
    assert len(made_page.html.encode()) < 1_000_000
    found = page()
    assert found.count("circle", "mark") + found.count("path", "mark") >= 1000
    assert "300 of 1,000 trials drawn: the best, and the others evenly." in found.text
    assert "60 of 900 curves drawn" in found.text
    assert "Long curves are thinned to 100 values." in found.text
    assert "100 of 1,000 trials, best first; job.json has all." in found.text
    assert "20 of 25 parameters; job.json has all." in found.text
    assert "fANOVA on 134 completed trials" in found.text


@pytest.mark.parametrize(
    ("built", "said"),
    [("", "3.11.7, this one"), ("ab12", "3.11.7, built from the conda file as ab12")],
)
def test_the_python_and_the_assets_of_a_run(home: Path, built: str, said: str) -> None:
    """Its lineage says what stood for the environment, and what its outputs became."""
    run = replace(made.command(), registered={"model": "azureml:speller:3"})
    records.write(run, made.LINEAGE | {"interpreter": {"python": "3.11.7", "built": built}})
    text = page().text
    assert said in text
    assert "azureml:speller:3" in text
