"""A distributed job whose node goes, run as `ml run SPEC --evict-after` runs it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from ml.backends.base import Options
from ml.backends.local import files
from ml.backends.local.backend import LocalBackend
from ml.core.errors import Place
from ml.specs.plan.plans import Distribution
from tests.backends.conftest import Plans, command
from tests.shared import bring
from tests.toolkit.torch import ranks, training
from tests.toolkit.torch.training import Settings, train, write_data

__all__ = ["command"]

# The tests' training, in the code of a job.
SCRIPT = (
    Path(training.__file__).read_text()
    + """

if __name__ == "__main__":
    train(Path(sys.argv[1]), Path(sys.argv[2]), Settings(every=2, pause_s=0.4))
"""
)


@pytest.mark.slow
def test_evicted_ranks_go_on_in_the_mounted_output(
    home: Path, command: Plans, tmp_path: Path
) -> None:
    """Two ranks are killed and started again: they go on in the mounted output, to the same end."""
    data = write_data(tmp_path / "data")
    settings = Settings(every=2)
    ranks.run(train, 2, tmp_path / "logs", tmp_path / "whole", data, settings)
    plan = command(
        SCRIPT, f"python script.py ${{{{outputs.model}}}} {data}", {"model": "uri_folder"}
    )
    bring(plan.code, "ml/toolkit", "ml/serving/scoring", "ml/measures")
    plan = replace(plan, instance_count=1, distribution=Distribution("pytorch", 2, Place("j", 1)))
    run = LocalBackend(Options(evict_after=(12.0,))).run(plan)
    log = files.log(run.folder).read_text()
    assert run.status == "Completed", log
    assert run.restarts
    first = log.partition("--- evicted")[0]
    # On a busy machine the eviction may come before there is anything to go on from.
    assert ("\n4 " in first) <= ("resuming from step-" in log), log
    mine, whole = (torch.load(of / "final.pt") for of in (run.outputs["model"], tmp_path / "whole"))
    assert all(torch.equal(mine[name], whole[name]) for name in whole)
