"""Read the filings of a data asset, check them, and split them by company and time."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from ml.measures.measurement import Rows
from ml.projects.filings_nlp.tokens import SECTIONS
from ml.toolkit.data.tables import DataRefused, TableSchema, read_table

# Declares the columns, their bounds and the split. Start reading the project there.
SCHEMA = Path(__file__).parent / "data" / "filings.schema.yml"
TRAIN, VALIDATION, TEST = SPLITS = ("train", "validation", "test")
WRONG_CALL = 2


@dataclass(frozen=True)
class SplitRule:
    """Assigns filings to splits by company and filing date."""

    shares: Mapping[str, float]  # split → its share of the companies, for validation and test
    begins: Mapping[str, str]  # split → its first day as YYYY-MM-DD, for validation and test

    @classmethod
    def read(cls, schema: Path = SCHEMA) -> SplitRule:
        """Read the rule from the section `split` of a schema file."""
        raw = yaml.safe_load(schema.read_text(encoding="utf-8"))["split"]
        return cls(
            {name: float(raw[name]["companies"]) for name in (VALIDATION, TEST)},
            {name: str(raw[name]["from"]) for name in (VALIDATION, TEST)},
        )

    def split_of(self, company: str, filed: str) -> str:
        """Return the split of a filing, or "" if it is left out.

        A company is in one split only. Training and validation filings precede the test period.
        """
        place = int.from_bytes(sha256(company.encode()).digest()[:8]) / 2**64
        if place < self.shares[TEST]:
            return TEST if filed >= self.begins[TEST] else ""
        if filed >= self.begins[TEST]:
            return ""
        if place < self.shares[TEST] + self.shares[VALIDATION]:
            return VALIDATION if filed >= self.begins[VALIDATION] else ""
        return TRAIN


@dataclass(frozen=True)
class Split:
    """The filings of one split; each sequence has one item per filing."""

    ids: Sequence[str]
    companies: Sequence[str]
    times: Sequence[str]
    slices: Mapping[str, Sequence[str]]  # by dimension
    documents: Sequence[Mapping[str, str]]  # section → text
    labels: Sequence[str]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def days(self) -> Sequence[np.datetime64]:
        """The date of each filing."""
        return [np.datetime64(datetime.fromisoformat(time).date()) for time in self.times]


@dataclass(frozen=True)
class Corpus:
    """The splits and the classes."""

    splits: Mapping[str, Split]
    classes: tuple[str, ...]  # the events in the training split, sorted; the order of the scores

    def numbers(self, split: str) -> NDArray[np.int64]:
        """Return the index into `classes` of each filing's event, (filings,)."""
        index = {name: number for number, name in enumerate(self.classes)}
        return np.array([index[label] for label in self.splits[split].labels], dtype=np.int64)

    def shuffled(self, seed: int) -> Corpus:
        """Return the corpus with permuted labels in the training split."""
        split = self.splits[TRAIN]
        labels = np.random.default_rng(seed).permutation(split.labels).tolist()
        return replace(self, splits={**self.splits, TRAIN: replace(split, labels=labels)})


def rows(split: Split, scores: NDArray[Any] | Sequence[Any] = ()) -> Rows:
    """Return the filings of a split and a model's scores as `Rows` for the evaluation.

    The identifier of a filing is its company. Without scores, the rows have no requests.
    """
    requests = [dict(document) for document in split.documents] if len(scores) else ()
    return Rows(
        split.ids,
        split.labels,
        scores,
        split.slices,
        identifiers=split.companies,
        requests=requests,
    )


def read(folder: Path, schema: Path = SCHEMA) -> Corpus:
    """Read the corpus in the folder of a data asset.

    If it violates the schema, print every problem with file and line and exit with code 2.
    """
    raw: dict[str, Any] = yaml.safe_load(schema.read_text(encoding="utf-8"))
    table, findings = read_table(folder / raw["file"], TableSchema.parse(raw))
    if findings:
        print(DataRefused(findings), file=sys.stderr)
        raise SystemExit(WRONG_CALL)
    names = [column.name for column in table.schema.columns]
    rows = [dict(zip(names, row, strict=True)) for row in table.rows]
    rule = SplitRule.read(schema)
    of_split: dict[str, list[dict[str, str]]] = {split: [] for split in SPLITS}
    for row in rows:
        if split := rule.split_of(row["company"], row["filed"]):
            of_split[split].append(row)
    splits = {split: _split(inside) for split, inside in of_split.items()}
    if wrong := _lacking(splits):
        print(
            f"error[invalid-split]: {schema}: {wrong}\n"
            "  expected: filings in every split, and each event in training\n"
            "  hint: correct the shares and days under `split`",
            file=sys.stderr,
        )
        raise SystemExit(WRONG_CALL)
    return Corpus(splits, tuple(sorted({*splits[TRAIN].labels})))


def _lacking(splits: Mapping[str, Split]) -> str:
    """Return the reason why the splits are invalid, or ""."""
    empty = [name for name, split in splits.items() if not len(split)]
    new = {*splits[VALIDATION].labels, *splits[TEST].labels} - {*splits[TRAIN].labels}
    return (
        f"the split {empty[0]} has no filing"
        if empty
        else f"no training filing has the event {min(new)}"
        if new
        else ""
    )


def _split(rows: Sequence[Mapping[str, str]]) -> Split:
    def column(name: str) -> list[str]:
        return [row[name] for row in rows]

    return Split(
        column("filing"),
        column("company"),
        column("filed"),
        {name: column(name) for name in ("sector", "size")},
        [{name: row[name] for name in SECTIONS} for row in rows],
        column("event"),
    )
