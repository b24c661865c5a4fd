"""The entry script of the parallel job that scores every series: one line out per series."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

forecaster: Any


def init() -> None:
    """Verify the model's files, then load it."""
    global forecaster
    # A parallel job runs this file by its path, so `ml` is not on sys.path yet.
    sys.path.insert(0, str(Path(__file__).parents[3]))
    from ml.serving.scoring.manifest import verify
    from ml.serving.scoring.series import Forecaster

    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    folder = parser.parse_known_args()[0].model
    verify(folder)
    forecaster = Forecaster(folder)


def run(mini_batch: Sequence[str]) -> list[str]:
    """Return one JSON line per request line of the files: the series, its forecast, its total."""
    lines = []
    for path in mini_batch:
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            request = json.loads(line)
            answer = forecaster.answer(json.dumps(request["request"]))
            lines.append(json.dumps({"series": request["series"], **answer}))
    return lines
