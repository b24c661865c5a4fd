"""What bounds a job: nodes, trials, time limits."""

from __future__ import annotations

from infra.cost.formulas import Bound, single, sweep


def test_a_job_is_bounded_by_its_limit() -> None:
    """Four nodes for half an hour."""
    assert single(4, 1800) == Bound(4, 2.0)
    assert single(4, None) == Bound(4, None)


def test_a_sweep_is_bounded_by_whichever_limit_is_less() -> None:
    """16 trials of 10 minutes, two at a time within two hours, on one node each."""
    assert sweep(1, 16, 2, 600, 7200) == Bound(2, 16 / 6)
    assert sweep(1, 16, 2, 3600, 7200) == Bound(2, 4.0)
    assert sweep(2, 16, 2, None, 3600) == Bound(4, 4.0)
    assert sweep(1, 3, 8, None, 3600) == Bound(3, 3.0)
    assert sweep(1, 16, 2, None, None) == Bound(2, None)


def test_parts_add_up_and_one_without_a_bound_has_none() -> None:
    """Of a pipeline."""
    assert Bound(1, 2.0) + Bound(3, 4.0) == Bound(4, 6.0)
    assert Bound(1, 2.0) + Bound(3, None) == Bound(4, None)
