"""A program that failed, in its own words and at its own line: without the SDK's."""

from __future__ import annotations

import re
from pathlib import Path

from ml.core.errors import Place, Problem

_FRAME = re.compile(r' +File "(.+)", line (\d+)')
# Settings that the program refuses name their own line.
_REFUSED = f"{Problem.__module__}.Refused: "


def failure(stack: str, code: int, told: str, root: Path) -> Problem:
    """What `told`, the program's standard error, comes to; `root` is where its code lies."""
    lines = told.strip().splitlines()
    frames = {at: found for at, line in enumerate(lines) if (found := _FRAME.match(line))}
    last = max(frames, default=-1)
    said = [line for line in lines[last + 1 :] if frames == {} or not line.startswith(" ")]
    reason = " ".join(line.strip() for line in (said if frames else said[-1:]))
    own = [
        Place(str(Path(path).relative_to(root)), int(line))
        for path, line in (found.groups() for found in frames.values())
        if Path(path).is_relative_to(root / "infra")
    ]
    reason = reason[:1500] or "it said nothing"
    return Problem(
        "program-failed",
        f"the program of `{stack}` ended with {code}: {reason.removeprefix(_REFUSED)}",
        "a program that runs",
        "mend what it names",
        own[-1] if own and not reason.startswith(_REFUSED) else None,
    )
