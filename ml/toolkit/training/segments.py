"""Train boosted trees in segments, so that an interrupted training gives the same model.

LightGBM and XGBoost can continue a model, but restart their random number generator. With bagging,
feature_fraction, goss, dart or subsample, the resumed trees would therefore differ. So every
training restarts after the same rounds, interrupted or not, with a seed that depends on the number
of the segment. After each segment, the model and the state of early stopping are written to the
folder of `checkpointed`, from which a restarted training resumes.

A checkpoint is a folder `round-00000200` with the model, state.json and manifest.json, which is
written last. The sha256 of the files is verified before they are loaded. On a mounted container a
rename is not atomic, so only the manifest shows that a checkpoint is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ml.serving.scoring.manifest import ManifestError, verify, write_manifest

# Rounds per segment. Fewer rounds lose less work in an interruption, but take longer:
# `make bench ARGS=segments`.
ROUNDS = 100
# Rounds without improvement after which training stops early.
PATIENCE = 50
# A large stride avoids that trainings with neighbouring seeds share the seed of a segment.
_STRIDE, _SEEDS = 1_000_003, 2**31
_PREFIX, _MODEL, _STATE = "round-", "model", "state.json"
# Number of checkpoints to keep: the previous one too, in case the newest is incomplete.
_KEPT = 2
# Parameters that do not influence the trees; another node may have another number of cores.
_BESIDE = frozenset({"num_threads", "nthread", "n_jobs", "verbosity", "verbose"})

_folder: ContextVar[Path | None] = ContextVar("checkpoints", default=None)


@contextmanager
def checkpointed(folder: Path | None) -> Iterator[None]:
    """Keep the checkpoints of trainings within the context in `folder`; None keeps none.

    `folder` is a job output that survives a restart.
    """
    token = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(token)


def folder_of(identity: Iterable[bytes | memoryview]) -> Path | None:
    """Return the subfolder of `checkpointed`'s folder for one training, or None outside of it.

    `identity` yields the bytes that identify the training: data, settings, seed.
    """
    folder, digest = _folder.get(), hashlib.sha256()
    for content in identity:
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return None if folder is None else folder / digest.hexdigest()[:16]


@dataclass
class Growth:
    """The progress of a training and the state of early stopping."""

    rounds: int = 0
    # Trees per class after each segment; a round that finds no split adds none.
    ends: list[int] = field(default_factory=list)
    best: float | None = None  # metric of the best round
    best_trees: int = 0  # trees after that round
    waited: int = 0  # rounds since that round
    is_over: bool = False

    @property
    def trees(self) -> int:
        """The number of trees after the last completed segment."""
        return self.ends[-1] if self.ends else 0

    def measured(self, trees: int, value: float, larger: bool, patience: int) -> bool:
        """Record the metric of a round; return True if training should stop early.

        `larger` means that larger values are better.
        """
        best = self.best
        if best is None or best != best or (value > best if larger else value < best):
            self.best, self.best_trees, self.waited = value, trees, 0
        else:
            self.waited += 1
            self.is_over = self.waited >= patience
        return self.is_over


class Segments:
    """Iterates over the remaining segments of one training, and writes its checkpoints.

    `identity` comes from `identity_of`; checkpoints of other trainings are ignored. `model` is the
    model after the last segment, b"" before the first.
    """

    def __init__(self, rounds: int, size: int, identity: Iterable[bytes | memoryview]) -> None:
        if rounds < 1 or size < 1:
            raise ValueError(f"{rounds} rounds in segments of {size}: expected at least 1")
        self._total, self._size = rounds, size
        self.growth, self.model = Growth(), b""
        self._place = folder_of([f"{rounds} {size}".encode(), *identity])
        if self._place is not None:
            self._restore()

    def __iter__(self) -> Iterator[int]:
        """Yield the number of rounds of each remaining segment, until the training is over."""
        while not self.are_over:
            yield min(self._size, self._total - self.growth.rounds)

    @property
    def are_over(self) -> bool:
        """Whether the training is over."""
        return self.growth.is_over or self.growth.rounds >= self._total

    @property
    def number(self) -> int:
        """The number of the current segment, from 0."""
        return self.growth.rounds // self._size

    def seeded(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return `parameters` with the seeds of the current segment, unchanged in the first."""
        shift = self.number * _STRIDE
        if not shift:
            return dict(parameters)
        names = {name for name in parameters if name.endswith("seed") or name == "random_state"}
        names -= {"data_random_seed"}  # determines the bins, which all segments share
        seeds = {name: (int(parameters[name]) + shift) % _SEEDS for name in names}
        return {**parameters, **(seeds or {"seed": shift % _SEEDS})}

    def grown(self, model: bytes, trees: int) -> None:
        """Record the model after a segment and its number of trees; write a checkpoint."""
        self.model = model
        self.growth.ends.append(trees)
        self.growth.rounds = min(self.growth.rounds + self._size, self._total)
        if self._place is None:
            return
        checkpoint = self._place / f"{_PREFIX}{self.growth.rounds:08}"
        state = json.dumps(asdict(self.growth))
        try:
            shutil.rmtree(checkpoint, ignore_errors=True)
            checkpoint.mkdir(parents=True)
            _write(checkpoint / _MODEL, model)
            _write(checkpoint / _STATE, state.encode())
            write_manifest(checkpoint)
        except OSError as error:
            shutil.rmtree(checkpoint, ignore_errors=True)
            _warn(
                "no-checkpoint",
                f"{checkpoint}: {error.strerror or error}",
                "training continues without it",
            )
            return
        for older in self._checkpoints()[_KEPT:]:
            shutil.rmtree(older, ignore_errors=True)

    def _restore(self) -> None:
        for checkpoint in self._checkpoints():
            try:
                verify(checkpoint)
                state = json.loads((checkpoint / _STATE).read_text(encoding="utf-8"))
                self.growth, self.model = Growth(**state), (checkpoint / _MODEL).read_bytes()
            except (ManifestError, OSError) as error:
                _warn(
                    "skipped-checkpoint",
                    str(error),
                    "resuming from an earlier one, or from the start",
                )
                continue
            print(f"resumed after {self.growth.rounds} rounds: {checkpoint}", flush=True)
            return

    def _checkpoints(self) -> list[Path]:
        """Return the checkpoint folders, newest first."""
        assert self._place is not None
        return sorted(self._place.glob(f"{_PREFIX}*"), reverse=True)


def identity_of(parameters: Mapping[str, Any], *contents: Any) -> Iterator[bytes | memoryview]:
    """Yield bytes that identify a training: its parameters, and any arrays, texts or numbers."""
    deciding = {name: value for name, value in parameters.items() if name not in _BESIDE}
    yield _text(deciding)
    for content in contents:
        array = np.asarray(content)
        if array.dtype.hasobject or not array.size:
            yield _text(array.tolist())
        else:
            yield f"{array.dtype.str} {array.shape}".encode()
            yield np.ascontiguousarray(array).view(np.uint8).reshape(-1).data


def _text(content: object) -> bytes:
    def name(objective: Any) -> str:  # a custom objective function
        return str(getattr(objective, "__qualname__", objective))

    return json.dumps(content, sort_keys=True, default=name).encode()


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _warn(code: str, actual: str, then: str) -> None:
    print(f"warning[{code}]: {actual}\n  {then}", file=sys.stderr, flush=True)
