"""The trials of a sweep: their runs, what they have logged, and which of them leads."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ml.backends.base import Run
from ml.specs.plan.plan import SweepPlan
from ml.sweeps import objective
from ml.sweeps.early_termination import Policy, Verdict


class Trials:
    """Trials by name, in the order of their starts."""

    def __init__(self, plan: SweepPlan) -> None:
        self._plan = plan
        self._runs: dict[str, Run] = {}
        self._order: dict[str, int] = {}
        self._curves: dict[str, array[float]] = {}
        self._scores: dict[str, float | None] = {}
        # The names of the running trials by their run ids.
        self._running: dict[str, str] = {}
        settings = plan.early_termination
        self._policy = Policy(settings, plan.goal) if settings else None
        self._best: str | None = None

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, name: str) -> Run:
        return self._runs[name]

    @property
    def runs(self) -> tuple[Run, ...]:
        """Every trial as it is now."""
        return tuple(self._runs.values())

    @property
    def best(self) -> str | None:
        """The leader among the completed trials; of equals the one that started first."""
        return self._best

    def curve(self, name: str) -> Sequence[float]:
        """What a running trial has logged of the primary metric so far."""
        return self._curves[name]

    def score(self, name: str) -> float | None:
        """The trial's best value, once it has completed and can be ranked."""
        return self._scores.get(name)

    def put(self, run: Run, logged: Iterable[float] = ()) -> None:
        """Add a trial that started, or close one that ended.

        `logged` is what a trial from before a resume logged of the primary metric. The curve of a
        trial that ended is dropped: MLflow has it.
        """
        name = run.name
        self._runs[name] = run
        self._order.setdefault(name, len(self._order))
        curve = self._curves.setdefault(name, array("d"))
        for value in logged:
            self._log(name, value)
        if run.ended is None:
            self._running[run.id] = name
            return
        self._running.pop(run.id, None)
        del self._curves[name]
        is_ranked = run.status == "Completed"
        self._scores[name] = objective.score(curve, self._plan.goal) if is_ranked else None
        pair = sorted({name, self._best or name}, key=self._order.__getitem__)
        self._best = objective.leader({one: self._scores[one] for one in pair}, self._plan.goal)

    def log(self, values: Iterable[tuple[str, float]]) -> dict[str, int]:
        """Add (run id, value) to the curves; the trials with news, and their lengths before."""
        before: dict[str, int] = {}
        for run_id, value in values:
            if name := self._running.get(run_id):
                before.setdefault(name, len(self._curves[name]))
                self._log(name, value)
        for name in before:
            metrics = {self._plan.primary_metric: self._curves[name][-1]}
            self._runs[name] = replace(self._runs[name], metrics=metrics)
        return before

    def verdict(self, name: str, before: int) -> Verdict | None:
        """The policy's verdict on the intervals that the trial reached since it had `before`."""
        if self._policy is None:
            return None
        intervals = range(before + 1, len(self._curves[name]) + 1)
        verdicts = (self._policy.verdict(name, interval) for interval in intervals)
        return next(filter(None, verdicts), None)

    def _log(self, name: str, value: float) -> None:
        self._curves[name].append(value)
        if self._policy:
            self._policy.add(name, value)
