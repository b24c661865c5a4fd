"""Which questions train, select and test: by seed, and never with near-identical texts apart.

- train: what the model learns from;
- validation: questions about known entries, for choosing between models;
- test_known: held-out questions about known entries;
- test_unseen: every question about entries that training never sees;
- left_out: texts that would give a split away (near-identical to a text on its other side).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ml.projects.faq_matching.grouping import groups
from ml.projects.faq_matching.loading import Faq

TRAIN, VALIDATION, TEST_KNOWN, TEST_UNSEEN, LEFT_OUT = range(5)
NAMES = ("train", "validation", "test_known", "test_unseen", "left_out")


@dataclass(frozen=True)
class Split:
    """`of` is the split of every question, `unseen` says of every entry whether training sees it.

    `group` is the number of near-identical texts to which a question belongs.
    """

    of: NDArray[np.int8]
    unseen: NDArray[np.bool_]
    group: NDArray[np.int64]
    seed: int

    def rows(self, split: int) -> NDArray[np.int64]:
        """The questions of one split, in the order of the data."""
        return np.flatnonzero(self.of == split)

    def counts(self) -> dict[str, int]:
        """How many questions each split has, by name."""
        return {name: int((self.of == number).sum()) for number, name in enumerate(NAMES)}


def split(
    faq: Faq,
    seed: int = 0,
    unseen_share: float = 0.12,
    test_share: float = 0.2,
    validation_share: float = 0.15,
) -> Split:
    """Split the questions of `faq`; the same data and seed give the same split.

    Shares are of the entries (unseen) and of each known entry's questions. Where the data keeps
    questions for testing (`held_out`), those and no others are test_known.
    """
    rng = np.random.default_rng([seed, 7])
    entry = np.array([question.entry for question in faq.questions])
    held_out = np.array([question.held_out for question in faq.questions])
    unseen = np.zeros(len(faq.entries), bool)
    unseen[rng.permutation(len(faq.entries))[: round(unseen_share * len(faq.entries))]] = True
    texts = [question.text for question in faq.questions]
    group = groups([*texts, *(e.question for e in faq.entries)])
    of_entry, group = group[len(texts) :], group[: len(texts)]
    printed = {number: bool(unseen[at]) for at, number in enumerate(of_entry)}
    of = np.full(len(texts), LEFT_OUT, np.int8)
    free: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, members in _by(group).items():
        rows = np.array(members)
        sides = set(unseen[entry[rows]])
        if number in printed:
            # As good as the printed question of an entry: known from the start, hence no test.
            if not printed[number]:
                of[rows[~unseen[entry[rows]] & ~held_out[rows]]] = TRAIN
        elif sides == {True}:
            of[rows] = TEST_UNSEEN
        elif sides == {True, False}:
            of[rows[unseen[entry[rows]]]] = TEST_UNSEEN
        elif held_out[rows].any():
            of[rows[held_out[rows]]] = TEST_KNOWN
        else:
            free[int(entry[rows[0]])][number] = members
    tested = 0.0 if held_out.any() else test_share
    for mine in free.values():
        _deal(mine, of, rng, tested, validation_share)
    return Split(of, unseen, group, seed)


def _by(group: NDArray[np.int64]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for row, number in enumerate(group):
        found[int(number)].append(row)
    return found


def _deal(
    mine: dict[int, list[int]],
    of: NDArray[np.int8],
    rng: np.random.Generator,
    test_share: float,
    validation_share: float,
) -> None:
    """Deal the groups of one entry's questions, whole groups at a time, in a random order."""
    numbers = list(mine)
    total = sum(len(members) for members in mine.values())
    wanted = {TEST_KNOWN: round(test_share * total), VALIDATION: round(validation_share * total)}
    for at in rng.permutation(len(numbers)):
        members = mine[numbers[at]]
        target = next((s for s, left in wanted.items() if left >= len(members)), TRAIN)
        of[members] = target
        if target != TRAIN:
            wanted[target] -= len(members)


def folds(group: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """A fold of 0…count−1 for every row; rows of one group share theirs."""
    numbers, at = np.unique(group, return_inverse=True)
    rng = np.random.default_rng([seed, 11])
    dealt = rng.permutation(len(numbers)) % count
    return np.asarray(dealt[at], dtype=np.int64)


def shuffled(faq: Faq, split: Split, seed: int) -> Faq:
    """The same data, the right entries of the training questions dealt out among them anew.

    Nothing can be learnt from that: what a model then knows of other questions has leaked (Ojala
    and Garriga, JMLR 11, 2010).
    """
    rows = split.rows(TRAIN)
    dealt = np.random.default_rng([seed, 29]).permutation(rows)
    questions = list(faq.questions)
    for row, other in zip(rows, dealt, strict=True):
        questions[row] = replace(questions[row], entry=faq.questions[other].entry)
    return replace(faq, questions=tuple(questions))
