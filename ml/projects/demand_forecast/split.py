"""Write the inputs of other pipeline steps: AutoML training rows and batch requests.

python -m ml.projects.demand_forecast.split --data DIR [--train DIR] [--latest DIR]

`--train`: an MLTable with the rows before the test period, for an AutoML job.
`--latest`: one JSON Lines file per store; each line is a request for one series, for the days after
the end of the table. The requests assume no promotions and no holidays in those days.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ml.projects.demand_forecast.train import SCHEMA
from ml.toolkit.data.series import Panel, Unit, read_panel, write_train


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the folders given by `--train` and `--latest`."""
    parser = argparse.ArgumentParser(description="Write what other steps read.")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data asset")
    parser.add_argument("--train", type=Path, help="the MLTable to write")
    parser.add_argument("--latest", type=Path, help="the folder of requests to write")
    options = parser.parse_args(arguments)
    if options.train:
        write_train(options.data, SCHEMA, options.train)
    if options.latest:
        write_latest(read_panel(options.data, SCHEMA), options.latest)


def write_latest(panel: Panel, folder: Path) -> None:
    """Write `<store>.jsonl` in `folder`: one forecast request per series of the store."""
    folder.mkdir(parents=True, exist_ok=True)
    lines: dict[str, list[str]] = {}
    after = {
        name: np.pad(values, ((0, 0), (0, panel.head.horizon)))
        for name, values in panel.known.items()
    }
    panel = Panel(panel.head, panel.names, panel.times, panel.values, after, panel.slices)
    for number, (name, store) in enumerate(zip(panel.names, panel.slices["store"], strict=True)):
        request = panel.request(Unit(number, len(panel.times)))
        lines.setdefault(store, []).append(json.dumps({"series": name, "request": request}))
    for store, of_store in lines.items():
        (folder / f"{store}.jsonl").write_text("\n".join(of_store) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
