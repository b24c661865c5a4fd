"""Read the data, check it against its schema, and split it.

    python -m ml.projects.faq_matching.prepare --faq ml/projects/faq_matching/data/faq

It prints the number of entries and questions of each split as JSON. `--prepared DIR` copies the
checked data to DIR, for the later steps of a pipeline.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from ml.projects.faq_matching.loading import DEFAULT_SCHEMA, SCHEMAS, Faq, read
from ml.projects.faq_matching.splits import Split, split
from ml.toolkit.data.tables import DataRefused

WRONG_CALL = 2


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name the data: --faq, --schema, --split-seed."""
    parser.add_argument("--faq", type=Path, required=True, help="the folder of the data asset")
    parser.add_argument(
        "--schema",
        type=Path,
        default=DEFAULT_SCHEMA,
        help=f"what the data must look like (in {SCHEMAS.name}/: faq, stackoverflow, banking77)",
    )
    parser.add_argument("--split-seed", type=int, default=0)


def prepare(folder: Path, schema: Path = DEFAULT_SCHEMA, seed: int = 0) -> tuple[Faq, Split]:
    """Return the checked FAQ and its split; print the problems and exit with code 2 if invalid."""
    try:
        faq = read(folder, schema)
    except DataRefused as refused:
        print(refused, file=sys.stderr)
        raise SystemExit(WRONG_CALL) from None
    return faq, split(faq, seed)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a summary of the data and copy it to `--prepared`."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    add_data_arguments(parser)
    parser.add_argument("--prepared", type=Path, help="the folder to copy the checked data to")
    options = parser.parse_args(arguments)
    faq, parts = prepare(options.faq, options.schema, options.split_seed)
    summary = {
        "entries": {"known": int((~parts.unseen).sum()), "unseen": int(parts.unseen.sum())},
        "questions": parts.counts(),
        "sha256": faq.sha256,
    }
    print(json.dumps(summary, indent=2))
    if options.prepared is not None:
        shutil.copytree(options.faq, options.prepared, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
