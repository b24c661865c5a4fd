"""What training and test share, counted again from identifiers kept with the evidence, hashed."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator
from pathlib import Path

from ml.toolkit.leakage import COLUMNS, IDENTIFIERS, SHARED, TEST, TRAINING
from policies.promotion.evidence import Evidence


def disagreements(evidence: Evidence, folder: Path) -> tuple[str, ...]:
    """What the evidence states and the identifiers in the folder do not bear out; () when all of it
    follows, and of evidence that keeps none, which the gate `leakage` refuses.
    """
    if evidence.identifiers is None:
        return ()
    try:
        content = (folder / IDENTIFIERS).read_bytes()
    except OSError as error:
        return (str(error),)
    if hashlib.sha256(content).hexdigest() != evidence.identifiers:
        return (f"{IDENTIFIERS} is not the file whose sha256 the evidence states",)
    return tuple(_differing(evidence, content.decode(errors="replace")))


def _differing(evidence: Evidence, text: str) -> Iterator[str]:
    rows = csv.reader(io.StringIO(text))
    if tuple(next(rows, ())) != COLUMNS:
        yield f"{IDENTIFIERS} has not the columns {COLUMNS}"
        return
    training: dict[str, set[str]] = {}
    test: dict[str, list[str]] = {}
    for number, row in enumerate(rows, start=2):
        match row:
            case [of, str(part), hashed] if part == TRAINING:
                training.setdefault(of, set()).add(hashed)
            case [of, str(part), hashed] if part == TEST:
                test.setdefault(of, []).append(hashed)
            case _:
                yield f"{IDENTIFIERS}:{number}: {row} is none"
    for check in evidence.leakage:
        if check.check != SHARED:
            continue
        name, trained = check.of or "", training.get(check.of or "", set())
        tested = test.get(name, [])
        both = sum(hashed in trained for hashed in tested)
        if not trained or not tested:
            yield f"{SHARED} {name}: {IDENTIFIERS} has none of training, or none of the test"
        elif (check.value, check.units) != (both, len(tested)):
            stated = f"{check.value} of {check.units}"
            yield f"{SHARED} {name} states {stated}, recomputed {both} of {len(tested)}"
