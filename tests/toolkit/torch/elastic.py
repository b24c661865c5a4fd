"""A training that torchrun starts, and what it leaves: which rows each step had, who saved what.

    torchrun --nnodes 1:2 … elastic.py FOLDER DATA EPOCHS PAUSE_S

The model has neither dropout nor BatchNorm: worlds of other sizes differ by rounding alone.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ml.toolkit.torch.checkpoints import Checkpoints
from ml.toolkit.torch.distributed import distributed
from ml.toolkit.torch.loading import Batches, Shards, write_shards
from ml.toolkit.torch.updates import Updates

BATCH, EVERY = 32, 2


def write_rows(folder: Path, rows: int = 320) -> Path:
    """Numbered rows whose class is the largest of their first three numbers."""
    features = np.random.default_rng(0).normal(size=(rows, 8)).astype(np.float32)
    labels, numbers = features[:, :3].argmax(1), np.arange(rows)
    write_shards(folder, [{"features": features, "label": labels, "row": numbers}])
    return folder


class _Writer:
    """The generation that saved a checkpoint, as a part of its state."""

    def __init__(self) -> None:
        self.number = self.restored = 0

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.restored = int(state["number"])


def main(folder: Path, data: Path, epochs: int, pause_s: float) -> None:
    """Train; append to FOLDER/journal.jsonl what this process did, and leave `loss` there."""
    with distributed(seed=5, timeout_s=60) as world:
        model = world.wrap(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
        optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
        updates = Updates(world, model, optimiser)
        batches = Batches(Shards(data), world, batch=BATCH, seed=3)
        writer = _Writer()
        state = {"model": model, "optimiser": optimiser, "batches": batches, "writer": writer}
        with Checkpoints(folder, world, state, every_steps=EVERY, events=None) as checkpoints:
            writer.number = checkpoints._generation.number

            def note(**entry: Any) -> None:
                entry |= {"generation": writer.number, "rank": world.rank, "size": world.size}
                with (folder / "journal.jsonl").open("a") as journal:
                    journal.write(json.dumps(entry) + "\n")

            step = checkpoints.restore()
            note(began=step, of=writer.restored)
            while step < epochs * len(batches):
                for micro_batches in batches:
                    (batch,) = micro_batches
                    with updates.micro_batch(last=True):
                        scores = model(batch["features"])
                        loss = nn.functional.cross_entropy(scores, batch["label"], reduction="sum")
                        updates.backward(loss, len(scores))
                    update = updates.step()
                    step += 1
                    note(step=step, rows=batch["row"].tolist(), loss=update.loss)
                    time.sleep(pause_s)
                    checkpoints.after_step(step)
                    if step % EVERY == 0:
                        checkpoints.finish()
                        note(saved=step)
            checkpoints.save(step)


@dataclass(frozen=True)
class Account:
    """What the journal of a training says."""

    sizes: tuple[int, ...]  # of the worlds, in the order of their generations
    losses: tuple[float, ...]  # of each step, by the world that did it last
    repeated: int  # rows of steps that more than one world has done


def account(folder: Path, data: Path, epochs: int) -> Account:
    """Read the journal. AssertionError where a row is missing or twice in a step, or where a
    generation saved after a newer one had begun.
    """
    lines = [*entries(folder / "journal.jsonl")]
    begins = {of["generation"]: of for of in lines if "began" in of}
    saved = [of for of in lines if "saved" in of]
    for number, begin in begins.items():
        later = [of for of in saved if of["generation"] < number and of["saved"] > begin["began"]]
        assert not later, f"generation {number} began at step {begin['began']}: {later}"
    rows: dict[int, dict[int, list[int]]] = {}
    losses: dict[tuple[int, int], float] = {}
    for of in lines:
        if "step" in of:
            rows.setdefault(of["step"], {}).setdefault(of["generation"], []).extend(of["rows"])
            losses[of["step"], of["generation"]] = of["loss"]
    total = len(Shards(data))
    per_epoch = -(-total // BATCH)
    assert sorted(rows) == list(range(1, epochs * per_epoch + 1))
    for epoch in range(epochs):
        steps = range(epoch * per_epoch + 1, (epoch + 1) * per_epoch + 1)
        seen = [row for step in steps for row in rows[step][max(rows[step])]]
        assert sorted(seen) == list(range(total)), f"epoch {epoch}"
    return Account(
        tuple(begins[number]["size"] for number in sorted(begins)),
        tuple(losses[step, max(rows[step])] for step in sorted(rows)),
        sum(len(of) for by in rows.values() for number, of in by.items() if number < max(by)),
    )


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """The entries of a journal; a kill may have cut the last one."""
    for line in path.read_text().splitlines():
        with suppress(ValueError):
            yield json.loads(line)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
