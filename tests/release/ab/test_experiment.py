"""ml.release.ab.experiment: what may be declared, and who gets B."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from scipy.stats import norm

from ml.backends.local.serving.router.routes import RouteTable
from ml.core.errors import UserError
from ml.release.ab import experiment
from ml.release.ab.experiment import Experiment
from tests.local import BACKEND
from tests.release.ab.conftest import A

Begun = Callable[..., Experiment]


def test_what_was_begun_is_found_again(begun: Begun) -> None:
    """As it was, to the last field; the name cannot be used twice."""
    made = begun()
    assert experiment.find("wording") == made and experiment.every() == ["wording"]
    with pytest.raises(UserError, match="ab-exists"):
        begun()


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"name": "No Name"}, "bad-name"),
        ({"name": "../up"}, "bad-name"),
        ({"share": 0}, "ab-setting"),
        ({"share": 100}, "ab-setting"),
        ({"effect": 0}, "ab-setting"),
        ({"effect": float("nan")}, "ab-setting"),
        ({"alpha": 0}, "ab-setting"),
        ({"power": 1.0}, "ab-setting"),
        ({"baseline": None}, "ab-setting"),
        ({"baseline": 1.0}, "ab-setting"),
        ({"effect": 1e-300}, "ab-setting"),
        ({"outcome": "continuous", "baseline": None, "deviation": 1e308}, "ab-setting"),
        ({"outcome": "continuous"}, "ab-setting"),
        ({"outcome": "continuous", "baseline": None, "deviation": float("inf")}, "ab-setting"),
    ],
)
def test_what_cannot_be_an_experiment_is_refused(
    begun: Begun, settings: dict[str, Any], code: str
) -> None:
    """Before anything is written."""
    with pytest.raises(UserError, match=code):
        begun(**settings)
    assert experiment.every() == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("share", "50"), ("share", None), ("share", 200), ("share", 50.5), ("salt", 5)),
        *(("alpha", "x"), ("alpha", 0), ("effect", 0), ("effect", float("nan")), ("power", 2)),
        *(("baseline", 5), ("deviation", 1.0), ("outcome", "ternary"), ("goal", 1)),
        *(("a", {}), ("b", None), ("endpoint", 5), ("name", "another"), ("name", "../up")),
        *(("schema_version", 2), ("more", 1)),
    ],
)
def test_a_file_that_was_edited_is_told(begun: Begun, field: str, value: object) -> None:
    """With its path, before anything is made of it."""
    path = begun().folder / "experiment.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(UserError, match="ab-unreadable") as raised:
        experiment.find("wording")
    assert str(path) in raised.value.problems[0].actual


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 99999])
def test_a_file_that_is_none_is_told(begun: Begun, text: str) -> None:
    """Torn, empty, of another kind, nested without end."""
    path = begun().folder / "experiment.json"
    path.write_text(text)
    with pytest.raises(UserError, match="ab-unreadable"):
        experiment.find("wording")


def test_a_version_is_not_compared_with_itself() -> None:
    """The same files would be two names for one thing."""
    with pytest.raises(UserError, match="ab-same"):
        experiment.declare(
            BACKEND, *("e", A, A), environment="local", outcome="binary", effect=0.1, baseline=0.4
        )


def test_an_unknown_experiment_is_told_with_the_known_ones(begun: Begun) -> None:
    """And a file that is no experiment is not taken for one."""
    begun()
    with pytest.raises(UserError, match="one of: wording"):
        experiment.find("words")
    (experiment.folder("wording") / "experiment.json").write_text('{"schema_version": 1}')
    with pytest.raises(UserError, match="ab-unreadable"):
        experiment.find("wording")


def test_who_is_assigned_b_is_routed_to_b(begun: Begun) -> None:
    """The router's own choice for every key, at a share that is no half."""
    made = begun(share=30)
    routes = RouteTable(
        "a", {"b": 2, "a": 1}, {"b": 30, "a": 70}, {}, experiment="e", salt=made.salt
    )
    keys = [f"customer-{number}" for number in range(2000)]
    arms = [made.arm(made.ticket(key)) for key in keys]
    assert arms == [routes.pick(key, None).upper() for key in keys]  # type: ignore[arg-type]
    assert 500 <= arms.count("B") <= 700


def test_two_experiments_deal_the_keys_out_anew(begun: Begun) -> None:
    """Those who had B in one have it in the other no more often than anybody."""
    one, other = begun("one"), begun("other")
    keys = [f"customer-{number}" for number in range(2000)]
    both = sum(one.arm(one.ticket(key)) == other.arm(other.ticket(key)) for key in keys)
    assert 880 <= both <= 1120


@pytest.mark.parametrize(("baseline", "effect"), [(0.1, 0.02), (0.9, 0.02), (0.02, 0.05)])
def test_a_rate_and_what_is_left_of_it_take_as_many_outcomes(
    begun: Begun, baseline: float, effect: float
) -> None:
    """Counting who bought or who did not is one experiment. The figure is the textbook's for the
    larger spread of B's: (z + z)² (p q + p' q') / effect² of either (Fleiss, Levin, Paik 2003).
    """
    one, other = begun("one"), begun("other")
    one = replace(one, baseline=baseline, effect=effect)
    other = replace(other, baseline=1 - baseline, effect=effect)
    assert one.planned == pytest.approx(other.planned, abs=1)
    for made in (one, other):
        low = min(baseline, 1 - baseline)
        spread = low * (1 - low) + (low + effect) * (1 - low - effect)
        textbook = 2 * (norm.ppf(0.975) + norm.ppf(0.8)) ** 2 * spread / effect**2
        assert made.fixed_sample_size == pytest.approx(textbook, abs=1)
