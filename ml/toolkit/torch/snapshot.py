"""Snapshots of a training's state: tensors by name, and other state as JSON.

JSON instead of pickle, so that loading runs no code.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Set
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.tensor import DTensor

Facts = Any  # a JSON value


def pack(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Facts:
    """Convert `value` to JSON, with its tensors stored in `tensors` by path.

    Supports mappings, lists, tuples, numbers, texts, None and tensors. Raises TypeError, with the
    path, for anything else.
    """
    if isinstance(value, torch.Tensor):
        tensors[path] = value
        return {"$tensor": path}
    if isinstance(value, Mapping):
        items = {key: pack(item, f"{path}/{key}", tensors) for key, item in value.items()}
        if all(isinstance(key, str) and not key.startswith("$") for key in items):
            return items
        return {"$pairs": [[pack(key, path, tensors), item] for key, item in items.items()]}
    if isinstance(value, list | tuple):
        listed = [pack(item, f"{path}/{number}", tensors) for number, item in enumerate(value)]
        return listed if isinstance(value, list) else {"$tuple": listed}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{path} is a {type(value).__name__}, which a checkpoint cannot store")


def unpack(facts: Facts, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Invert `pack`: return the value of `facts` with the tensors of `tensors`."""
    if isinstance(facts, list):
        return [unpack(item, tensors) for item in facts]
    if not isinstance(facts, dict):
        return facts
    if facts.keys() == {"$tensor"}:
        return tensors[facts["$tensor"]]
    if facts.keys() == {"$pairs"}:
        return {unpack(key, tensors): unpack(item, tensors) for key, item in facts["$pairs"]}
    if facts.keys() == {"$tuple"}:
        return tuple(unpack(item, tensors) for item in facts["$tuple"])
    return {key: unpack(item, tensors) for key, item in facts.items()}


def names(facts: Facts) -> Iterator[str]:
    """Yield the names of the tensors that packed facts refer to."""
    if isinstance(facts, list):
        for item in facts:
            yield from names(item)
    elif isinstance(facts, dict):
        if facts.keys() == {"$tensor"}:
            yield facts["$tensor"]
        else:
            yield from names(list(facts.values()))


def random_state() -> Facts:
    """Return the states of this process's random generators: Python, numpy, torch and CUDA."""
    version, numbers, gauss = random.getstate()
    kind, words, *rest = np.random.get_state(legacy=True)
    state = {
        "python": [version, list(numbers), gauss],
        "numpy": [kind, np.asarray(words).tolist(), *rest],
        "torch": torch.get_rng_state().tolist(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state().tolist()
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restore a `random_state`; CUDA's only if both processes have a GPU."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    np.random.set_state(tuple(state["numpy"]))
    torch.set_rng_state(torch.tensor(state["torch"], dtype=torch.uint8))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.tensor(state["cuda"], dtype=torch.uint8))


class Stager(AsyncStager):  # type: ignore[misc]
    """Copies a state into CPU buffers, which are reused to avoid page faults of new memory.

    `stage` copies the tensors named in `volatile` synchronously and the others in a thread. The
    others may change once the future is done.
    """

    def __init__(self) -> None:
        self.volatile: Set[str] = frozenset()
        self._buffers: dict[str, torch.Tensor] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint snapshot")
        self._stream = torch.cuda.Stream() if torch.cuda.is_available() else None

    def stage(self, state_dict: dict[str, torch.Tensor]) -> Future[dict[str, torch.Tensor]]:
        """Start to copy the state; return a future of the copy."""
        for name in self.volatile & state_dict.keys():
            self._copy(name, state_dict[name])
        begun = torch.cuda.current_stream().record_event() if self._stream is not None else None
        return self._thread.submit(self._rest, dict(state_dict), begun)

    def close(self) -> None:
        """End the thread and release the buffers."""
        self._thread.shutdown()
        self._buffers.clear()

    def _rest(
        self, state: Mapping[str, torch.Tensor], begun: torch.cuda.Event | None
    ) -> dict[str, torch.Tensor]:
        with torch.cuda.stream(self._stream):  # no effect without a GPU
            if self._stream is not None and begun is not None:
                self._stream.wait_event(begun)
            for name in state.keys() - self.volatile:
                self._copy(name, state[name])
        if self._stream is not None:
            self._stream.synchronize()
        return {
            name: DTensor(self._buffers[name], value._spec, requires_grad=False)
            if isinstance(value, DTensor)
            else self._buffers[name]
            for name, value in state.items()
        }

    def _copy(self, name: str, tensor: torch.Tensor) -> None:
        """Copy this process's shard of a tensor into its buffer."""
        tensor = tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor.detach()
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            pinned = tensor.device.type == "cuda"
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
            self._buffers[name] = buffer
        buffer.copy_(tensor, non_blocking=name not in self.volatile)
