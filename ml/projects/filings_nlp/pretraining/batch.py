"""The entry script of the parallel job that tokenises the files of a corpus."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

folder: Path


def init() -> None:
    """Parse the output folder from the arguments, and create it."""
    global folder
    # A parallel job runs this file by its path, so `ml` is not on sys.path yet.
    sys.path.insert(0, str(Path(__file__).parents[4]))
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenised", type=Path, required=True)
    folder = parser.parse_known_args()[0].tokenised
    folder.mkdir(parents=True, exist_ok=True)


def run(mini_batch: Sequence[str]) -> list[str]:
    """Tokenise the files and return the names of the written files. Retries are idempotent."""
    from ml.projects.filings_nlp.pretraining.tokenise import tokenise
    from ml.toolkit.data.tables import DataRefused

    written = []
    for path in map(Path, mini_batch):
        try:
            written.append(tokenise(path, folder).name)
        except DataRefused as error:
            # Join the problems to one line, because the job logs only an exception's last line.
            raise ValueError(" ".join(str(error).split())) from None
    return written
