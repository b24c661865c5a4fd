"""From a table to a served model that AutoML chose: new, run, propose, apply, invoke."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.repository.forks import forks
from tests.repository.scaffold import tables
from tests.repository.scaffold.test_whole_way import typed

ML = ".venv/bin/ml"


@pytest.mark.slow
def test_the_best_of_three_families_is_gated_served_and_asked(tmp_path: Path) -> None:
    """The search of a small table sees no row of the test; its best model meets the gates."""
    fork = forks.fork(tmp_path / "fork")
    tables.churn(fork / "churn.csv", 1000)  # the schema has `folds`
    typed(fork, f"{ML} new churn --table churn.csv --target Churn")
    few = "--set jobs.search.limits.max_trials=3"
    try:
        said = typed(fork, f"{ML} run ml/projects/churn/jobs/automl.yml {few}")
        assert "Completed" in said
        typed(fork, f"{ML} release propose churn")
        typed(fork, f"{ML} release apply churn --approved-by ana")
        asked = typed(
            fork, f'{ML} invoke churn "$(head -1 ml/projects/churn/endpoint/requests.jsonl)"'
        )
        answer = json.loads(asked.partition("\n")[0])
        assert 0 < answer["predictions"][0] < 1 and answer["model_digest"].startswith("sha256:")
    finally:
        typed(fork, f"{ML} serve --stop-all")
