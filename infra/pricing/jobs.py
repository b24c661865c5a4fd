"""What one job comes to at most: its nodes for as long as its time limits let it run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """Node-hours that a job cannot exceed; None: nothing in its spec bounds them.

    `nodes` run at the same time at most, so that `rate * nodes` is what an hour costs.
    """

    nodes: int
    node_hours: float | None

    def __add__(self, other: Bound) -> Bound:
        """Of two parts of one job: side by side at worst."""
        known = None
        if self.node_hours is not None and other.node_hours is not None:
            known = self.node_hours + other.node_hours
        return Bound(self.nodes + other.nodes, known)


def single(nodes: int, limit_s: float | None) -> Bound:
    """A job on `nodes` that is ended after `limit_s` seconds."""
    return Bound(nodes, None if limit_s is None else nodes * limit_s / 3600)


def sweep(
    nodes: int, trials: int, at_once: int, trial_s: float | None, limit_s: float | None
) -> Bound:
    """A sweep: its trials one by one, or all its nodes until its own limit, whichever is less."""
    at_once = min(at_once, trials)
    bounds = []
    if trial_s is not None:
        bounds.append(trials * nodes * trial_s / 3600)
    if limit_s is not None:
        bounds.append(at_once * nodes * limit_s / 3600)
    return Bound(nodes * at_once, min(bounds, default=None))
