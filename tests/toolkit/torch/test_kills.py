"""Trainings that are killed at random moments end with the weights of one never killed."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.shared import once
from tests.toolkit.torch import ranks
from tests.toolkit.torch.training import Settings, differing, train, write_data

# Kills in `make torture`, with `--quick`, and in `make test`; half of them of two processes. They
# are shared by so many cases, so that workers share them too.
KILLS, QUICK, FEW, CASES = 200, 24, 1, 4
SETTINGS = Settings(every=2, pause_s=0.004)


@pytest.fixture(scope="session")
def never_killed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The folder of a training of so many processes that nobody killed; data beside it."""

    def fill(folder: Path) -> None:
        data = write_data(folder / "data")
        for size in (1, 2):
            ranks.run(train, size, folder / f"logs-{size}", folder / str(size), data, SETTINGS)

    folder = once(tmp_path_factory, "never-killed", fill)
    return lambda size: folder / str(size)


@pytest.mark.torture
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    "case", [0, *(pytest.param(n, marks=pytest.mark.torture(only=True)) for n in range(1, CASES))]
)
def test_killed_anywhere_it_ends_with_the_same_weights(
    never_killed: Callable[[int], Path],
    tmp_path: Path,
    torture: bool,
    size: int,
    case: int,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    """SIGTERM and SIGKILL at random moments, also before any change of a file, and at any rank."""
    quick = request.config.getoption("--quick")
    wanted = max(1, (QUICK if quick else KILLS) // (2 * CASES)) if torture else FEW
    draw = random.Random(1000 * size + case)
    whole = never_killed(size)
    data = whole.parent / "data"
    killed: dict[str, int] = {}
    different: list[str] = []
    number = 0
    while sum(killed.values()) < wanted:
        number += 1
        folder = tmp_path / str(number)
        ended = False
        while not ended:
            way = draw.choice(["SIGTERM", "SIGKILL", "in a write"])
            if sum(killed.values()) >= wanted:
                way = ""
            changes = draw.randrange(1, 150) if way == "in a write" else 0
            settings = Settings(every=2, pause_s=SETTINGS.pause_s, dies_at=changes)
            training = ranks.start(train, size, tmp_path / f"logs-{number}", folder, data, settings)
            if way.startswith("SIG"):
                time.sleep(draw.uniform(0.05, 1.0))
                some = [] if draw.random() < 0.5 else [draw.randrange(size)]
                training.signal(getattr(signal, way), *some)
            codes = training.wait()
            ended = codes == [0] * size
            if not ended:
                assert any(code in (143, -signal.SIGKILL, -signal.SIGTERM) for code in codes), (
                    training.text()
                )
                killed[way] = killed.get(way, 0) + 1
        different += differing(folder, whole)
    record_property("kills", {**killed, "different": len(different)})
    assert different == []
