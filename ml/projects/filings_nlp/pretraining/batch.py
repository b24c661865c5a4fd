"""The entry script of the parallel job that tokenises a corpus of filings, file by file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

folder: Path


def init() -> None:
    """Parse the output folder from the arguments, and create it."""
    global folder
    # A parallel job runs the file by its path: the root of the code is not importable.
    sys.path.insert(0, str(Path(__file__).parents[4]))
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenised", type=Path, required=True)
    folder = parser.parse_known_args()[0].tokenised
    folder.mkdir(parents=True, exist_ok=True)


def run(mini_batch: Sequence[str]) -> list[str]:
    """Tokenise the files; a mini-batch that is retried writes the same content."""
    from ml.projects.filings_nlp.pretraining.tokenise import tokenise
    from ml.toolkit.data.tables import DataRefused

    written = []
    for path in map(Path, mini_batch):
        try:
            written.append(tokenise(path, folder).name)
        except DataRefused as error:
            # The job's log has only the last line of an exception: all problems are on that line.
            raise ValueError(" ".join(str(error).split())) from None
    return written
