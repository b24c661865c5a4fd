"""The standing of a sweep: its trials, what they have logged, and which of them leads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ml.backends.base import Run
from ml.specs.plan import SweepPlan
from ml.sweeps import objective, policies


class Board:
    """Trials by name, in the order of their starts."""

    def __init__(self, plan: SweepPlan) -> None:
        self._plan = plan
        self._runs: dict[str, Run] = {}
        self._curves: dict[str, list[float]] = {}
        self._scores: dict[str, float | None] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, name: str) -> Run:
        return self._runs[name]

    @property
    def trials(self) -> tuple[Run, ...]:
        """Every trial as it stands."""
        return tuple(self._runs.values())

    @property
    def best(self) -> str | None:
        """The leader among the trials that completed; of equals the one that started first."""
        scores = {name: self._scores.get(name) for name in self._runs}
        return objective.leader(scores, self._plan.goal)

    def curve(self, name: str) -> list[float]:
        """What the trial has logged of the primary metric so far."""
        return self._curves[name]

    def score(self, name: str) -> float | None:
        """The trial's best value, once it has completed and can be ranked."""
        return self._scores.get(name)

    def put(self, run: Run, logged: Iterable[float] = ()) -> None:
        """A trial that has started, or one that has ended and counts from now on.

        `logged` is what one of an earlier day has logged of the primary metric.
        """
        self._runs[run.name] = run
        curve = self._curves.setdefault(run.name, [])
        curve += logged
        if run.ended is not None:
            ranked = run.status == "Completed"
            self._scores[run.name] = objective.score(curve, self._plan.goal) if ranked else None

    def take_in(self, logged: Iterable[tuple[str, float]]) -> dict[str, int]:
        """Add (run id, value) to the curves; for every trial with news, its length before."""
        names = {run.id: name for name, run in self._runs.items() if run.ended is None}
        before: dict[str, int] = {}
        for run_id, value in logged:
            if name := names.get(run_id):
                before.setdefault(name, len(self._curves[name]))
                self._curves[name].append(value)
        for name in before:
            metrics = {self._plan.primary_metric: self._curves[name][-1]}
            self._runs[name] = replace(self._runs[name], metrics=metrics)
        return before

    def judge(self, name: str, before: int) -> policies.Verdict | None:
        """What the policy says of the intervals that the trial reached since it had `before`."""
        policy = self._plan.early_termination
        if policy is None:
            return None
        for interval in range(before + 1, len(self._curves[name]) + 1):
            found = policies.judge(policy, self._plan.goal, self._curves, name, interval)
            if found:
                return found
        return None
