"""The floor of every canary outside of the environment `local`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ml.core import documents, settings

FLOOR = Path(__file__).with_name("canary.yml")
Number = Annotated[float, Field(ge=0)]
# The value of a setting: of several numbers each is held against the bound.
Value = float | Sequence[float]


@dataclass(frozen=True)
class Floor:
    """The bound of each setting on the side that loosens; `no_bound` says why a setting has none.

    A setting is named with dots, as `tolerances.errors`.
    """

    __pydantic_config__ = settings.CLOSED

    schema_version: Literal[1]
    at_most: Mapping[str, Number]
    at_least: Mapping[str, Number]
    no_bound: Mapping[str, str]

    def looser(self, values: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
        """The settings that are looser than the floor, each with what is allowed."""
        for name, bound in self.at_most.items():
            if not all(value <= bound for value in _numbers(values[name])):
                yield name, f"at most the floor's {bound:g}"
        for name, bound in self.at_least.items():
            if not all(value >= bound for value in _numbers(values[name])):
                yield name, f"at least the floor's {bound:g}"


def load(path: Path | None = None) -> Floor:
    """The floor; raises Refused with every problem of the file."""
    path = path or FLOOR
    return settings.read(Floor, documents.read(path))


def _numbers(value: Value) -> Sequence[float]:
    return value if isinstance(value, Sequence) else (value,)
