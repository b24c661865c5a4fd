"""Prepare a corpus for pretraining: shards of the distinct sentences of many files of filings.

    python -m ml.projects.filings_nlp.pretraining.prepare --data DIR --corpus OUT_DIR
        --tokenised DIR

It is the last step of jobs/corpus.yml. The parallel step before it tokenises each file with word
numbers that are local to the file. This step builds the vocabulary, renumbers the words and writes
the shards.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ml.projects.filings_nlp.corpus import TRAIN, VALIDATION, WRONG_CALL
from ml.projects.filings_nlp.pretraining.tokenise import distinct, merge, tokenise
from ml.projects.filings_nlp.tokens import UNKNOWN, Vocabulary
from ml.toolkit.data.tables import DataRefused, Flaw
from ml.toolkit.torch.loading import write_shards

# Sentences per shard, at most 400 kB.
SHARD = 4096


def collect(files: Sequence[Path], folder: Path) -> dict[str, int]:
    """Write the vocabulary and the shards of `train` and `validation` into `folder`.

    `files` are outputs of `tokenise`, in any order. Return the number of distinct sentences by
    split.
    """
    words: list[list[str]] = []
    counts: Counter[str] = Counter()
    for file in files:
        with np.load(file) as arrays:
            words.append(json.loads(arrays["words"].tobytes()))
            counts.update(dict(zip(words[-1], arrays["counts"].tolist(), strict=True)))
    vocabulary = Vocabulary.frequent(counts)
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary.save(folder)
    numbers = {word: number for number, word in enumerate(vocabulary.words)}
    rows = {}
    for split in (TRAIN, VALIDATION):
        tables = []
        for file, names in zip(files, words, strict=True):
            renumbered = [0, *(numbers.get(word, UNKNOWN) for word in names)]
            with np.load(file) as arrays:
                tables.append(distinct(np.array(renumbered, np.uint32)[arrays[split]]))
        table = merge(tables)
        # Drop columns that are padding in every sentence, which would slow down every layer.
        table = table[:, : max(1, int((table > 0).any(axis=0).sum()))].astype(np.uint16)
        chunks = ({"target": table[start : start + SHARD]} for start in range(0, len(table), SHARD))
        rows[split] = write_shards(folder / split, chunks)
    return rows


def prepare(data: Path, folder: Path, tokenised: Path | None = None) -> dict[str, int]:
    """Write the vocabulary and shards of all files of `data` into `folder`; return as `collect`.

    `tokenised` has the output of `tokenise` for each file; None tokenises them here. Raises
    DataRefused if files are missing, have the same name or lack sentences.
    """
    files = sorted(path for path in data.rglob("[!.]*") if path.is_file())
    if tokenised is None:
        with tempfile.TemporaryDirectory() as temporary:
            for path in files:
                tokenise(path, Path(temporary))
            return prepare(data, folder, Path(temporary))
    names = Counter(path.name for path in files)
    written = [tokenised / f"{name}.npz" for name in names]
    problems = [f"{count} files are named {name}" for name, count in names.items() if count > 1]
    problems += [f"there is no {path}" for path in written if not path.is_file()]
    rows = {} if problems else collect(written, folder)
    problems += [
        f"no sentence of {split} is in the files" for split, count in rows.items() if not count
    ]
    if problems:
        expected = "tokenised files with unique names, and sentences in both splits"
        raise DataRefused([Flaw("missing-file", data, 0, text, expected) for text in problems])
    return rows


@contextmanager
def refusing() -> Iterator[None]:
    """Turn a DataRefused into an exit with code 2 that prints every problem of the data."""
    try:
        yield
    except DataRefused as error:
        print(error, file=sys.stderr)
        raise SystemExit(WRONG_CALL) from None


def main(arguments: Sequence[str] | None = None) -> None:
    """Prepare the corpus; print the number of distinct sentences."""
    parser = argparse.ArgumentParser(description="Prepare a corpus of filings for pretraining.")
    parser.add_argument("--data", type=Path, required=True, help="a folder of files of filings")
    parser.add_argument("--tokenised", type=Path, help="what batch.py wrote of each file")
    parser.add_argument("--corpus", type=Path, required=True, help="the folder to write")
    options = parser.parse_args(arguments)
    with refusing():
        rows = prepare(options.data, options.corpus, options.tokenised)
    counts = ", ".join(f"{count:,} of {split}" for split, count in rows.items())
    print(f"corpus {options.corpus}: different sentences: {counts}")


if __name__ == "__main__":
    main()
