"""Tokenise files of filings with the results of tokens.py, but vectorised with numpy and Arrow.

batch.py, the parallel step of jobs/corpus.yml, calls `tokenise`; prepare.py merges the results.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml
from numpy.typing import NDArray

from ml.projects.filings_nlp.corpus import SCHEMA, TRAIN, VALIDATION, SplitRule
from ml.projects.filings_nlp.tokens import (
    MOST_CHARACTERS,
    MOST_SENTENCES,
    MOST_WORDS,
    SECTIONS,
    sentences,
)
from ml.toolkit.data.tables import DataRefused, TableSchema, read_table

# Characters tokenised at a time, so that the arrays fit into the CPU cache.
CHARACTERS = 1 << 20
Table = NDArray[np.uint32]


class Tokeniser:
    """Splits documents into sentences and words with the results of `tokens.sentences`.

    `words` maps each distinct word to its number, from 1.
    """

    def __init__(self) -> None:
        self.words = {"<number>": 1}
        # Number by the word in its original spelling (UTF-32), before normalisation.
        self._numbers: dict[bytes, int] = {}

    def cut(self, sections: Sequence[NDArray[Any]]) -> tuple[Table, NDArray[np.int64]]:
        """Return word numbers (sentences, MOST_WORDS), padded with 0, and their document indices.

        `sections` has an array per section with one text per document.
        """
        texts = [text[:MOST_CHARACTERS] for column in sections for text in column]
        points = np.frombuffer("\n".join(texts).encode("utf-32-le"), "<u4")
        kinds = _kinds()[points]
        numbers = np.zeros(len(points), np.uint32)
        self._number_words(points, kinds, numbers)
        # A number begins with the first digit of a run of digits, points and commas.
        digits = np.flatnonzero(kinds & _DIGIT)
        first, last = _runs(kinds & _NUMERIC)
        index = np.searchsorted(digits, first)
        numbers[digits[index[index < np.searchsorted(digits, last)]]] = 1
        # A sentence ends at a line break, a CJK stop, or white space after a stop.
        is_end = kinds & _END > 0
        is_end[1:] |= (kinds[:-1] & _STOP > 0) & (kinds[1:] & _SPACE > 0)
        place = np.flatnonzero(numbers)
        begins = np.diff(np.cumsum(is_end, dtype=np.int32)[place], prepend=-1) > 0
        first = np.flatnonzero(begins)
        column = np.arange(len(place)) - np.repeat(first, np.diff(first, append=len(place)))
        column %= MOST_WORDS
        begins |= column == 0
        table = np.zeros((begins.sum(), MOST_WORDS), np.uint32)
        table[np.cumsum(begins) - 1, column] = numbers[place]
        last = np.cumsum([len(text) + 1 for text in texts])
        text = np.searchsorted(last, place[begins], side="right")
        read = np.arange(len(text)) - np.searchsorted(text, text) < MOST_SENTENCES
        return table[read], text[read] % len(sections[0])

    def _number_words(self, points: Table, kinds: NDArray[np.uint8], numbers: Table) -> None:
        """Write the number of each word into `numbers`, at the position of its first character."""
        # A word is a run of letters, or two with an apostrophe between them.
        first, last = _runs(kinds & _LETTER)
        follows = np.zeros(len(first), bool)
        follows[1:] = (first[1:] - last[:-1] == 1) & (points[last[:-1]] == ord("'"))
        runs = np.arange(len(first))
        is_second = (runs - np.maximum.accumulate(np.where(follows, 0, runs))) % 2 == 1
        inside = kinds & _LETTER > 0
        inside[first[is_second] - 1] = True
        begins = np.append(0, np.cumsum(last - first + is_second))
        offsets = np.append(begins[:-1][~is_second], begins[-1]) * 4
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(points[inside])]
        words = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
        encoded = words.dictionary_encode()
        different = encoded.dictionary.to_pylist()
        for word in different:
            if word not in self._numbers:
                self._numbers[word] = self.words.setdefault(_entry(word), len(self.words) + 1)
        number = np.array([self._numbers[word] for word in different], np.uint32)
        # Without to_numpy, which imports pandas.
        indices = np.frombuffer(encoded.indices.buffers()[1], np.int32, len(encoded))
        numbers[first[~is_second]] = number[indices]


_LETTER, _DIGIT, _NUMERIC, _STOP, _SPACE, _END = (1 << bit for bit in range(6))


@lru_cache(1 << 18)
def _entry(word: bytes) -> str:
    """Normalise a word (UTF-32) by `tokens.sentences`, so that training and serving agree."""
    [[entry]] = sentences(word.decode("utf-32-le"))
    return entry


@cache
def _kinds() -> NDArray[np.uint8]:
    """Return the bit flags of every Unicode character, by the regular expressions of tokens.py."""
    kinds = np.zeros(sys.maxunicode + 1, np.uint8)
    characters = "".join(map(chr, range(sys.maxunicode + 1)))
    of_kind = {_LETTER: r"[^\W\d_]", _DIGIT: r"\d", _NUMERIC: r"[\d.,]", _SPACE: r"\s"}
    of_kind |= {_STOP: "[.!?]", _END: "[\n。！？]"}
    for kind, expression in of_kind.items():
        for run in re.finditer(f"{expression}+", characters):
            kinds[run.start() : run.end()] |= kind
    return kinds


def _runs(flags: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the start and end (exclusive) indices of each run of nonzero flags."""
    edges = np.flatnonzero(np.diff(flags > 0, prepend=False, append=False))
    return edges[::2], edges[1::2]


def tokenise(path: Path, folder: Path) -> Path:
    """Write NAME.npz for a file of filings atomically into `folder`; return its path.

    It has the distinct sentences by split, the words, and the number of training filings with each
    word. Raises DataRefused with every violation of the schema.
    """
    schema, rule = _schema()
    table, findings = read_table(path, schema)
    if findings:
        raise DataRefused(findings)
    filed = zip(table.column("company"), table.column("filed"), strict=True)
    splits = np.array([rule.split_of(company, day) for company, day in filed])
    tokeniser, seen = Tokeniser(), [np.zeros(0, np.int64)]
    tables: dict[str, list[Table]] = {TRAIN: [], VALIDATION: []}
    read = np.flatnonzero(np.isin(splits, [*tables]))
    columns: list[NDArray[Any]] = [np.array(table.column(name), object)[read] for name in SECTIONS]
    # Process about CHARACTERS characters at a time.
    lengths = np.sum([[len(text) for text in column] for column in columns], axis=0)
    pieces = np.flatnonzero(np.diff(np.cumsum(lengths) // CHARACTERS)) + 1
    for documents in np.split(np.arange(len(read)), pieces) if len(read) else ():
        rows, document = tokeniser.cut([column[documents] for column in columns])
        split = splits[read][documents][document]
        for name, those in tables.items():
            those.append(distinct(rows[split == name]))
        trains = rows[split == TRAIN]
        # Count each word once per filing.
        pairs = document[split == TRAIN, None] << 32 | trains
        pairs = np.sort(pairs[trains > 0])
        seen.append(pairs[np.diff(pairs, prepend=-1) > 0] & 0xFFFFFFFF)
    arrays: dict[str, Any] = {
        "words": np.frombuffer(json.dumps([*tokeniser.words]).encode(), np.uint8),
        "counts": np.bincount(np.concatenate(seen), minlength=len(tokeniser.words) + 1)[1:],
        **{name: merge(those) for name, those in tables.items()},
    }
    unfinished = folder / f".{path.name}.{os.getpid()}"
    with unfinished.open("wb") as stream:
        np.savez(stream, **arrays)
    return unfinished.replace(folder / f"{path.name}.npz")


@cache
def _schema() -> tuple[TableSchema, SplitRule]:
    """Return the split rule and the schema, without the minimum number of rows of a corpus."""
    schema = TableSchema.parse(yaml.safe_load(SCHEMA.read_text(encoding="utf-8")))
    return replace(schema, rows=(1, schema.rows[1])), SplitRule.read()


def merge(tables: Sequence[Table]) -> Table:
    """Return the distinct rows of all tables."""
    return distinct(np.concatenate([np.zeros((0, MOST_WORDS), np.uint32), *tables]))


def distinct(table: Table) -> Table:
    """Return the distinct rows of unsigned numbers, sorted."""
    bytewise = np.ascontiguousarray(table, table.dtype.newbyteorder(">"))
    rows = np.unique(bytewise.view(f"V{table.shape[1] * table.itemsize}").ravel())
    return rows.view(bytewise.dtype).reshape(-1, table.shape[1]).astype(table.dtype)
