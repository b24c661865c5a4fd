"""`sampling.json`: what a trial was given and where that came from, kept beside its record.

It is written before the trial's process starts, so that a trial that is cut off can be run again
with the very same values.
"""

from __future__ import annotations

import json
from pathlib import Path

from ml.specs.search.domain import Sample

FILE = "sampling.json"


def write(folder: Path, sample: Sample) -> None:
    """Keep the sample in a trial's folder, which is made when it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    # Without an indent it is C that writes it: a thousand of them are felt.
    data = {"number": sample.number, "values": sample.values, "origin": sample.origin}
    (folder / FILE).write_text(json.dumps(data) + "\n")


def read(folder: Path) -> Sample | None:
    """The sample of a trial's folder; None when it was not written, or not to its end."""
    try:
        data = json.loads((folder / FILE).read_text())
        return Sample(data["number"], data["values"], data["origin"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
