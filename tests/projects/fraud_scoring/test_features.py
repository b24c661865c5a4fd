"""The scheduled job that materialises card_payments."""

from __future__ import annotations

import shlex
from pathlib import Path

import polars as pl
import pytest
import yaml

from ml.features.definition import read
from ml.features.materialize import main
from ml.features.store import stored
from ml.projects.fraud_scoring.history import FEATURE_SET
from tests.conftest import ROOT

SCHEDULE = FEATURE_SET.parent.parent / "schedules/hourly.yml"


def test_the_job_of_the_schedule_writes_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its command runs from the root, as in a run; a second time it writes nothing."""
    monkeypatch.chdir(ROOT)
    definition, source, store = read(FEATURE_SET), tmp_path / "source", tmp_path / "store"
    assert definition.local_source is not None
    source.mkdir()
    payments = pl.read_parquet(definition.local_source / "*.parquet")
    payments.tail(300).write_parquet(source / "1.parquet")
    schedule = yaml.safe_load(SCHEDULE.read_text())
    job = yaml.safe_load((SCHEDULE.parent / schedule["create_job"]).read_text())
    assert job["settings"]["force_rerun"] is True
    command = job["jobs"]["materialize"]["command"]
    command = command.replace("${{inputs.card_payments}}", str(source))
    words = shlex.split(command.replace("${{outputs.store}}", str(store)))
    assert words[:3] == ["python", "-m", main.__module__]
    assert main(words[3:]) == 0
    rows = stored(definition, store).height
    files = {path: path.stat().st_mtime_ns for path in store.rglob("*.parquet")}
    assert rows >= 300 and main(words[3:]) == 0
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*.parquet")} == files


def test_the_schedule_is_that_of_the_feature_set() -> None:
    """`ml watch` calls an arrival late by the feature set's own schedule."""
    settings = yaml.safe_load(FEATURE_SET.read_text())["materialization_settings"]["schedule"]
    trigger = yaml.safe_load(SCHEDULE.read_text())["trigger"]
    assert (settings["frequency"], settings["interval"]) == ("hour", 1)
    assert trigger["expression"] == "0 * * * *"
