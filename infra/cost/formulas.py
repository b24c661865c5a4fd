"""Formulas of cost, without prices: a month of an environment, and the most that one job can use.

A month has 730 hours, as in Azure's own calculator. A job pays from the moment its nodes start
until they have been idle for as long as the cluster waits.
"""

from __future__ import annotations

from dataclasses import dataclass

HOURS = 730.0
# Azure ML takes about this long to start a node of a cluster at zero.
START_MINUTES = 5.0


@dataclass(frozen=True)
class Month:
    """Money in one month: idle, typical, worst."""

    idle: float
    typical: float
    worst: float

    def __add__(self, other: Month) -> Month:
        return Month(self.idle + other.idle, self.typical + other.typical, self.worst + other.worst)

    def __str__(self) -> str:
        return f"{self.idle:,.0f}, {self.typical:,.0f}, {self.worst:,.0f}"


NOTHING = Month(0.0, 0.0, 0.0)


def constant(month: float) -> Month:
    """A cost that does not depend on use."""
    return Month(month, month, month)


def by_quantity(price: float, typical: float, worst: float) -> Month:
    """A cost of `price` a unit."""
    return Month(0.0, price * typical, price * worst)


def cluster(
    rate: float,
    min_nodes: int,
    max_nodes: int,
    idle_minutes: float,
    jobs: float,
    hours: float,
    nodes: float,
) -> Month:
    """A cluster at `rate` per node and hour, with `jobs` a month of `hours` on `nodes` each.

    `min_nodes` always cost the same. The other nodes cost the job, their start and the wait before
    they are released. The total never exceeds all nodes for the whole month.
    """
    idle = rate * HOURS * min_nodes
    worst = rate * HOURS * max_nodes
    extra = max(min(nodes, max_nodes) - min_nodes, 0)
    busy = jobs * (hours + (START_MINUTES + idle_minutes) / 60) * extra
    return Month(idle, min(idle + rate * busy, worst), worst)


def waiting_hours(jobs: float, min_nodes: int, nodes: float) -> float:
    """Hours a month in which jobs wait for nodes to start."""
    return jobs * START_MINUTES / 60 if nodes > min_nodes else 0.0


@dataclass(frozen=True)
class Bound:
    """Node-hours that a job cannot exceed; None where its spec sets no limit.

    At most `nodes` run at the same time, so that an hour costs at most `rate * nodes`.
    """

    nodes: int
    node_hours: float | None

    def __add__(self, other: Bound) -> Bound:
        """Two parts of one job, in parallel in the worst case."""
        total = None
        if self.node_hours is not None and other.node_hours is not None:
            total = self.node_hours + other.node_hours
        return Bound(self.nodes + other.nodes, total)


def single(nodes: int, limit_s: float | None) -> Bound:
    """A job on `nodes` with a time limit of `limit_s` seconds."""
    return Bound(nodes, None if limit_s is None else nodes * limit_s / 3600)


def sweep(
    nodes: int, trials: int, concurrent: int, trial_s: float | None, limit_s: float | None
) -> Bound:
    """A sweep: its trials one by one, or all its nodes until its own limit, whichever is less."""
    concurrent = min(concurrent, trials)
    bounds = []
    if trial_s is not None:
        bounds.append(trials * nodes * trial_s / 3600)
    if limit_s is not None:
        bounds.append(concurrent * nodes * limit_s / 3600)
    return Bound(nodes * concurrent, min(bounds, default=None))
