"""How long a checkpoint of 403 MB keeps a training from going on, and what it costs an epoch.

The same training (33.6 million weights, AdamW) with torch.save, with DCP's async_save and its
default stager, with ours, and with none. Blocked is the time inside calls of the checkpoint; the
cost of an epoch also has what the threads behind them take from the training.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from ml.toolkit.torch.checkpoints import Checkpoints
from ml.toolkit.torch.distributed import World, distributed
from ml.toolkit.torch.updates import Updates

WIDTH, LAYERS, ROWS = 2048, 8, 128
Save = Callable[[int], None]


class Training:
    """Steps of a wide network on random rows."""

    def __init__(self, world: World) -> None:
        layers: list[nn.Module] = []
        for _ in range(LAYERS):
            layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
        self.model = world.wrap(nn.Sequential(*layers))
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.updates = Updates(world, self.model, self.optimiser)
        self.rows = torch.randn(ROWS, WIDTH)
        self.state = {"model": self.model, "optimiser": self.optimiser}
        self.step()

    def step(self) -> None:
        """Forward, backward and the optimiser's step."""
        with self.updates.micro_batch(last=True):
            self.updates.backward(self.model(self.rows).square().sum(), ROWS)
        self.updates.step()

    def megabytes(self) -> float:
        """What a checkpoint of it holds."""
        states = [of for state in self.optimiser.state.values() for of in state.values()]
        return sum(of.nbytes for of in [*self.model.parameters(), *states]) / 1e6

    def epoch(self, steps: int, save: Save | None) -> tuple[float, float]:
        """Seconds of an epoch of `steps` with a checkpoint in its middle, and those blocked."""
        blocked = 0.0
        began = time.perf_counter()
        for number in range(steps):
            if save is not None and number == steps // 2:
                before = time.perf_counter()
                save(number)
                blocked = time.perf_counter() - before
            self.step()
        return time.perf_counter() - began, blocked


def by_torch(training: Training, folder: Path) -> Save:
    """torch.save to a temporary file, and a rename."""

    def save(number: int) -> None:
        state = {name: of.state_dict() for name, of in training.state.items()}
        torch.save(state, folder / "new.pt")
        (folder / "new.pt").replace(folder / "checkpoint.pt")

    return save


@contextmanager
def by_dcp(training: Training, folder: Path) -> Iterator[Save]:
    """DCP's async_save with its default stager, kept from one checkpoint to the next."""
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    stager = DefaultStager(StagingOptions(False, False, False, False))
    last: list[dcp.AsyncSaveResponse] = []

    def save(number: int) -> None:
        state = {name: of.state_dict() for name, of in training.state.items()}
        for response in last:
            response.upload_completion.result()  # type: ignore[attr-defined]
        response = dcp.async_save(state, checkpoint_id=folder, async_stager=stager)
        last[:] = [response] if hasattr(response, "upload_completion") else []
        if not last:
            futures.append(response)

    futures: list[object] = []
    yield save
    for future in futures:
        future.result()  # type: ignore[attr-defined]
    stager.close()


def main(quick: bool) -> float:
    """Print the medians; the ratio is torch.save's blocked time over ours (goal: at least 60)."""
    warnings.simplefilter("ignore")
    steps, rounds = (12, 2) if quick else (40, 4)
    rows: dict[str, list[tuple[float, float]]] = {}
    with distributed(seed=1) as world, tempfile.TemporaryDirectory() as temporary:
        training = Training(world)
        folder = Path(temporary)
        with (
            Checkpoints(folder / "ours", world, training.state, keep_last=1, events=None) as ours,
            by_dcp(training, folder / "dcp") as dcp_save,
        ):
            blocked = 0.0

            def save(number: int) -> None:
                ours.after(number + 1, metric=0.0)

            ways: dict[str, Save | None] = {
                "none": None,
                "torch.save": by_torch(training, folder),
                "DCP async_save": dcp_save,
                "ours": save,
            }
            for turn in range(rounds + 1):
                for name, way in ways.items():
                    before = ours.blocked_s
                    seconds, blocked = training.epoch(steps, way)
                    if name == "ours":
                        blocked = ours.blocked_s - before
                    if turn:  # the first fills buffers and caches
                        rows.setdefault(name, []).append((seconds, blocked))
                    ours.finish()
                    shutil.rmtree(folder / "old", ignore_errors=True)
        megabytes = training.megabytes()
    print(
        f"{megabytes:.0f} MB, an epoch of {steps} steps, {rounds} rounds, {torch.get_num_threads()} threads"
    )
    usual = statistics.median(seconds for seconds, _ in rows["none"])
    print(f"{'':16} {'blocked ms':>10} {'epoch s':>9} {'cost of the epoch':>18}")
    medians = {}
    for name, of in rows.items():
        seconds, blocked = (statistics.median(column) for column in zip(*of, strict=True))
        medians[name] = blocked
        print(f"{name:16} {blocked * 1e3:10.1f} {seconds:9.2f} {seconds / usual - 1:18.1%}")
    return medians["torch.save"] / medians["ours"]
