"""Finding and filtering runs by their records."""

from __future__ import annotations

import subprocess
import sys

from ml.backends import ranking
from ml.backends.local.runs.store import LocalRuns
from ml.backends.runs import Entry, Filter
from tests.backends.made_runs import DAY_S, made, made_sweep

RUNS = LocalRuns()


def names(found: list[Entry]) -> list[str]:
    return [entry.run.name for entry in found]


def test_the_latest_come_first() -> None:
    """A folder without a record, or with half of one, hides no other run."""
    assert RUNS.entries() == []
    made("old_oak_01", days_ago=3)
    made("new_oak_02")
    torn = made("torn_oak_03")
    (torn.folder / "job.json").write_text('{"kind": ')
    (torn.folder.parent / "being_made_04").mkdir()
    assert names(RUNS.entries()) == ["new_oak_02", "old_oak_01"]


def test_each_filter_lets_pass_and_holds_back() -> None:
    """Experiment, project (by the spec, or from inside it by the experiment), status, time."""
    made("faq_oak_01", days_ago=2)
    made("other_oak_02", experiment="shop-search", lineage={"spec": "jobs/train.yml:1"})
    failed = made("fraud_oak_03", status="Failed", lineage={"spec": "ml/projects/fraud/x.yml:1"})
    found = RUNS.entries()
    assert names(Filter(project="shop_search").apply(found)) == ["other_oak_02", "faq_oak_01"]
    assert names(Filter(project="fraud").apply(found)) == ["fraud_oak_03"]
    assert names(Filter(experiment="shop-search").apply(found)) == ["other_oak_02"]
    assert names(Filter(statuses={"Failed"}).apply(found)) == ["fraud_oak_03"]
    assert names(Filter(since=failed.started - DAY_S, statuses={"Completed"}).apply(found)) == [
        "other_oak_02"
    ]
    assert Filter(project="fraud", statuses={"Completed"}).apply(found) == []


def test_a_sweep_and_its_trial_are_entries() -> None:
    """With their kind, their objective and where they came from."""
    sweep = made_sweep("sweep_oak_01", 0.5, 0.7)
    (entry,) = RUNS.entries()
    assert (entry.kind, entry.objective, entry.project) == (
        "sweep",
        ("score", "maximize"),
        "shop_search",
    )
    trial = RUNS.entry(sweep.trials[1])
    assert (trial.kind, trial.lineage["parent"]) == ("command", "id-sweep_oak_01")


def test_mlflow_is_not_imported() -> None:
    """It takes seconds; records and SQLite do."""
    made("lone_oak_01", metrics={"score": 1.0})
    for words in (["list"], ["show"]):
        code = (
            "import sys\nfrom ml.cli.app import main\n"
            f"try: main(['runs', *{words}])\nexcept SystemExit as end: assert not end.code\n"
            "heavy = {'mlflow', 'numpy', 'pandas', 'azure', 'rich', 'optuna'} & set(sys.modules)\n"
            "sys.exit(str(heavy) if heavy else 0)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_runs_of_different_data_do_not_compare() -> None:
    """Told, since their metrics were measured on different things."""
    one, same = made("one_oak_01"), made("same_oak_02")
    other = made("two_oak_03", lineage={"data": {"faq": {"asset": "azureml:faq:2", "digest": "e"}}})
    assert not ranking.different_data(RUNS, [one, same])
    assert ranking.different_data(RUNS, [one, other])
