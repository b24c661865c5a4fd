"""Draw a project's charts of a run, in a separate process.

`CHARTS` in a project's `charts.py` maps titles to functions. A function takes a `RunFiles` and
returns an Altair chart, a matplotlib figure, or None if the chart does not apply to the run.

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

# Maximum number of charts; maximum bytes of an SVG, above which the chart becomes a PNG.
MOST, LARGEST = 12, 100_000
LIST = "figures.json"


@dataclass(frozen=True)
class RunFiles:
    """The results of a run, the argument of a chart function.

    `metrics` has the last value of each metric. `predictions` is predictions.csv of the evaluation,
    or None without one. `outputs` maps an output's name to its folder or file.
    """

    name: str
    metrics: Mapping[str, float]
    parameters: Mapping[str, Any]
    predictions: Path | None
    outputs: Mapping[str, Path]

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> RunFiles:
        """Return the run of a JSON document with the fields of this class."""
        predictions = Path(document["predictions"]) if document["predictions"] else None
        outputs = {name: Path(path) for name, path in document["outputs"].items()}
        return cls(
            document["name"], document["metrics"], document["parameters"], predictions, outputs
        )


def main() -> None:
    """Draw the charts into the folder; write figures.json with each title's file or error."""
    module, folder = sys.argv[1], Path(sys.argv[2])
    run = RunFiles.of_json(json.load(sys.stdin))
    drawn: list[dict[str, str]] = []
    try:
        charts = importlib.import_module(module).CHARTS
        if not isinstance(charts, Mapping):
            raise TypeError("CHARTS must map each title to a function")
    except Exception as error:  # project code may raise anything
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
    """Write the figure as SVG, or as PNG if the SVG exceeds LARGEST; return the file."""
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
    """Return the error in one line, with the innermost line number of charts.py."""
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
