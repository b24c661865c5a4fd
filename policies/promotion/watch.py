"""The floor of every project's watch.yml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ml.core import documents, settings

FLOOR = Path(__file__).with_name("watch.yml")
Number = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Floor:
    """The lowest `alpha` that a project may set, and the highest value of each other setting.

    `ignore` is a number of columns.
    """

    __pydantic_config__ = settings.CLOSED

    schema_version: Literal[1]
    alpha: Number
    min_rows: Count
    distance: Number
    psi: Number
    missing: Number
    loss: Number
    ignore: Count

    def weaker(self, limits: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        """The settings that are looser than the floor, each with what is allowed."""
        for name, value in limits.items():
            bound = getattr(self, name)
            if name == "alpha":
                if not value >= bound:
                    yield name, f"at least the floor's {bound:g}"
            elif not value <= bound:
                columns = " columns" if name == "ignore" else ""
                yield name, f"at most the floor's {bound:g}{columns}"


def load(path: Path = FLOOR) -> Floor:
    """The floor; raises Refused with every problem of the file."""
    return settings.read(Floor, documents.read(path))
