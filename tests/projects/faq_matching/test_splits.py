"""Near-identical texts stay together, and no split sees another's questions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml.projects.faq_matching.loading import DEFAULT_SCHEMA, Faq, Question, read
from ml.projects.faq_matching.splits import (
    LEFT_OUT,
    TEST_KNOWN,
    TEST_UNSEEN,
    THRESHOLD,
    TRAIN,
    VALIDATION,
    Split,
    folds,
    groups,
    near_identical,
    split,
)
from ml.projects.faq_matching.text import normalise
from tests.conftest import ROOT

OURS = ROOT / "ml/projects/faq_matching/data/faq"


def grams(text: str) -> set[str]:
    padded = f" {normalise(text) or ' '} "
    padded = " " + " ".join(padded.split()) + " "
    return {padded[at : at + 3] for at in range(len(padded) - 2)}


def brute(texts: list[str], threshold: float) -> set[tuple[int, int]]:
    sets = [grams(text) for text in texts]
    return {
        (i, j)
        for i in range(len(sets))
        for j in range(i + 1, len(sets))
        if sets[i] and sets[j] and len(sets[i] & sets[j]) >= threshold * len(sets[i] | sets[j])
    }


@given(
    st.lists(st.text("abc ", min_size=3, max_size=24).filter(str.strip), min_size=2, max_size=25),
    st.sampled_from([0.5, 0.7, 0.9]),
)
def test_the_fast_search_finds_exactly_the_pairs(texts: list[str], threshold: float):
    """Prefix filtering against comparing every pair of sets."""
    i, j = near_identical(texts, threshold)
    assert set(zip(i.tolist(), j.tolist(), strict=True)) == brute(texts, threshold)


def test_near_identical_is_what_a_person_would_say():
    """Case, punctuation and a small word do not make two questions; other words do."""
    texts = [
        "How do I use spot nodes?",
        "how do i use spot nodes",
        "how do i use the spot nodes",
        "are preemptible machines possible here",
    ]
    group = groups(texts)
    assert group[0] == group[1] == group[2] != group[3]


def straddling(faq: Faq, parts: Split) -> list[tuple[str, str]]:
    """Near-identical questions in two splits that are evaluated or trained on."""
    i, j = near_identical([question.text for question in faq.questions])
    is_straddling = (
        (parts.assigned[i] != parts.assigned[j])
        & (parts.assigned[i] != LEFT_OUT)
        & (parts.assigned[j] != LEFT_OUT)
    )
    return [
        (faq.questions[a].text, faq.questions[b].text)
        for a, b in zip(i[is_straddling], j[is_straddling], strict=True)
    ]


def with_copies(faq: Faq) -> Faq:
    """The FAQ with near-copies of many questions, some of them under another entry."""
    rng = np.random.default_rng(5)
    copies = []
    for at, question in enumerate(faq.questions[::3]):
        entry = question.entry if at % 4 else int(rng.integers(len(faq.entries)))
        copies.append(Question(f"copy-{at}", entry, question.text.replace("?", " !")))
    for at, printed in enumerate(faq.entries[::2]):
        copies.append(Question(f"printed-{at}", 2 * at, printed.text + " please"))
    return replace(faq, questions=(*faq.questions, *copies))


@pytest.mark.parametrize("seed", range(5))
def test_nothing_straddles(faq: Faq, seed: int):
    """With planted copies too: no near-identical pair is in two splits."""
    planted = with_copies(faq)
    parts = split(planted, seed)
    assert straddling(planted, parts) == []
    assert parts.counts()["left_out"] > 0


@pytest.mark.parametrize("seed", range(3))
def test_no_test_question_is_a_printed_one(faq: Faq, seed: int):
    """A question as good as an entry's printed text is never a test."""
    planted = with_copies(faq)
    parts = split(planted, seed)
    texts = [question.text for question in planted.questions]
    i, j = near_identical([*texts, *(entry.question for entry in planted.entries)])
    printed = i[(i < len(texts)) & (j >= len(texts))]
    assert (
        len(printed)
        and not np.isin(parts.assigned[printed], (VALIDATION, TEST_KNOWN, TEST_UNSEEN)).any()
    )


def test_our_faq_straddles_nowhere():
    """The real data: nothing apart, hardly any left out, every split large enough to measure."""
    ours = read(OURS, DEFAULT_SCHEMA)
    parts = split(ours)
    assert straddling(ours, parts) == []
    counts = parts.counts()
    assert counts["test_known"] >= 200 and counts["test_unseen"] >= 150
    assert counts["validation"] >= 200 and counts["left_out"] <= 10


def test_unseen_entries_are_nowhere_else(faq: Faq, parts: Split):
    """Their questions are test_unseen, and no known entry's are."""
    entry = np.array([question.entry for question in faq.questions])
    assert parts.unseen.sum() == round(0.12 * len(faq.entries))
    assert (parts.unseen[entry] == (parts.assigned == TEST_UNSEEN)).all()
    for number in (TRAIN, VALIDATION, TEST_KNOWN):
        assert set(entry[parts.rows(number)]) == set(np.flatnonzero(~parts.unseen))


def test_the_seed_decides(faq: Faq):
    """The same seed, the same split; another seed, another."""
    assert (split(faq, 1).assigned == split(faq, 1).assigned).all()
    assert (split(faq, 1).assigned != split(faq, 2).assigned).any()


def test_held_out_questions_are_the_test(faq: Faq):
    """Where the data keeps test questions, those and no others are test_known."""
    questions = tuple(
        replace(question, held_out=at % 5 == 0) for at, question in enumerate(faq.questions)
    )
    marked = replace(faq, questions=questions)
    parts = split(marked)
    assert all(marked.questions[row].held_out for row in parts.rows(TEST_KNOWN))
    assert not any(marked.questions[row].held_out for row in parts.rows(TRAIN))
    assert not any(marked.questions[row].held_out for row in parts.rows(VALIDATION))


def test_folds_keep_groups_together():
    """Every fold is used, and a group has one."""
    group = np.random.default_rng(0).integers(0, 40, 200)
    fold = folds(group, 5, 0)
    assert set(fold) == set(range(5)) and THRESHOLD < 1
    assert all(len(set(fold[group == number])) == 1 for number in set(group))
