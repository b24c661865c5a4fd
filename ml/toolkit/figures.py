"""A project's own charts of a run: what their functions get, and the program that draws them.

`charts.py` of a project has `CHARTS`, a title → a function of a `RunFiles` that returns an Altair
chart or a matplotlib figure, or None for a run that it is not about.

    python -m ml.toolkit.figures ml.projects.NAME.charts FOLDER     the run as JSON on stdin
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The most charts, and the most bytes of one as SVG: of a larger one the page gets the pixels.
MOST, LARGEST = 12, 100_000
LIST = "figures.json"


@dataclass(frozen=True)
class RunFiles:
    """A run as a chart's function gets it: the last value of each metric, the parameters.

    `predictions` is predictions.csv of its evaluation, None without one; `outputs` are folders or
    files by the output's name.
    """

    name: str
    metrics: Mapping[str, float]
    parameters: Mapping[str, Any]
    predictions: Path | None
    outputs: Mapping[str, Path]

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> RunFiles:
        """Return the run that `document` states."""
        predictions = Path(document["predictions"]) if document["predictions"] else None
        outputs = {name: Path(path) for name, path in document["outputs"].items()}
        return cls(
            document["name"], document["metrics"], document["parameters"], predictions, outputs
        )


def main() -> None:
    """Draw each chart into the folder, and list the titles with their files or faults."""
    module, folder = sys.argv[1], Path(sys.argv[2])
    run = RunFiles.of_json(json.load(sys.stdin))
    drawn: list[dict[str, str]] = []
    try:
        charts = importlib.import_module(module).CHARTS
        if not isinstance(charts, Mapping):
            raise TypeError("CHARTS must map each title to a function")
    except Exception as error:  # the project's own code
        charts, drawn = {}, [{"title": "charts.py", "fault": _fault(error, module)}]
    for place, (title, function) in enumerate([*charts.items()][:MOST]):
        try:
            if (figure := function(run)) is not None:
                file = _write(figure, folder / str(place))
                drawn.append({"title": str(title), "file": file.name})
        except Exception as error:
            drawn.append({"title": str(title), "fault": _fault(error, module)})
    (folder / LIST).write_text(json.dumps(drawn), encoding="utf-8")


def _write(figure: Any, path: Path) -> Path:
    """Return the file with the figure: SVG, or PNG where that would be large."""
    if hasattr(figure, "savefig"):
        figure.savefig(svg := path.with_suffix(".svg"), bbox_inches="tight")
        if svg.stat().st_size > LARGEST:
            figure.savefig(svg := path.with_suffix(".png"), bbox_inches="tight")
        return svg
    if not hasattr(figure, "to_dict"):
        kind = type(figure).__name__
        raise TypeError(f"expected an Altair chart or a matplotlib figure, not a {kind}")
    import vl_convert

    spec = figure.to_dict()
    text = vl_convert.vegalite_to_svg(spec, allowed_base_urls=[]).encode()
    if len(text) <= LARGEST:
        path = path.with_suffix(".svg")
    else:
        path = path.with_suffix(".png")
        text = vl_convert.vegalite_to_png(spec, allowed_base_urls=[])
    path.write_bytes(text)
    return path


def _fault(error: Exception, module: str) -> str:
    """Return what went wrong in one line, with the last line of charts.py that took part in it."""
    name = f"{module.rpartition('.')[2]}.py"
    if isinstance(error, SyntaxError):
        lines = [error.lineno]
    else:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename).name == name]
    words = error.msg if isinstance(error, SyntaxError) else str(error)
    where = f"{name}:{lines[-1]}: " if lines else ""
    return f"{where}{type(error).__name__}: {' '.join(words.split())}"[:400]


if __name__ == "__main__":
    main()
