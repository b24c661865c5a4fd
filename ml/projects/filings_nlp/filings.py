"""Generate synthetic yearly filings of companies with known event probabilities.

python -m ml.projects.filings_nlp.filings --out DIR [--seed N --companies N --files N]

It writes DIR/filings/filings.csv.gz, or N files there, and prints the test metrics of the best
possible model. The default arguments generated the committed `data`. The same seed gives the same
bytes.

A filing states a few facts, positive or negative, one sentence each (language.py). The other
sentences are boilerplate or only resemble a fact. The event of the following year is drawn with a
probability that depends only on the facts and the sector. No model can therefore have a lower
expected log loss than that probability. Facts often persist to the next year, so a company's
filings are similar and must be in one split.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.projects.filings_nlp.corpus import TEST, SplitRule
from ml.projects.filings_nlp.language import (
    ELSEWHERE,
    FACTS,
    HYPOTHESES,
    LEGAL,
    RISKS,
    SECTORS,
    SLOTS,
    USUAL,
)
from ml.projects.filings_nlp.tokens import SECTIONS

Floats = NDArray[np.float64]
COMPANIES = 1600
YEARS = range(2018, 2025)
# Events that may follow within a year: the log odds without any fact, and the two facts, in
# different sections, that the event depends on.
NONE = "none"
EVENTS: Mapping[str, tuple[float, tuple[str, ...]]] = {
    NONE: (0.0, ()),
    "impairment": (-3.5, ("goodwill", "demand")),
    "default": (-4.0, ("covenant", "debt")),
    "settlement": (-4.6, ("suit", "recall")),
    "restatement": (-5.2, ("controls", "auditor")),
    "breach": (-5.8, ("intrusion", "records")),
}
# Added to an event's log odds: per negative fact, per positive fact, and if both are negative.
WORSE, BETTER, BOTH = 2.5, -1.0, 1.5
# Events that are more likely in a sector.
OF_SECTOR = {("energy", "impairment"): 0.6, ("health", "settlement"): 0.6}
OF_SECTOR |= {("software", "breach"): 0.8, ("retail", "default"): 0.6}
# States of a fact, their probabilities, and the probability to keep a state for another year.
NOTHING, IS_WORSE, IS_BETTER = 0, 1, 2
STATES, KEEP = (0.25, 0.25, 0.5), 0.3
# Probability of a sentence that only resembles a given fact: in the risk factors, and in the fact's
# own section.
SUPPOSED, OF_OTHERS = 0.2, 0.06
# Number of boilerplate sentences per section by company size: fewest, most.
LENGTHS = {"small": (3, 6), "large": (5, 9)}
_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Filing:
    """A filing with the probability of each event, in the order of EVENTS."""

    id: str
    company: str
    filed: str
    sector: str
    size: str
    sections: Mapping[str, str]
    event: str
    probability: Floats
    split: str


@dataclass(frozen=True)
class Bound:
    """The expected metrics of a model that knows the true probabilities; no model is better."""

    log_loss: float
    accuracy: float


def generate(seed: int = 0, companies: int = COMPANIES) -> list[Filing]:
    """Return the filings of all splits, sorted by company."""
    draw, rule = np.random.default_rng(seed), SplitRule.read()
    return [doc for number in range(companies) for doc in _company(draw, number, rule) if doc.split]


def probabilities(facts: Mapping[str, int], sector: str) -> Floats:
    """Return the probabilities of the events, in the order of EVENTS; `facts`: name → state."""
    odds = []
    for event, (base, names) in EVENTS.items():
        states = [facts[name] for name in names]
        worse, better = states.count(IS_WORSE), states.count(IS_BETTER)
        both = BOTH * (worse == 2)
        of_sector = OF_SECTOR.get((sector, event), 0.0)
        odds.append(base + of_sector + WORSE * worse + BETTER * better + both)
    weights = np.exp(odds)
    return np.asarray(weights / weights.sum())


def bound(filings: Sequence[Filing]) -> Bound:
    """Return the best expected log loss and accuracy on these filings."""
    table = np.stack([filing.probability for filing in filings])
    entropy = -(table * np.log(table)).sum(axis=1)
    return Bound(float(entropy.mean()), float(table.max(axis=1).mean()))


def write(filings: Sequence[Filing], path: Path) -> None:
    """Write the filings as a gzipped CSV file with the columns of data/filings.schema.yml.

    The file is byte-for-byte reproducible.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["filing", "company", "filed", "sector", "size", *SECTIONS, "event"])
    for row in filings:
        texts = [row.sections[name] for name in SECTIONS]
        writer.writerow([row.id, row.company, row.filed, row.sector, row.size, *texts, row.event])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.getvalue().encode(), 9, mtime=0))


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the generated filings; print the best possible log loss and accuracy."""
    parser = argparse.ArgumentParser(description="Write a corpus of filings.")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--companies", type=int, default=COMPANIES)
    parser.add_argument("--files", type=int, default=1, help="how many files of about one size")
    options = parser.parse_args(arguments)
    filings, files = generate(options.seed, options.companies), options.files
    for number in range(files):
        name = "filings.csv.gz" if files == 1 else f"filings-{number:05}.csv.gz"
        first, last = (len(filings) * part // files for part in (number, number + 1))
        write(filings[first:last], options.out / "filings" / name)
    best = bound([filing for filing in filings if filing.split == TEST])
    print(
        f"{len(filings)} filings: on the test the best model has a log loss of "
        f"{best.log_loss:.4f} and an accuracy of {best.accuracy:.4f}"
    )


def _company(draw: np.random.Generator, number: int, rule: SplitRule) -> Iterator[Filing]:
    """Yield one filing per year of a company."""
    sectors = [*SECTORS]
    sector, size = sectors[number % len(sectors)], "small" if draw.random() < 0.4 else "large"
    name = _name(draw)
    words = {**SLOTS, **SECTORS[sector], "name": (name,)}
    # A company repeats these sentences every year with other numbers.
    usual = {section: _usual(draw, section, size, words) for section in SECTIONS}
    facts = {fact: int(draw.choice(3, p=STATES)) for fact in FACTS}
    for year in YEARS:
        for fact in FACTS:
            if draw.random() > KEEP:
                facts[fact] = int(draw.choice(3, p=STATES))
        probability = probabilities(facts, sector)
        event = [*EVENTS][int(draw.choice(len(EVENTS), p=probability))]
        filed = f"{year}-{draw.integers(2, 5):02}-{draw.integers(1, 29):02}"
        sections = _document(draw, facts, usual, words)
        company = f"c{number:05}"
        identity = (f"{company}-{year}", company, filed, sector, size)
        yield Filing(*identity, sections, event, probability, rule.split_of(company, filed))


def _document(
    draw: np.random.Generator,
    facts: Mapping[str, int],
    usual: Mapping[str, Sequence[str]],
    words: Mapping[str, Sequence[str]],
) -> dict[str, str]:
    """Return the text of each section: its sentences in a random order."""
    sentences = {
        name: [_fill(draw, sentence, words) for sentence in usual[name]] for name in SECTIONS
    }
    for name, fact in FACTS.items():
        if facts[name] != NOTHING:
            pair = fact.wordings[draw.integers(len(fact.wordings))]
            sentences[fact.section].append(_fill(draw, pair[facts[name] - IS_WORSE], words))
        for chance, section, forms in (
            (SUPPOSED, RISKS, HYPOTHESES),
            (OF_OTHERS, fact.section, ELSEWHERE),
        ):
            if draw.random() < chance:
                pair = fact.wordings[draw.integers(len(fact.wordings))]
                form = forms[draw.integers(len(forms))]
                text = form.format(fact=pair[draw.integers(2)])
                sentences[section].append(_fill(draw, text, words))
    return {
        name: " ".join(
            f"{text[0].upper()}{text[1:]}." for text in draw.permutation(sentences[name])
        )
        for name in SECTIONS
    }


def _usual(
    draw: np.random.Generator, section: str, size: str, words: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return a company's yearly sentences of a section, with `{n}` as placeholder for numbers.

    Only the section `legal_proceedings` may be empty.
    """
    fewest, most = LENGTHS[size]
    count = int(draw.integers(0 if section == LEGAL else fewest, most + 1))
    chosen = draw.choice(USUAL[section], count, replace=count > len(USUAL[section]))
    return [_fill(draw, sentence, {**words, "n": ("{n}",)}) for sentence in chosen]


def _fill(draw: np.random.Generator, text: str, words: Mapping[str, Sequence[str]]) -> str:
    """Return the text with a random word or number in place of each `{slot}`."""

    def word(slot: re.Match[str]) -> str:
        name = slot.group(1)
        if name == "n" and name not in words:
            return str(draw.integers(2, 99))
        return str(words[name][int(draw.integers(len(words[name])))])

    return _SLOT.sub(word, text)


def _name(draw: np.random.Generator) -> str:
    """Return a name that no other company is likely to have."""
    syllables = ("al", "bor", "cen", "dra", "el", "fin", "gor", "hal", "is", "jun", "kor", "lum")
    first = "".join(syllables[number] for number in draw.integers(0, len(syllables), 3))
    endings: tuple[Any, ...] = ("Holdings", "Industries", "Group", "Corporation")
    return f"{first.capitalize()} {endings[draw.integers(len(endings))]}"


if __name__ == "__main__":
    main()
