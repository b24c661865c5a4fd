"""What a month comes to: with nobody at work, typically, and at worst. Pure formulas, no prices.

A month is 730 hours, as in Azure's own calculator. A job pays from the moment its nodes start until
they have been idle for as long as the cluster waits.
"""

from __future__ import annotations

from dataclasses import dataclass

HOURS = 730.0
# Azure ML takes about this long to bring up a node of a cluster that stands at zero.
START_MINUTES = 5.0


@dataclass(frozen=True)
class Month:
    """Money in one month: idle, typical, worst."""

    idle: float
    typical: float
    worst: float

    def __add__(self, other: Month) -> Month:
        return Month(self.idle + other.idle, self.typical + other.typical, self.worst + other.worst)


NOTHING = Month(0.0, 0.0, 0.0)


def level(month: float) -> Month:
    """What costs the same whatever is done."""
    return Month(month, month, month)


def used(price: float, typical: float, worst: float) -> Month:
    """What is paid by quantity: `price` a unit."""
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
    """A cluster at `rate` per node and hour, for `jobs` a month of `hours` on `nodes` each.

    Nodes that stand all the time cost the same with and without jobs; the others are paid for the
    job, their start and the wait before they go. It never costs more than all nodes all the time.
    """
    idle = rate * HOURS * min_nodes
    worst = rate * HOURS * max_nodes
    extra = max(min(nodes, max_nodes) - min_nodes, 0)
    busy = jobs * (hours + (START_MINUTES + idle_minutes) / 60) * extra
    return Month(idle, min(idle + rate * busy, worst), worst)


def waiting_hours(jobs: float, min_nodes: int, nodes: float) -> float:
    """Hours a month that jobs wait for nodes to start."""
    return jobs * START_MINUTES / 60 if nodes > min_nodes else 0.0
