"""`sampling.json`: the sample of a trial, kept beside its record.

It is written before the trial's process starts, so that a trial that is cut off can be run again
with the same values.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from ml.specs.plan.plan import Sample

FILE = "sampling.json"


def write(folder: Path, sample: Sample) -> None:
    """Keep the sample in a trial's folder, which is made when it does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    # Without `indent` the encoder is the fast one, written in C.
    (folder / FILE).write_text(json.dumps(asdict(sample)) + "\n")


def read(folder: Path) -> Sample | None:
    """The sample in a trial's folder; None when it is missing or incomplete."""
    try:
        data = json.loads((folder / FILE).read_text())
        return Sample(data["number"], data["values"], data["origin"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
