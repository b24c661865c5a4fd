"""A run with parts, a sweep or a pipeline: carried out from its start, or from where it stood."""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

from ml.backends.base import Run, Watch
from ml.backends.local.pipelines import pipeline
from ml.backends.local.preparation import Preparation
from ml.backends.local.processes.interruption import Interruption
from ml.backends.local.processes.process import cores
from ml.backends.local.resume.begun import Begun
from ml.backends.local.runs import lineage, records
from ml.backends.local.sweeps import sweep
from ml.backends.local.sweeps.state import saved_sweep
from ml.specs.plan.plan import PipelinePlan, SweepPlan


def carry_out(
    plan: SweepPlan | PipelinePlan,
    preparation: Preparation,
    folder: Path,
    interruption: Interruption,
    watch: Watch,
    goes_on: bool = False,
) -> Run:
    """Run it in its folder, which this process holds; `goes_on`: that is where it was stopped."""
    if isinstance(plan, PipelinePlan):
        past = records.read(folder) if goes_on else None
        return pipeline.run_pipeline(plan, preparation, folder, interruption, watch, past)
    threads = max(1, cores() // sweep.concurrency(plan))
    session = preparation.session(plan.trial, None, threads)
    former = saved_sweep(folder, plan.primary_metric) if goes_on else None
    return sweep.run_sweep(plan, session, folder, interruption, watch, former)


def seeded(plan: SweepPlan | PipelinePlan) -> SweepPlan | PipelinePlan:
    """The plan with a seed of its own, where the spec gives a sweep none."""
    if isinstance(plan, SweepPlan) and plan.seed is None:
        return replace(plan, seed=secrets.randbelow(2**32))
    return plan


def lineage_of(former: Begun) -> dict[str, Any]:
    """The lineage that the record of a run had which was begun so."""
    plan = former.plan
    if isinstance(plan, PipelinePlan):
        return lineage.of_pipeline(plan, None)
    origin = lineage.of(plan.trial, None, former.code[plan.trial.code])
    return lineage.of_sweep(plan, origin)
