"""Two at once, each proposing its model and applying, on a machine whose every effect takes time.

`make bench ARGS="races"` does the same with real jobs, models and servers.
"""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ml.backends.local.serving import endpoint
from ml.release import audit
from ml.release.declaration import desired_state
from ml.release.promotion import propose as proposing
from ml.release.rollout import apply as applying
from tests.local import BACKEND, LOG
from tests.release.rollout.test_states import NAME, Machine, install

RACES, FEW = 50, 12  # in `make torture`, and in `make test`


@dataclass
class Slow(Machine):
    """Every effect waits a little, so that each race takes another order."""

    draw: random.Random = field(default_factory=random.Random)
    effects: int = 0

    def effect(self, writes: bool = False) -> None:
        self.effects += 1
        time.sleep(self.draw.random() * 0.002)


def promote(number: str) -> str:
    """What a person or a pipeline does with a model; what the apply came to."""
    proposing.propose(BACKEND, NAME, number)
    return applying.apply(BACKEND, NAME, "local", "ana").outcome


@pytest.mark.slow
@pytest.mark.torture
@pytest.mark.attack("Two proposals and applies race")
def test_of_two_at_once_the_better_ends_as_champion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torture: bool
) -> None:
    """Every time, whoever begins, and the worse one is never put in its place."""
    orders = set()
    races = RACES if torture else FEW
    for race in range(races):
        monkeypatch.setenv("MLOPS_HOME", str(tmp_path / str(race)))
        machine = Slow(draw=random.Random(race))
        install(monkeypatch, machine)
        assert promote("1") == "applied"
        first, second = ("2", "5") if race % 2 else ("5", "2")
        # From at once to after the last effect of the first.
        until = machine.effects + 40 * (race // 2) // (races // 2 - 1)
        with ThreadPoolExecutor(2) as both:
            one = both.submit(promote, first)
            while machine.effects < until and not one.done():
                time.sleep(0.0005)
            other = both.submit(promote, second)
        # An approval is of what was declared when it was given.
        assert {one.result(), other.result()} <= {"applied", "unchanged", "rejected"}
        state, entry = endpoint.live(NAME), desired_state.read(BACKEND, NAME, "local")
        assert state and state.deployment.version == machine.champion == "5"
        assert entry and entry.version == "5"
        applied = [str(one["version"]) for one in audit.verify(LOG) if one["event"] == "applied"]
        assert applied in (["1", "5"], ["1", "2", "5"])
        orders.add((first, *applied))
    assert {one[0] for one in orders} == {"2", "5"} and ("2", "1", "2", "5") in orders
