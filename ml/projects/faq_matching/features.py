"""Features of (question, entry) pairs, computed for all entries of a block of questions at once.

Text features compare a question with the entry's own question and answer. Memory features compare
it with the entry's *memory*, the known questions that people asked about the entry. A new entry has
no memory; its memory features are NaN, which LightGBM supports.

In training, the memory never contains the question itself or a near-identical text: see
`training_features` in `pairs.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ml.projects.faq_matching.vectors import Array, Index, Matrix, Vectoriser

# Weight of an entry's own question and answer, relative to one question in its memory.
OWN_TEXT = 2.0
SMOOTHING = 0.01
TEXT_FEATURES = (
    "word_question",
    "word_answer",
    "char_question",
    "char_answer",
    "char_text_evidence",
)
MEMORY_FEATURES = (
    "word_nearest",
    "word_nearest_3",
    "word_mean",
    "word_evidence",
    "char_evidence",
    "discriminant",
)
# The `_behind_best` features are the difference to the best entry for the same question.
NAMES = (
    *TEXT_FEATURES,
    *MEMORY_FEATURES,
    *(f"{name}_behind_best" for name in (*TEXT_FEATURES, *MEMORY_FEATURES)),
    "neighbours",
    "neighbours_behind_best",
    "question_words",
    "answer_words",
)


@dataclass(frozen=True)
class Texts:
    """The TF-IDF vectors of texts in both spaces, and their lengths."""

    word: Matrix  # (texts, word n-grams)
    char: Matrix  # (texts, character n-grams)
    words: Array  # (texts): number of words

    def __getitem__(self, rows: Index | slice) -> Texts:
        return Texts(self.word[rows], self.char[rows], self.words[rows])


@dataclass(frozen=True)
class Spaces:
    """The two fitted vocabularies: word n-grams and character n-grams."""

    word: Vectoriser
    char: Vectoriser

    @classmethod
    def fit(cls, texts: Sequence[str], word_ngrams: int, char_ngrams: int) -> tuple[Spaces, Texts]:
        """Return the vocabularies of the training texts, and the texts' vectors."""
        word, of_words = Vectoriser.fit(texts, "word", 1, word_ngrams)
        char, of_chars = Vectoriser.fit(texts, "char", 3, char_ngrams)
        return cls(word, char), Texts(of_words, of_chars, _lengths(texts))

    def embed(self, texts: Sequence[str]) -> Texts:
        """Return the texts' vectors in both spaces."""
        return Texts(self.word.transform(texts), self.char.transform(texts), _lengths(texts))


def _lengths(texts: Sequence[str]) -> Array:
    return np.array([len(text.split()) for text in texts], np.float32)


@dataclass(frozen=True)
class Catalogue:
    """The vectors of the entries' questions and answers, and the similarity between entries."""

    questions: Texts
    answers: Texts
    alike: Array  # (entries, entries): cosine similarity, diagonal 0

    @classmethod
    def from_texts(cls, questions: Texts, answers: Texts) -> Catalogue:
        """Return the catalogue; row i of `questions` and of `answers` is entry i."""
        both = (questions.word + answers.word, questions.char + answers.char)
        alike = np.zeros((questions.word.shape[0],) * 2, np.float32)
        for space in both:
            norm = np.sqrt(np.asarray(space.multiply(space).sum(axis=1)).ravel())
            cosine = (space @ space.T).toarray() / np.maximum(np.outer(norm, norm), 1e-9)
            alike += cosine.astype(np.float32) / 2
        np.fill_diagonal(alike, 0)
        return cls(questions, answers, alike)

    @cached_property
    def lookup(self) -> dict[str, Matrix]:
        """Map each text feature except `char_text_evidence` to its matrix (n-grams, entries).

        Query vectors times the matrix give the feature's cosine similarities.
        """
        questions, answers = self.questions, self.answers
        parts = (questions.word, answers.word, questions.char, answers.char)
        return {name: matrix.T.tocsr() for name, matrix in zip(TEXT_FEATURES, parts, strict=False)}

    @cached_property
    def evidence(self) -> Evidence:
        """Return the naive Bayes model of the entries' character n-grams (question and answer)."""
        return Evidence.from_mass((self.questions.char + self.answers.char).tocsr())


@dataclass(frozen=True)
class Memory:
    """Known questions, sorted by entry, and a classifier trained on them."""

    asked: Texts
    label: Index  # (questions): index into `known`
    known: Index  # indices of the entries that have questions
    starts: Index  # (known entries): index of the first question
    word_mass: Matrix  # (known entries, word n-grams): sum of the vectors of questions and own text
    char_mass: Matrix  # (known entries, character n-grams): likewise
    weights: Array  # (word n-grams, known entries): a linear classifier

    @classmethod
    def from_questions(
        cls, texts: Texts, entry: Index, catalogue: Catalogue, weights: Array | None = None
    ) -> Memory:
        """Return the memory of questions `texts`, where `entry[i]` is the entry of question i.

        `weights` are the classifier's; None computes naive Bayes weights.
        """
        order = np.argsort(entry, kind="stable")
        texts, entry = texts[order], entry[order]
        entries, starts, label = np.unique(entry, return_index=True, return_inverse=True)
        member = sparse.csr_matrix(
            (np.ones(len(label), np.float32), (label, np.arange(len(label)))),
            shape=(len(entries), len(label)),
        )
        pair = (catalogue.questions[entries], catalogue.answers[entries])
        word_mass = (member @ texts.word + OWN_TEXT * (pair[0].word + pair[1].word)).tocsr()
        char_mass = (member @ texts.char + OWN_TEXT * (pair[0].char + pair[1].char)).tocsr()
        if weights is None:
            weights = naive_bayes(word_mass)
        return cls(texts, label, entries, starts, word_mass, char_mass, weights)

    @classmethod
    def train(
        cls, texts: Texts, entry: Index, catalogue: Catalogue, steps: int, rate: float
    ) -> Memory:
        """Return the memory of questions `texts`, with a trained classifier.

        The classifier is a softmax regression (`descend`) of the questions and the entries' own
        texts; `steps` and `rate` are its gradient steps and learning rate.
        """
        memory = cls.from_questions(texts, entry, catalogue)
        entries = memory.known
        pair = (catalogue.questions[entries].word, catalogue.answers[entries].word)
        seen = sparse.vstack([memory.asked.word, *pair]).tocsr()
        labels = np.concatenate([memory.label, *[np.arange(len(entries))] * 2])
        weight = np.ones(len(labels), np.float32)
        weight[len(memory.label) :] = OWN_TEXT
        return replace(memory, weights=descend(memory.weights, seen, labels, weight, steps, rate))

    @cached_property
    def lookup(self) -> tuple[Matrix, Evidence, Evidence]:
        """Return the transposed question vectors, and the word and character evidence."""
        word, char = Evidence.from_mass(self.word_mass), Evidence.from_mass(self.char_mass)
        return self.asked.word.T.tocsr(), word, char

    @cached_property
    def alike_in_size(self) -> Sequence[tuple[Index, Index]]:
        """Return the known entries, grouped by their number of questions.

        Each group is (indices into `known`, question indices (entries, questions)).
        """
        sizes = np.diff(np.append(self.starts, len(self.label)))
        entries = [np.flatnonzero(sizes == size) for size in np.unique(sizes)]
        return [(ids, self.starts[ids][:, None] + np.arange(sizes[ids[0]])) for ids in entries]

    def compare(self, queries: Texts) -> dict[str, Array]:
        """Return each memory feature by name, as an array (queries, known entries)."""
        questions, word_evidence, char_evidence = self.lookup
        like = (queries.word @ questions).toarray()
        best = np.empty((like.shape[0], len(self.known)), np.float32)
        best_3, mean = np.empty_like(best), np.empty_like(best)
        for ids, columns in self.alike_in_size:
            block = np.take(like, columns, axis=1)  # contiguous rows, for fast reductions
            most = min(3, block.shape[2])
            top = np.partition(block, block.shape[2] - most, axis=2)[:, :, -most:]
            best[:, ids], best_3[:, ids] = top.max(axis=2), top.mean(axis=2)
            mean[:, ids] = block.mean(axis=2)
        logits = queries.word @ self.weights
        logits -= logits.max(axis=1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return {
            "word_nearest": best,
            "word_nearest_3": best_3,
            "word_mean": mean,
            "word_evidence": word_evidence(queries.word),
            "char_evidence": char_evidence(queries.char),
            "discriminant": logits.astype(np.float32),
        }


def pair_features(
    queries: Texts, catalogue: Catalogue, memory: Memory, hidden: NDArray[np.bool_]
) -> Array:
    """Return the features (queries, entries, features) in the order of `NAMES`.

    `hidden` (queries, entries) is True where the memory of an entry must be ignored. Memory
    features are NaN there and for entries without memory.
    """
    shape = (len(queries.words), len(catalogue.questions.words))
    columns: dict[str, Array] = {
        name: ((queries.word if name.startswith("word") else queries.char) @ texts).toarray()
        for name, texts in catalogue.lookup.items()
    }
    columns["char_text_evidence"] = catalogue.evidence(queries.char)
    for name, values in memory.compare(queries).items():
        full = np.full(shape, np.nan, np.float32)
        full[:, memory.known] = values
        full[hidden] = np.nan
        columns[name] = full
    share = np.exp(columns["discriminant"])
    share[np.isnan(share)] = 0
    columns["neighbours"] = share @ catalogue.alike
    columns["question_words"] = np.broadcast_to(queries.words[:, None], shape)
    columns["answer_words"] = np.broadcast_to(catalogue.answers.words[None], shape)
    out = np.empty((*shape, len(NAMES)), np.float32)
    for index, name in enumerate(NAMES):
        if name in columns:
            out[:, :, index] = columns[name]
        else:
            values = columns[name.removesuffix("_behind_best")]
            with np.errstate(invalid="ignore"):
                best = np.fmax.reduce(values, axis=1, keepdims=True)
            out[:, :, index] = values - best
    return out


@dataclass(frozen=True)
class Evidence:
    """Multinomial naive Bayes: the mean log-likelihood of a query's n-grams under each class.

    ln(mass + a) is computed as ln a + ln(1 + mass/a), so that the matrix stays sparse.
    """

    log: Matrix
    total: Array

    @classmethod
    def from_mass(cls, mass: Matrix) -> Evidence:
        """Fit the model; `mass` (classes, n-grams) has the summed weights of each class."""
        log = mass.copy()
        log.data = np.log1p(log.data / SMOOTHING)
        total = np.asarray(mass.sum(axis=1)).ravel() + SMOOTHING * mass.shape[1]
        return cls(log.T.tocsr(), np.log(total / SMOOTHING))

    def __call__(self, queries: Matrix) -> Array:
        """Return the mean log-likelihoods (queries, classes)."""
        length = np.maximum(np.asarray(queries.sum(axis=1)).ravel(), 1e-6)
        likely = (queries @ self.log).toarray() / length[:, None] - self.total
        return np.asarray(likely, dtype=np.float32)


def naive_bayes(mass: Matrix) -> Array:
    """Return naive Bayes weights (words, classes), centred per word, from (classes, words)."""
    smooth = mass.toarray().T + 3 * SMOOTHING
    start = np.log(smooth) - np.log(smooth.sum(axis=0))
    # C order, because sparse products read the rows sequentially.
    return np.asarray(start - start.mean(axis=1, keepdims=True), dtype=np.float32, order="C")


def descend(
    start: Array, seen: Matrix, labels: Index, weight: Array, steps: int, rate: float
) -> Array:
    """Fit a softmax regression of labels on words; return its weights (words, classes).

    It makes `steps` of gradient descent with momentum 0.9 from the weights `start`. The small
    number of steps is the only regularisation.
    """
    weights = start.copy()
    momentum = np.zeros_like(weights)
    transposed = seen.T.tocsr()
    rows = np.arange(len(labels))
    pace = np.float32(rate * weights.shape[1] / weight.sum())
    for _ in range(steps):
        share = seen @ weights
        share -= share.max(axis=1, keepdims=True)
        np.exp(share, out=share)
        share /= share.sum(axis=1, keepdims=True)
        share[rows, labels] -= 1
        share *= weight[:, None]
        momentum *= np.float32(0.9)
        momentum -= pace * (transposed @ share)
        weights += momentum
    return weights
