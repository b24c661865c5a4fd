"""Shards of the coming steps, read by a thread before the steps need them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

_Shard = dict[str, NDArray[Any]]


class ReadAhead:
    """Reads shards in the order in which steps need them, and holds at most `most` in memory.

    shards: the numbers of the shards of each step. A shard is read once, and leaves after the last
    step that needs it. ValueError where a step needs more of them than `most`.
    """

    def __init__(
        self, read: Callable[[int], _Shard], shards: Sequence[NDArray[np.int64]], most: int
    ) -> None:
        self._read, self._shards, self._most = read, shards, most
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for step, numbers in enumerate(shards):
            for number in numbers.tolist():
                first.setdefault(number, step)
                last[number] = step
        # A shard between two steps that need it stays: this bound is what never waits for itself.
        change = np.zeros(len(shards) + 1, np.int64)
        np.add.at(change, [*first.values()], 1)
        np.add.at(change, [step + 1 for step in last.values()], -1)
        needed = int(np.cumsum(change).max())
        if needed > most:
            raise ValueError(
                f"{most} shards in memory, expected at least {needed}, which a step needs at once: "
                "raise read_ahead, or set `block` to the rows of a shard and lower `blocks`"
            )
        self._last, self._coming = last, deque(first)
        self._held: dict[int, Future[_Shard]] = {}
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="reading")
        self._fill()

    @property
    def held(self) -> Mapping[int, Future[_Shard]]:
        """The shards in memory, or on the way there; what the reader raised comes from them."""
        return self._held

    def has(self, step: int) -> bool:
        """Whether all shards of a step are held."""
        return all(number in self._held for number in self._shards[step].tolist())

    def release(self, step: int) -> None:
        """Drop the shards that no later step needs, and read others in their place."""
        for number in self._shards[step].tolist():
            if self._last[number] == step:
                del self._held[number]
        self._fill()

    def close(self) -> None:
        """End the thread after the shard that it reads."""
        self._reader.shutdown(cancel_futures=True)

    def _fill(self) -> None:
        while self._coming and len(self._held) < self._most:
            number = self._coming.popleft()
            self._held[number] = self._reader.submit(self._read, number)
