"""The model: its parts, its scores, its files (without pickle, with a manifest) and its ranker."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.projects.faq_matching.features import NAMES, Catalogue, Memory, Spaces, pair_features
from ml.projects.faq_matching.loading import Entry
from ml.projects.faq_matching.text import clean
from ml.projects.faq_matching.vectors import Array, Index, Vectoriser
from ml.serving.scoring.manifest import write_manifest

BLOCK = 512
TREES, ARRAYS, ENTRIES, QUESTIONS, SETTINGS = (
    "model.txt",
    "arrays.npz",
    "entries.json",
    "questions.json",
    "settings.json",
)


def feature_set_hash() -> str:
    """Return a hash of the feature names and of the source code that computes the features."""
    here = Path(__file__).parent
    files = ("features.py", "vectors.py")
    content = b"".join((here / name).read_bytes() for name in files)
    return sha256(",".join(NAMES).encode() + content).hexdigest()


@dataclass(frozen=True)
class FaqModel:
    """A trained matcher."""

    entries: tuple[Entry, ...]
    questions: tuple[str, ...]  # the texts in `memory`
    entry: Index  # (questions): index of the right entry
    spaces: Spaces
    catalogue: Catalogue
    memory: Memory
    booster: Any  # a lightgbm.Booster
    settings: dict[str, Any]  # hyperparameters, seeds, and hashes of the data and features
    # Seconds by training phase. Not saved, so that the digest is reproducible.
    seconds: dict[str, float] = field(default_factory=dict)

    def features(self, texts: Sequence[str], forget: Index | None = None) -> Array:
        """Return features (texts, entries, features).

        For text i, the memory of entry `forget[i]` is ignored, as if the entry were new.
        """
        queries = self.spaces.embed(texts)
        hidden = np.zeros((len(texts), len(self.entries)), bool)
        if forget is not None:
            hidden[np.arange(len(texts)), forget] = True
        return pair_features(queries, self.catalogue, self.memory, hidden)

    def scores(self, texts: Sequence[str], forget: Index | None = None, threads: int = 0) -> Array:
        """Return raw scores (texts, entries); a higher score means a better answer.

        `forget`: see `features`. `threads` is LightGBM's number of threads; 0 is its default.
        """
        scores = np.empty((len(texts), len(self.entries)), np.float32)
        for start in range(0, len(texts), BLOCK):
            rows = slice(start, start + BLOCK)
            features = self.features(texts[rows], None if forget is None else forget[rows])
            scores[rows] = self.scores_from_features(features, threads)
        return scores

    def scores_from_features(self, features: Array, threads: int = 0) -> Array:
        """Return raw scores (texts, entries) from `features` (texts, entries, features)."""
        rows_of_pairs = features.reshape(-1, len(NAMES))
        scores = self.booster.predict(rows_of_pairs, raw_score=True, num_threads=threads)
        return np.asarray(scores, np.float32).reshape(features.shape[:2])

    def save(self, folder: Path) -> str:
        """Write the model's folder with its manifest; return the folder's digest."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TREES).write_text(self.booster.model_to_string(), encoding="utf-8")
        word, char = self.spaces.word, self.spaces.char
        np.savez(
            folder / ARRAYS,
            word_keys=word.keys,
            word_idf=word.idf,
            char_keys=char.keys,
            char_idf=char.idf,
            weights=self.memory.weights,
            entry=self.entry,
        )
        _write(folder / ENTRIES, [asdict(entry) for entry in self.entries])
        _write(folder / QUESTIONS, list(self.questions))
        _write(folder / SETTINGS, self.settings)
        return write_manifest(folder)

    @classmethod
    def load(cls, folder: Path) -> FaqModel:
        """Load the model in `folder`; the caller has verified its manifest."""
        import lightgbm as lgb

        settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        entries = tuple(Entry(**raw) for raw in json.loads((folder / ENTRIES).read_text("utf-8")))
        questions = tuple(json.loads((folder / QUESTIONS).read_text("utf-8")))
        with np.load(folder / ARRAYS, allow_pickle=False) as arrays:
            spaces = Spaces(
                Vectoriser(
                    "word", 1, settings["word_ngrams"], arrays["word_keys"], arrays["word_idf"]
                ),
                Vectoriser(
                    "char", 3, settings["char_ngrams"], arrays["char_keys"], arrays["char_idf"]
                ),
            )
            weights, entry = arrays["weights"], arrays["entry"]
        catalogue = catalogue_of(spaces, entries)
        memory = Memory.from_questions(spaces.embed(questions), entry, catalogue, weights)
        booster = lgb.Booster(model_file=str(folder / TREES))
        return cls(entries, questions, entry, spaces, catalogue, memory, booster, settings)


def catalogue_of(spaces: Spaces, entries: Sequence[Entry]) -> Catalogue:
    """Return the catalogue of the entries' texts and answers, embedded in `spaces`."""
    return Catalogue.from_texts(
        spaces.embed([entry.text for entry in entries]),
        spaces.embed([answer_text(entry) for entry in entries]),
    )


def answer_text(entry: Entry) -> str:
    """Return the entry's cleaned answer, or its title if it has no answer (intents)."""
    return clean(entry.answer) or entry.title


@dataclass(frozen=True)
class Answer:
    """An entry in its original text, with its score."""

    entry_id: str
    question: str
    answer: str
    score: float  # softmax over all entries, 0 to 1


def softmax(scores: Array) -> NDArray[np.float64]:
    """Return the softmax of raw scores (texts, entries) over the entries."""
    shares = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


class Ranker:
    """Ranks the entries for a question by a trained model."""

    def __init__(self, model: FaqModel) -> None:
        self._model = model

    @classmethod
    def load(cls, folder: Path) -> Ranker:
        """Load the ranker from a model folder; the caller has verified its manifest."""
        return cls(FaqModel.load(folder))

    def rank(self, question: str, top: int = 3) -> list[Answer]:
        """Return the `top` best entries, best first; raise ValueError if `question` is empty."""
        text = clean(question)
        if not text:
            raise ValueError("the question is empty")
        scores = self._model.scores([text])
        shares = softmax(scores)[0]
        best = np.argsort(-scores[0], kind="stable")[:top]
        entries = self._model.entries
        return [
            Answer(entries[i].id, entries[i].question, entries[i].answer, float(shares[i]))
            for i in best
        ]


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
