"""What a job would come to, if all of it was done before: nothing is run."""

from __future__ import annotations

from pathlib import Path

from ml.backends.base import Run
from ml.backends.local import snapshot
from ml.backends.local.pipelines import reuse
from ml.backends.local.pipelines.binding import bound
from ml.specs.assets import assets
from ml.specs.plan.plan import CommandPlan, FromStep, PipelinePlan, SweepPlan


def recalled(plan: CommandPlan | PipelinePlan, output: str) -> Run | None:
    """The kept step that wrote this output of the job; None unless every step of it is kept."""
    if isinstance(plan, CommandPlan):
        kept = _kept(plan)
        return kept.run if kept else None
    found: dict[str, reuse.Kept] = {}
    written: dict[FromStep, Path] = {}
    waiting = dict(plan.steps)
    while waiting and not plan.force_rerun:
        # A plan has no circles: of those that are left, one waits for nothing.
        name = next(one for one, step in waiting.items() if not waiting.keys() & set(step.after))
        step = waiting.pop(name)
        made = bound(step, plan, written)
        if isinstance(made, PipelinePlan) or not step.is_deterministic:
            return None
        if (kept := _kept(made)) is None:
            return None
        found[name] = kept
        written |= {FromStep(name, wrote): path for wrote, path in kept.paths.items()}
    origin = plan.origins.get(output)
    kept = found.get(origin.step) if origin is not None else None
    return kept.run if kept else None


def _kept(plan: CommandPlan | SweepPlan) -> reuse.Kept | None:
    code = plan.code if isinstance(plan, CommandPlan) else plan.trial.code
    taken = snapshot.take(code)
    return reuse.find(reuse.key(plan, taken.digest if taken else "", assets.digest))
