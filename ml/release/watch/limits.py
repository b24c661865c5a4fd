"""Read watch.yml: the limits from which a difference is a breach; the defaults need no file."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ml.core import documents, settings
from ml.core.errors import Problem, UserError
from ml.core.settings import CLOSED, SchemaVersion
from policies.promotion import policy

FILE = "watch.yml"

Positive = Annotated[float, Field(gt=0, lt=1e9)]


@dataclass(frozen=True)
class Limits:
    """The smallest differences from the reference that are a breach."""

    __pydantic_config__ = CLOSED

    alpha: Annotated[float, Field(gt=0, le=0.5)] = 0.01  # chance of a false alarm per report
    min_rows: Annotated[int, Field(ge=20, lt=10**9)] = 50  # fewer rows are not judged
    distance: Positive = 0.15  # Kolmogorov-Smirnov distance of numbers, 0 to 1
    psi: Positive = 0.25  # population stability index of categories
    missing: Positive = 0.05  # added share of rows without a value
    loss: Positive = 0.05  # added mean loss of labelled responses: 0 or 1, or the absolute error
    ignore: tuple[str, ...] = ()  # columns that are not compared


@dataclass(frozen=True, kw_only=True)
class _File(Limits):
    schema_version: SchemaVersion


def read(folder: Path) -> Limits:
    """Return the limits of a project's folder.

    Raises UserError with every setting that is invalid, or looser than the organisation policy in
    policies/promotion/watch.yml.
    """
    path = folder / FILE
    if not path.is_file():
        return Limits()
    document = documents.read(path)
    file = settings.read(_File, document)
    limits = Limits(**{field.name: getattr(file, field.name) for field in fields(Limits)})
    values = {**vars(limits), "ignore": len(limits.ignore)}
    looser = [
        Problem(
            "watch-looser-than-policy",
            f"`{name}` is {values[name]}",
            allowed,
            "a project may only tighten the organisation policy in policies/promotion/watch.yml",
            document.place(name),
        )
        for name, allowed in policy.load(policy.WATCH).looser(values)
    ]
    if looser:
        raise UserError(*looser)
    return limits
