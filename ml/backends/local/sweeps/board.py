"""The standing of a sweep: its trials, what they have logged, and which of them leads."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ml.backends.base import Run
from ml.specs.plan.plan import SweepPlan
from ml.sweeps import objective, policies
from ml.sweeps.standing import Standing


class Board:
    """Trials by name, in the order of their starts."""

    def __init__(self, plan: SweepPlan) -> None:
        self._plan = plan
        self._runs: dict[str, Run] = {}
        self._order: dict[str, int] = {}
        self._curves: dict[str, array[float]] = {}
        self._scores: dict[str, float | None] = {}
        # The trials that go on, by their run ids; what they log is looked for.
        self._open: dict[str, str] = {}
        policy = plan.early_termination
        self._standing = Standing(policy, plan.goal) if policy else None
        self._best: str | None = None

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
        return self._best

    def curve(self, name: str) -> Sequence[float]:
        """What the trial, which goes on, has logged of the primary metric so far."""
        return self._curves[name]

    def score(self, name: str) -> float | None:
        """The trial's best value, once it has completed and can be ranked."""
        return self._scores.get(name)

    def put(self, run: Run, logged: Iterable[float] = ()) -> None:
        """A trial that has started, or one that has ended and counts from now on.

        `logged` is what one of an earlier day has logged of the primary metric. MLflow keeps the
        curve of one that has ended, nobody here.
        """
        self._runs[run.name] = run
        self._order.setdefault(run.name, len(self._order))
        curve = self._curves.setdefault(run.name, array("d"))
        for value in logged:
            self._log(run.name, value)
        if run.ended is None:
            self._open[run.id] = run.name
            return
        self._open.pop(run.id, None)
        del self._curves[run.name]
        if self._standing:
            self._standing.ended(run.name)
        ranked = run.status == "Completed"
        self._scores[run.name] = objective.score(curve, self._plan.goal) if ranked else None
        two = sorted({run.name, self._best or run.name}, key=self._order.__getitem__)
        self._best = objective.leader({name: self._scores[name] for name in two}, self._plan.goal)

    def take_in(self, logged: Iterable[tuple[str, float]]) -> dict[str, int]:
        """Add (run id, value) to the curves; for every trial with news, its length before."""
        before: dict[str, int] = {}
        for run_id, value in logged:
            if name := self._open.get(run_id):
                before.setdefault(name, len(self._curves[name]))
                self._log(name, value)
        for name in before:
            metrics = {self._plan.primary_metric: self._curves[name][-1]}
            self._runs[name] = replace(self._runs[name], metrics=metrics)
        return before

    def judge(self, name: str, before: int) -> policies.Verdict | None:
        """What the policy says of the intervals that the trial reached since it had `before`."""
        policy = self._plan.early_termination
        if policy is None or self._standing is None:
            return None
        for interval in range(before + 1, len(self._curves[name]) + 1):
            found = policies.verdict(policy, self._plan.goal, self._standing, name, interval)
            if found:
                return found
        return None

    def _log(self, name: str, value: float) -> None:
        self._curves[name].append(value)
        if self._standing:
            self._standing.add(name, value)
