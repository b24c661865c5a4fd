"""What counts as a breach: the project's watch.yml, or what holds without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ml.core import documents, repository
from ml.core.errors import Problem, Refused, nearest
from policies.promotion import watch as floor

FILE = "watch.yml"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Limits:
    """`alpha` is the chance of a false alarm of one report; fewer than `min_rows` rows are not
    judged. A breach is at least so large: `distance` between numbers (Kolmogorov and Smirnov's, 0
    to 1), `psi` between categories, `missing` more of the rows, `loss` more per answer whose right
    one is known. `ignore` names columns that are not compared.
    """

    alpha: float = 0.01
    min_rows: int = 50
    distance: float = 0.15
    psi: float = 0.25
    missing: float = 0.05
    loss: float = 0.05
    ignore: Sequence[str] = ()


def read(folder: Path) -> Limits:
    """The limits of a project's folder; raises Refused with every line that is wrong, or looser
    than the floor in policies/promotion/watch.yml.
    """
    path = folder / FILE
    if not path.is_file():
        return Limits()
    document = documents.read(path, repository.shown(path))
    try:
        made = _made(document.data)
    except _Wrong as wrong:
        names = ", ".join(field.name for field in fields(Limits))
        place = document.place(*filter(None, [wrong.name]))
        expected = wrong.expected or f"schema_version {SCHEMA_VERSION}; {names}"
        raise Refused(Problem("watch-file", wrong.found, expected, wrong.hint, place)) from None
    stated = {**asdict(made), "ignore": len(made.ignore)}
    looser = [
        Problem(
            "watch-looser-than-floor",
            f"`{name}` is {stated[name]}",
            allowed,
            "a project only tightens; policies/promotion/watch.yml is everybody's",
            document.place(name),
        )
        for name, allowed in floor.load().weaker(stated)
    ]
    if looser:
        raise Refused(*looser)
    return made


class _Wrong(Exception):
    def __init__(self, name: str, found: str, expected: str = "", hint: str = "") -> None:
        self.name = name
        self.found = found
        self.expected = expected
        self.hint = hint


def _made(document: Any) -> Limits:
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
        raise _Wrong("", f"schema_version is not {SCHEMA_VERSION}")
    given = {name: value for name, value in document.items() if name != "schema_version"}
    known = [field.name for field in fields(Limits)]
    for name in given:
        if name not in known:
            near = nearest(str(name), known)
            hint = f"did you mean `{near[0]}`?" if near else ""
            raise _Wrong(str(name), f"`{name}`", ", ".join(known), hint)
    ignored = given.pop("ignore", [])
    if not isinstance(ignored, list) or not all(isinstance(name, str) for name in ignored):
        raise _Wrong("ignore", f"`ignore` is {ignored}", "a list of columns")
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise _Wrong(name, f"`{name}` is {value}", "a number above 0")
    limits = Limits(**given, ignore=tuple(ignored))
    if limits.alpha > 0.5:
        raise _Wrong("alpha", f"`alpha` is {limits.alpha}", "at most 0.5")
    if limits.min_rows != int(limits.min_rows) or limits.min_rows < 20:
        raise _Wrong(
            "min_rows", f"`min_rows` is {limits.min_rows}", "a whole number of at least 20"
        )
    return limits
