"""The audit log: append-only JSON lines, each holding the hash of the one before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from ml.core import faults, files, home
from ml.core.errors import Exit, Place, Problem, Refused

START = "0" * 64  # what the first line holds in place of a hash before it


def path() -> Path:
    """`audit.jsonl` in the local home."""
    return home.home() / "audit.jsonl"


def append(event: str, details: Mapping[str, object]) -> str:
    """Add a line and return its hash (hex), once it is on the disk.

    Raises Refused when a line there does not verify or the disk is full; the log is then as it was.
    """
    with faults.as_refusals(), files.locked(path().with_suffix(".lock")):
        previous, count = _end()
        line = {
            "number": count + 1,
            "at": datetime.now(UTC).isoformat(),
            "event": event,
            **details,
            "previous": previous,
        }
        line["hash"] = _hash(line)
        # All of it or nothing: half a line would break the chain.
        files.append(path(), (json.dumps(line, sort_keys=True) + "\n").encode(), durable=True)
        return str(line["hash"])


def verify() -> tuple[Mapping[str, object], ...]:
    """Every line, once each follows from the one before; raises Refused naming the first that does
    not. Lines cut off the end leave a sound chain: `holding` finds those.
    """
    lines: list[Mapping[str, object]] = []
    if not path().exists():
        return ()
    previous = START
    *whole, rest = path().read_bytes().split(b"\n")
    for number, text in enumerate(whole, start=1):
        lines.append(_checked(text, number, previous))
        previous = str(lines[-1]["hash"])
    if rest or not whole:
        raise _broken(len(lines) + 1, "the line does not end")
    return tuple(lines)


def holding(hash_: str) -> tuple[Mapping[str, object], ...]:
    """Every line, when one of them has the hash that somebody noted before (hex).

    Raises Refused when a line does not follow, or when none has that hash: lines were cut off the
    end, or the log was written anew.
    """
    lines = verify()
    if hash_ not in [line["hash"] for line in lines]:
        raise _broken(len(lines) + 1, f"no line has the hash {hash_}, which one had before")
    return lines


def _end() -> tuple[str, int]:
    """The hash of the last line and how many there are."""
    if not path().exists():
        return START, 0
    lines = verify()
    return (str(lines[-1]["hash"]), len(lines)) if lines else (START, 0)


def _checked(text: bytes, number: int, previous: str) -> Mapping[str, object]:
    try:
        line = json.loads(text)
        claimed = line["hash"]
        content = {key: value for key, value in line.items() if key != "hash"}
        if line["number"] != number or line["previous"] != previous:
            raise _broken(number, "it does not follow the line before it")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _broken(number, "it cannot be read") from None
    if claimed != _hash(content):
        raise _broken(number, "its content is not what its hash was made from")
    # A key written twice reads as the last of the two, and its hash holds.
    if text != json.dumps(line, sort_keys=True).encode():
        raise _broken(number, "it is not as it was written")
    return dict(line)


def _hash(content: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _broken(number: int, why: str) -> Refused:
    return Refused(
        Problem(
            "audit-broken",
            f"the audit log was changed: {why}",
            "lines that only ever are added to",
            "find out who changed it; keep the file aside before anything is promoted again",
            Place(str(path()), number),
        ),
        exit_code=Exit.GATE_SAID_NO,
    )
