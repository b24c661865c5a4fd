"""Draw the charts that a project's charts.py defines, in a separate process.

The charts are the team's code, so the page shows their errors as sentences. It embeds the charts as
images, in which a browser runs no scripts and loads nothing.
"""

from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml.backends.runs import Entry
from ml.measures.evaluation import PREDICTIONS
from ml.reports.facts import Facts
from ml.reports.formatting import redact_line

SECONDS = 120
# Maximum characters of a title in a file name.
NAME_LETTERS = 60
# Maximum bytes of all figures of a page, so that the page stays below a megabyte.
LARGEST = 500_000
_KINDS = {".png": "png", ".svg": "svg+xml"}
# The environment variables that the process gets; none of them is a secret.
_PASSED = ("HOME", "LANG", "LC_ALL", "PATH", "TMPDIR")
# Append the repository to sys.path, so that its modules do not shadow others.
_START = (
    "import runpy, sys; sys.path.append(sys.argv.pop(1)); "
    "runpy.run_module('ml.toolkit.figures', run_name='__main__', alter_sys=True)"
)


@dataclass(frozen=True)
class Figure:
    """A chart of the project, or the reason why it could not be drawn."""

    title: str
    suffix: str = ""  # `.png` or `.svg`
    content: bytes = b""  # content of the image file
    fault: str = ""  # why the chart could not be drawn; "" if it was

    def __post_init__(self) -> None:
        if not self.fault and self.suffix not in _KINDS:
            raise ValueError(f"unsupported image format: {self.suffix}")

    @property
    def address(self) -> str:
        """Return the image as a data URI."""
        text = base64.b64encode(self.content).decode()
        return f"data:image/{_KINDS[self.suffix]};base64,{text}"


def draw(root: Path, facts: Facts) -> tuple[Figure, ...]:
    """Return the charts of the run's project; () if the project has no charts.py."""
    project = Entry(facts.run, facts.kind, facts.lineage).project
    if not (project.isidentifier() and (root / "ml/projects" / project / "charts.py").is_file()):
        return ()
    run, quality = facts.run, facts.quality
    predictions = quality.folder / PREDICTIONS if quality else None
    document = {
        "name": run.name,
        "metrics": dict(run.metrics),
        "parameters": dict(run.parameters),
        "predictions": str(predictions) if predictions and predictions.is_file() else None,
        "outputs": {name: str(path) for name, path in run.outputs.items()},
    }
    with tempfile.TemporaryDirectory() as folder:
        words = [str(root), f"ml.projects.{project}.charts", folder]
        try:
            ended = subprocess.run(
                [sys.executable, "-P", "-c", _START, *words],
                input=json.dumps(document),
                env={name: os.environ[name] for name in _PASSED if name in os.environ}
                | {"MPLBACKEND": "Agg"},
                cwd=folder,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            return (Figure("charts.py", fault=f"timed out after {SECONDS} s"),)
        try:
            drawn = json.loads((Path(folder) / "figures.json").read_text(encoding="utf-8"))
            return tuple(_within([_figure(Path(folder), entry) for entry in drawn]))
        except (OSError, ValueError, KeyError, TypeError):
            # The process ended too early, or the project's code overwrote figures.json.
            why = f"the process exited with code {ended.returncode}"
            return (Figure("charts.py", fault=why),)


def _figure(folder: Path, drawn: Mapping[str, Any]) -> Figure:
    title = str(drawn["title"])
    if "fault" in drawn:
        return Figure(title, fault=redact_line(str(drawn["fault"])))
    file = folder / Path(drawn["file"]).name
    state = file.lstat()
    if not stat.S_ISREG(state.st_mode) or state.st_size > LARGEST:
        return Figure(
            title, fault=f"{file.name} is not a regular file of at most {LARGEST:,} bytes"
        )
    return Figure(title, file.suffix, file.read_bytes())


def _within(figures: Iterable[Figure]) -> Iterable[Figure]:
    """Yield the figures; replace those beyond the page's size limit by figures with a fault."""
    remaining = LARGEST
    for figure in figures:
        remaining -= len(figure.content)
        if figure.fault or remaining >= 0:
            yield figure
        else:
            yield Figure(
                figure.title, fault=f"the figures exceed the page limit of {LARGEST:,} bytes"
            )


def keep(figures: Iterable[Figure], artifacts: Path) -> None:
    """Write the figures to the run's MLflow artifacts, as `charts/TITLE.svg`; skip faults."""
    for figure in figures:
        if not figure.fault:
            name = "".join(letter if letter.isalnum() else "_" for letter in figure.title)
            path = artifacts / "charts" / f"{name[:NAME_LETTERS]}{figure.suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(figure.content)
