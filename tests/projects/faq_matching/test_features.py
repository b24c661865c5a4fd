"""Pair features: the fast way against a plain slow one, and nothing leaks into training rows."""

from __future__ import annotations

import math
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml.projects.faq_matching.features import (
    NAMES,
    OWN_TEXT,
    SMOOTHING,
    Memory,
    Spaces,
    naive_bayes,
    pair_features,
)
from ml.projects.faq_matching.fitting import entries_of, texts_of
from ml.projects.faq_matching.loading import Faq
from ml.projects.faq_matching.model import FaqModel, answer_text, catalogue_of
from ml.projects.faq_matching.pairs import FOLDS, sample_pairs, training_features
from ml.projects.faq_matching.splits import TRAIN, Split, folds
from ml.projects.faq_matching.vectors import Array, Vectoriser, stem

Bag = dict[str, float]
DESCENT = (6, 30.0)


def slow_grams(text: str, analyser: str, low: int, high: int) -> list[str]:
    words = re.findall(r"\w+", text)
    units = [stem(w) for w in words] if analyser == "word" else list(f" {' '.join(words)} ")
    join = " " if analyser == "word" else ""
    return [
        join.join(units[at : at + size])
        for size in range(low, high + 1)
        for at in range(len(units) - size + 1)
    ]


def slow_tfidf(
    corpus: list[str], texts: list[str], analyser: str, low: int, high: int
) -> list[Bag]:
    """scikit-learn's formula with sublinear counts; unknown grams count towards the length."""
    document_frequency = Counter(
        g for text in corpus for g in set(slow_grams(text, analyser, low, high))
    )
    idf = {
        gram: math.log((1 + len(corpus)) / (1 + df)) + 1 for gram, df in document_frequency.items()
    }
    bags = []
    for text in texts:
        counts = Counter(slow_grams(text, analyser, low, high))
        weights = {g: (1 + math.log(c)) * idf[g] for g, c in counts.items() if g in idf}
        unknown = sum(c for g, c in counts.items() if g not in idf) * max(idf.values()) ** 2
        length = math.sqrt(sum(v * v for v in weights.values()) + unknown)
        bags.append({g: v / length for g, v in weights.items()})
    return bags


def dot(a: Bag, b: Bag) -> float:
    return sum(value * b.get(gram, 0.0) for gram, value in a.items())


CORPUS = ["how to use spot nodes", "using a spot node again", "what does it cost", "costs of nodes"]
ASKED = ["spot nodes cost what?", "unheard words only", "nodes nodes nodes", "", "it"]


@pytest.mark.parametrize(
    ("analyser", "low", "high"), [("word", 1, 1), ("word", 1, 3), ("char", 3, 5)]
)
def test_vectors_are_the_formula(analyser, low: int, high: int):
    """Cosines of hashed vectors against dictionaries of strings."""
    fast, of_corpus = Vectoriser.fit(CORPUS, analyser, low, high)
    np.testing.assert_allclose(of_corpus.toarray(), fast.transform(CORPUS).toarray(), rtol=1e-6)
    got = (fast.transform(ASKED) @ fast.transform(CORPUS).T).toarray()
    questions, corpus = (
        slow_tfidf(CORPUS, texts, analyser, low, high) for texts in (ASKED, CORPUS)
    )
    want = [[dot(a, b) for b in corpus] for a in questions]
    np.testing.assert_allclose(got, want, atol=1e-5)


@given(st.lists(st.text(min_size=0, max_size=30), min_size=1, max_size=8))
def test_any_text_has_a_vector(texts: list[str]):
    """Whatever people type: rows of length at most 1, all finite."""
    vectors = Vectoriser.fit(CORPUS, "char", 3, 4)[0].transform(texts)
    norms = np.sqrt(np.asarray(vectors.multiply(vectors).sum(axis=1)).ravel())
    assert vectors.shape[0] == len(texts) and np.isfinite(norms).all() and (norms <= 1 + 1e-5).all()


def slow_features(model: FaqModel, text: str, at: int) -> dict[str, float]:
    """The features of one pair, one number after the other (the classifier's apart)."""
    known_entries = [
        entry for number, entry in enumerate(model.entries) if number in set(model.entry)
    ]
    corpus = [
        *model.questions,
        *(e.text for e in known_entries),
        *(answer_text(e) for e in known_entries),
    ]
    entry = model.entries[at]
    mine = [t for t, e in zip(model.questions, model.entry, strict=True) if e == at]
    features: dict[str, float] = {}
    for space, low, high in (("word", 1, 1), ("char", 3, model.settings["char_ngrams"])):
        texts = [text, entry.text, answer_text(entry), *mine]
        query, question, answer, *memory = slow_tfidf(corpus, texts, space, low, high)
        vocabulary = len({g for t in corpus for g in slow_grams(t, space, low, high)})

        def likely(bags: list[tuple[float, Bag]], query=query, vocabulary=vocabulary) -> float:
            mass: Counter[str] = Counter()
            for weight, bag in bags:
                for gram, value in bag.items():
                    mass[gram] += weight * value
            total = sum(mass.values()) + SMOOTHING * vocabulary
            likelihood = sum(v * math.log((mass[g] + SMOOTHING) / total) for g, v in query.items())
            return likelihood / sum(query.values())

        features[f"{space}_question"] = dot(query, question)
        features[f"{space}_answer"] = dot(query, answer)
        own = [(OWN_TEXT, question), (OWN_TEXT, answer)]
        if space == "char":
            features["char_text_evidence"] = likely([(1.0, question), (1.0, answer)])
        if memory:
            features[f"{space}_evidence"] = likely([*((1.0, bag) for bag in memory), *own])
        if memory and space == "word":
            like = sorted((dot(query, bag) for bag in memory), reverse=True)
            features["word_nearest"] = like[0]
            features["word_nearest_3"] = sum(like[:3]) / 3
            features["word_mean"] = sum(like) / len(like)
    return features


def test_fast_features_are_the_slow_ones(model: FaqModel, faq: Faq, parts: Split):
    """A few questions with every entry, unseen ones included."""
    texts = texts_of(faq, [*parts.rows(2)[:2], *parts.rows(3)[:1]])
    fast = model.features(texts)
    for row, text in enumerate(texts):
        slow = [slow_features(model, text, at) for at in range(len(faq.entries))]
        for name in slow[0].keys() | {"word_evidence", "char_evidence"}:
            want = np.array([of.get(name, np.nan) for of in slow])
            np.testing.assert_allclose(fast[row, :, NAMES.index(name)], want, rtol=2e-3, atol=2e-4)
            behind = fast[row, :, NAMES.index(f"{name}_behind_best")]
            np.testing.assert_allclose(behind, want - np.nanmax(want), rtol=2e-3, atol=5e-4)


def test_an_entry_without_memory_has_text_features_only(model: FaqModel, faq: Faq, parts: Split):
    """Unseen entries: memory features are NaN, the others are numbers."""
    features = model.features(texts_of(faq, parts.rows(3)[:5]))
    memory = [n for n, name in enumerate(NAMES) if name.startswith("word_evidence")]
    assert np.isnan(features[:, parts.unseen][:, :, memory]).all()
    assert not np.isnan(features[:, ~parts.unseen]).any()
    text = [n for n, name in enumerate(NAMES) if "question" in name or name == "neighbours"]
    assert not np.isnan(features[:, parts.unseen][:, :, text]).any()


def test_forgetting_an_entry_hides_its_memory(model: FaqModel, faq: Faq, parts: Split):
    """The pair looks as if nobody had asked about the entry; its text features stay."""
    texts = texts_of(faq, parts.rows(2)[:3])
    entry = entries_of(faq, parts.rows(2)[:3])
    remembering, forgotten = model.features(texts), model.features(texts, forget=entry)
    at = np.arange(3), entry
    nearest = NAMES.index("word_nearest")
    assert (
        np.isnan(forgotten[at][:, nearest]).all()
        and not np.isnan(remembering[at][:, nearest]).any()
    )
    assert (forgotten[at][:, :5] == remembering[at][:, :5]).all()


class Training:
    """The training rows' features, and how to compute them with one thing changed."""

    def __init__(self, faq: Faq, parts: Split) -> None:
        rows = parts.rows(TRAIN)
        self.texts, self.entry, self.group = (
            texts_of(faq, rows),
            entries_of(faq, rows),
            parts.group[rows],
        )
        known_entries = np.flatnonzero(~parts.unseen)
        printed = [faq.entries[at] for at in known_entries]
        visible = [*self.texts, *(e.text for e in printed), *(answer_text(e) for e in printed)]
        self.spaces, _ = Spaces.fit(visible, 1, 4)
        self.catalogue = catalogue_of(self.spaces, faq.entries)
        self.pairs = sample_pairs(self.entry, known_entries, 12, np.random.default_rng(0))

    def features(self, entry=None, texts=None) -> Array:
        with ThreadPoolExecutor(2) as pool:
            return training_features(
                self.spaces.embed(texts or self.texts),
                self.entry if entry is None else entry,
                self.group,
                self.pairs,
                self.catalogue,
                DESCENT,
                0,
                pool,
            )


def test_a_training_row_does_not_know_its_own_label(faq: Faq, parts: Split):
    """Call question i another entry's: what is said of question i does not change at all."""
    training = Training(faq, parts)
    before = training.features()
    for row in (0, 57, 101):
        other = training.entry.copy()
        other[row] = training.entry[(row + 40) % len(other)]
        mine = training.pairs[0] == row
        np.testing.assert_array_equal(training.features(entry=other)[mine], before[mine])
        assert not np.array_equal(training.features(entry=other), before, equal_nan=True)


def test_a_training_row_does_not_know_its_near_copies(faq: Faq, parts: Split):
    """Nor that of a question in its group."""
    training = Training(faq, parts)
    training.group = training.group.copy()
    training.group[57] = training.group[101]
    before = training.features()
    other = training.entry.copy()
    other[57] = training.entry[(57 + 40) % len(other)]
    mine = training.pairs[0] == 101
    np.testing.assert_array_equal(training.features(entry=other)[mine], before[mine])


def test_training_rows_are_what_a_new_question_would_get(faq: Faq, parts: Split):
    """A row equals the features of its text under a memory of the other folds, made plainly."""
    training = Training(faq, parts)
    got = training.features()
    fold = folds(training.group, FOLDS, 0)
    forgotten = np.random.default_rng([0, 13]).permutation(len(faq.entries)) % 8
    row = int(np.flatnonzero(fold == 2)[3])
    visible = (fold != 2) & (forgotten[training.entry] != 2)
    visible_texts = [text for text, keep in zip(training.texts, visible, strict=True) if keep]
    memory = Memory.train(
        training.spaces.embed(visible_texts), training.entry[visible], training.catalogue, *DESCENT
    )
    query = training.spaces.embed([training.texts[row]])
    features = pair_features(
        query, training.catalogue, memory, np.zeros((1, len(faq.entries)), bool)
    )
    mine = training.pairs[0] == row
    np.testing.assert_allclose(
        got[mine], features[0][training.pairs[1][mine]], rtol=1e-4, atol=1e-5
    )


def test_some_matches_have_no_memory(faq: Faq, parts: Split):
    """About one in eight, and as many of the other entries: NaN by itself says nothing."""
    training = Training(faq, parts)
    missing = np.isnan(training.features()[:, NAMES.index("word_nearest")])
    match = training.pairs[1] == training.entry[training.pairs[0]]
    assert 0.03 < missing[match].mean() < 0.3 and 0.03 < missing[~match].mean() < 0.3


def test_no_steps_is_naive_bayes(faq: Faq, parts: Split):
    """Where the classifier starts; a few steps make it fit its questions better."""
    training = Training(faq, parts)
    questions = training.spaces.embed(training.texts)
    start = Memory.train(questions, training.entry, training.catalogue, 0, 30.0)
    np.testing.assert_array_equal(start.weights, naive_bayes(start.word_mass))
    moved = Memory.train(questions, training.entry, training.catalogue, 10, 30.0)
    right = np.arange(len(start.label)), start.label

    def loss(weights: Array) -> float:
        logits = start.asked.word @ weights
        return float((np.log(np.exp(logits).sum(axis=1)) - logits[right]).mean())

    assert loss(moved.weights) < loss(start.weights)
    assert replace(start, weights=moved.weights).compare(start.asked)["discriminant"].max() <= 0


def test_pairs_are_one_match_and_others(faq: Faq, parts: Split):
    """The match first, then different others; never one that training must not see."""
    entry = entries_of(faq, parts.rows(TRAIN))
    known_entries = np.flatnonzero(~parts.unseen)
    rows, paired = sample_pairs(entry, known_entries, 12, np.random.default_rng(0))
    table = paired.reshape(len(entry), 12)
    assert (table[:, 0] == entry).all() and (rows == np.repeat(np.arange(len(entry)), 12)).all()
    assert all(len(set(row)) == 12 for row in table) and set(paired) <= set(known_entries)
    all_pairs = sample_pairs(entry, known_entries, 1000, np.random.default_rng(0))[1]
    assert len(all_pairs) == len(entry) * len(known_entries)


def test_hard_pairs_are_the_alike(model: FaqModel, faq: Faq, parts: Split):
    """The asked-for number of negatives are the entries most alike to the match."""
    entry = entries_of(faq, parts.rows(TRAIN))
    known_entries = np.flatnonzero(~parts.unseen)
    alike = model.catalogue.alike
    paired = sample_pairs(entry, known_entries, 6, np.random.default_rng(0), alike, 3)[1].reshape(
        -1, 6
    )
    for of_row, match in zip(paired, entry, strict=True):
        others = known_entries[known_entries != match]
        nearest = set(others[np.argsort(-alike[match][others], kind="stable")[:3]])
        assert nearest <= set(of_row[1:])
