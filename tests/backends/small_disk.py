"""Run by test_faults.py on a disk of three megabytes, with a home there and some code."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ml.backends.local.backend import LocalBackend
from ml.backends.local.runs.store import LocalRuns
from ml.core.errors import Place, UserError
from ml.specs.plan.plans import CommandPlan, Environment, OutputPlan


def main(home: str, code: str) -> None:
    """One run that fits, one that fills the disk, one on the full disk, one after making room."""
    os.environ["MLOPS_HOME"] = home
    place = Place("jobs/job.yml", 3)

    def job(command: str) -> CommandPlan:
        outputs = {"out": OutputPlan("out", "uri_folder", place)}
        return CommandPlan(
            place, "job", "tests", command, Path(code), Environment("e"), outputs=outputs
        )

    first = LocalBackend().run(job("echo kept > ${{outputs.out}}/a"))
    assert first.status == "Completed", first.error
    fills = job("head -c 9M /dev/zero > ${{outputs.out}}/big")
    try:
        run = LocalBackend().run(fills)
    except UserError as refused:
        codes = [problem.code for problem in refused.problems]
    else:
        assert run.status == "Failed", run
        assert run.error is not None
        codes = [run.error.code]
    assert codes == ["disk-full"], codes
    try:
        LocalBackend().run(fills)
    except UserError as refused:
        assert refused.problems[0].code == "disk-full", refused
    assert LocalRuns().find(first.name) == first
    assert (first.outputs["out"] / "a").read_text() == "kept\n"
    for big in Path(home).rglob("big"):
        big.unlink()
    after = LocalBackend().run(job("echo again > ${{outputs.out}}/a"))
    assert after.status == "Completed", after.error


if __name__ == "__main__":
    main(*sys.argv[1:])
