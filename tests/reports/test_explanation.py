"""The explanation of a sweep: origins, endings, importance."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from typer.testing import CliRunner, Result

from ml.backends.local.runs import records
from ml.backends.runs import Run
from ml.cli.app import build
from ml.cli.commands.sweep import app
from ml.core.errors import UserError
from ml.core.home import database
from ml.reports.explanation import explain
from ml.reports.pages import report
from ml.reports.sweep import origin_sentence, short_origin
from ml.specs.plan.plans import Sample
from ml.sweeps.early_termination import Verdict
from tests.local import BACKEND
from tests.reports.run_records import TrialRecord, command, pipeline, sweep

TPE = {
    "kind": "tpe",
    "good": [0],
    "bad": 1,
    "running": [],
    "good_until": 0.75,
    "refused": 3,
}
GIVEN = {
    "kind": "given",
    "point": 0,
    "place": "sweep.hints.yml:2",
    "because": "the best in May",
    "sampled": ["model.0.depth"],
    "rest": {"kind": "random", "startup": True, "ended": 0},
}
SAMPLES: list[Mapping[str, Any]] = [
    GIVEN,
    {"kind": "random", "startup": True, "ended": 1},
    TPE,
]


@pytest.fixture
def tpe_sweep(home: Path) -> Run:
    """Three trials: a given point, a random one that the bandit ended, one by TPE."""
    run = sweep(
        [
            TrialRecord([0.5, 0.75], {"lr": 0.1}),
            TrialRecord([0.2, 0.4], {"lr": 0.5}, "Canceled", "bandit"),
            TrialRecord([0.6, 0.875], {"lr": 0.05}),
        ]
    )
    for number, (trial, origin) in enumerate(zip(run.trials, SAMPLES, strict=True)):
        values = {**trial.parameters, "model": {"name": "tree", "depth": 3}}
        records.write_sample(trial.folder, Sample(number, values, origin))
    verdict = Verdict("bandit", interval=2, value=0.4, threshold=0.5)
    with closing(sqlite3.connect(database())) as connection, connection:
        connection.executemany(
            "INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?)",
            [(key, value, run.trials[1].id) for key, value in verdict.tags.items()],
        )
    return run


Explain = Callable[..., Result]


@pytest.fixture
def explain_command() -> Explain:
    """What `ml sweep explain` answers."""

    def call(*words: str) -> Result:
        return CliRunner().invoke(app, ["explain", *words])

    return call


def test_how_far_a_stopped_trial_missed_the_threshold(tpe_sweep: Run) -> None:
    """The threshold against the value, exactly: 0.5 against 0.4, so by 0.1."""
    explanation = explain(tpe_sweep, BACKEND.runs)
    ended = explanation.endings[1]
    assert (ended.policy, ended.interval) == ("bandit", 2)
    assert (ended.value, ended.threshold) == (0.4, 0.5)
    assert ended.missed_by == pytest.approx(0.1)
    assert set(explanation.endings) == {1}


@pytest.mark.parametrize(
    ("origin", "words", "in_a_table"),
    [
        (
            GIVEN,
            "point 1 of the hints (sweep.hints.yml:2): the best in May; "
            "model.depth sampled by random start",
            "hint 1",
        ),
        (SAMPLES[1], "at random during TPE's startup, after 1 trial", "random start"),
        ({"kind": "random"}, "at random", "random"),
        (
            {"kind": "random", "instead_of": "tpe"},
            "at random, because TPE's suggestions repeatedly violated a constraint",
            "random",
        ),
        ({"kind": "sobol", "index": 7}, "point 7 of the Sobol sequence", "sobol 7"),
        ({"kind": "grid", "cell": 3, "of": 6}, "cell 3 of 6 of the grid", "cell 3"),
        (
            TPE | {"good": [0, 2], "bad": 9, "running": [1]},
            "by TPE: likely among the 2 good trials (0.7500 or better), unlikely among the 9 "
            "others, 1 still running; 3 earlier points violated a constraint",
            "TPE",
        ),
        (
            {"kind": "random", "startup": True, "ended": 3, "before": "evolution"},
            "at random during the evolution's startup, after 3 trials",
            "random start",
        ),
        (
            {"kind": "evolution", "parent": 4, "score": 0.75, "refused": 1},
            "by evolution: a change of trial 4 (0.7500); 1 earlier point violated a constraint",
            "evolution",
        ),
        (
            {"kind": "random", "instead_of": "evolution"},
            "at random, because changes of the parent repeated trials or violated a constraint",
            "random",
        ),
        ({"kind": "random", "refused": 1}, "at random; 1 earlier point violated a constraint", ""),
        ({}, "", ""),
        ({"kind": "of tomorrow"}, "", "of tomorrow"),
    ],
)  # fmt: skip
def test_origins_in_words(origin: Mapping[str, Any], words: str, in_a_table: str) -> None:
    """Each kind that a sampler records; an unknown kind has no sentence."""
    assert origin_sentence(origin) == words
    if in_a_table:
        assert short_origin(origin) == in_a_table


def test_the_preferences_of_tpe(home: Path) -> None:
    """The values of the good trials, and how many others had them; the rarest among those first."""
    rates = [0.1, 0.2, 0.15, 0.9, 0.8, 0.5]
    depths = [3, 4, 5, 4, 6, 4]
    run = sweep([TrialRecord([0.5], {"lr": rate}) for rate in rates])
    tpe = TPE | {"good": [0, 1], "bad": 2, "running": [4]}
    for trial, rate, depth in zip(run.trials, rates, depths, strict=True):
        number = int(trial.folder.name)
        values = {"lr": rate, "depth": depth, "kind": "tree" if number < 3 else "linear"}
        origin = tpe if number == 5 else {"kind": "random"}
        records.write_sample(trial.folder, Sample(number, values, origin))
    explanation = explain(run, BACKEND.runs)
    *earlier, last = explanation.sweep.trials
    preferences = explanation.preferences(last)
    # The others are trials 2 and 3: 4 was running, 5 is the trial itself.
    assert [(one.name, one.value, one.good_values, one.among_others) for one in preferences] == [
        ("lr", 0.5, "0.1000 … 0.2000", 0.5),
        ("depth", 4, "3, 4", 0.5),
        ("kind", "linear", "tree", 0.5),
    ]
    assert [explanation.preferences(one) for one in earlier] == [()] * 5


def test_the_explanation_as_text(
    tpe_sweep: Run, explain_command: Explain, snapshot: SnapshotAssertion
) -> None:
    """A line per trial; one by its number or its name, with the values of the good trials."""
    assert explain_command(tpe_sweep.name).stdout == snapshot(name="all trials")
    done = explain_command(tpe_sweep.name, "--trial", "2")
    assert done.exit_code == 0 and done.stdout == snapshot(name="one trial")
    assert explain_command("brave_lake_01_2").stdout == done.stdout


def test_the_explanation_as_json(tpe_sweep: Run, explain_command: Explain) -> None:
    """The records, and their sentences."""
    everything = json.loads(explain_command(tpe_sweep.name, "--json").stdout)
    assert everything["objective"] == {"metric": "score", "goal": "maximize"}
    assert [one["origin"] for one in everything["trials"]] == SAMPLES
    assert [one["from"] for one in everything["trials"]] == [*map(origin_sentence, SAMPLES)]
    assert everything["trials"][1]["ended_by"]["missed_by"] == pytest.approx(0.1)
    assert everything["importance"]["shares"] == {}
    (one,) = json.loads(explain_command(tpe_sweep.name, "--trial", "1", "--json").stdout)["trials"]
    assert one == everything["trials"][1]


def test_the_latest_sweep_is_the_default(tpe_sweep: Run, explain_command: Explain) -> None:
    """Also when a later run is not a sweep, and when the sweep is a step."""
    command()
    assert explain_command().stdout.startswith("brave_lake_01: ")
    pipeline()
    assert explain_command("calm_lake_01").stdout.startswith("calm_lake_01.search: ")


def test_a_sweep_without_recorded_origins(home: Path, explain_command: Explain) -> None:
    """The table has question marks, and a trial says "not recorded"."""
    run = sweep([TrialRecord([0.5], {"lr": 0.1})])
    assert "?" in explain_command(run.name).stdout
    assert "from    not recorded" in explain_command(run.name, "--trial", "0").stdout


def test_unknown_sweeps_and_trials(home: Path, tpe_sweep: Run, explain_command: Explain) -> None:
    """No such trial, not a sweep, no such run: each has its own error."""
    command("calm_river_01")
    for words, code in (
        ([tpe_sweep.name, "--trial", "3"], "no-such-trial"),
        (["calm_river_01"], "not-a-sweep"),
        (["nobody"], "no-such-run"),
    ):
        done = explain_command(*words)
        assert isinstance(done.exception, UserError)
        assert done.exception.problems[0].code == code


def test_without_any_sweep(home: Path, explain_command: Explain) -> None:
    """The error is `no-sweep`."""
    done = explain_command()
    assert isinstance(done.exception, UserError)
    assert done.exception.problems[0].code == "no-sweep"


def test_the_command_is_a_group() -> None:
    """`ml sweep` is a group with `explain` in it."""
    done = CliRunner().invoke(build("sweep"), ["sweep", "--help"])
    assert done.exit_code == 0
    assert "explain" in done.stdout


def test_the_page_contains_the_origins(tpe_sweep: Run) -> None:
    """In the table and in tooltips."""
    html = report(tpe_sweep, BACKEND).html
    assert "point 1 of the hints (sweep.hints.yml:2): the best in May" in html
    assert ">TPE</td>" in html
    assert "random start" in html
