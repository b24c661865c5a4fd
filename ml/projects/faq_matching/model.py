"""The model: its parts, how it scores, its folder (no pickle; a manifest) and its ranker."""

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
    """Return a hash that changes if a feature is added, renamed or computed in another way."""
    here = Path(__file__).parent
    files = ("features.py", "vectors.py")
    content = b"".join((here / name).read_bytes() for name in files)
    return sha256(",".join(NAMES).encode() + content).hexdigest()


@dataclass(frozen=True)
class FaqModel:
    """A trained matcher."""

    entries: tuple[Entry, ...]
    questions: tuple[str, ...]  # of `memory`
    entry: Index  # (questions): index of the right entry
    spaces: Spaces
    catalogue: Catalogue
    memory: Memory
    booster: Any  # a lightgbm.Booster
    settings: dict[str, Any]  # hyperparameters, seeds, and hashes of the data and features
    # Duration of each training phase; not saved, so that equal training gives an equal digest.
    seconds: dict[str, float] = field(default_factory=dict)

    def features(self, texts: Sequence[str], forget: Index | None = None) -> Array:
        """Return (texts, entries, features); text i ignores the memory of entry `forget[i]`."""
        queries = self.spaces.embed(texts)
        hidden = np.zeros((len(texts), len(self.entries)), bool)
        if forget is not None:
            hidden[np.arange(len(texts)), forget] = True
        return pair_features(queries, self.catalogue, self.memory, hidden)

    def scores(self, texts: Sequence[str], forget: Index | None = None, threads: int = 0) -> Array:
        """Return (texts, entries): the higher, the better the entry answers the text.

        `threads` are LightGBM's; 0 leaves them to it.
        """
        scores = np.empty((len(texts), len(self.entries)), np.float32)
        for start in range(0, len(texts), BLOCK):
            rows = slice(start, start + BLOCK)
            features = self.features(texts[rows], None if forget is None else forget[rows])
            scores[rows] = self.raw(features, threads)
        return scores

    def raw(self, features: Array, threads: int = 0) -> Array:
        """Return `scores` of texts whose features are given."""
        rows_of_pairs = features.reshape(-1, len(NAMES))
        scores = self.booster.predict(rows_of_pairs, raw_score=True, num_threads=threads)
        return np.asarray(scores, np.float32).reshape(features.shape[:2])

    def save(self, folder: Path) -> str:
        """Write the model's folder with its manifest; returns the folder's digest."""
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
        """Load the model in a folder that was verified against its manifest before."""
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
        memory = Memory.recall(spaces.embed(questions), entry, catalogue, weights)
        booster = lgb.Booster(model_file=str(folder / TREES))
        return cls(entries, questions, entry, spaces, catalogue, memory, booster, settings)


def catalogue_of(spaces: Spaces, entries: Sequence[Entry]) -> Catalogue:
    """Embed the text and the answer of each entry, for comparison with questions."""
    return Catalogue.from_texts(
        spaces.embed([entry.text for entry in entries]),
        spaces.embed([answer_text(entry) for entry in entries]),
    )


def answer_text(entry: Entry) -> str:
    """Return the entry's answer, or its title: the name of an intent that has none."""
    return clean(entry.answer) or entry.title


@dataclass(frozen=True)
class Answer:
    """An entry as printed, and its share of the belief in all entries (0…1)."""

    entry_id: str
    question: str
    answer: str
    score: float


def beliefs(scores: Array) -> NDArray[np.float64]:
    """Return (texts, entries): each text's scores as shares that add up to 1."""
    shares = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


class Ranker:
    """A trained model, ready to answer."""

    def __init__(self, model: FaqModel) -> None:
        self._model = model

    @classmethod
    def load(cls, folder: Path) -> Ranker:
        """Load the ranker in a model folder that was verified against its manifest before."""
        return cls(FaqModel.load(folder))

    def rank(self, question: str, top: int = 3) -> list[Answer]:
        """Return the `top` best entries, best first; ValueError for a question without text."""
        text = clean(question)
        if not text:
            raise ValueError("the question is empty")
        scores = self._model.scores([text])
        shares = beliefs(scores)[0]
        best = np.argsort(-scores[0], kind="stable")[:top]
        entries = self._model.entries
        return [
            Answer(entries[i].id, entries[i].question, entries[i].answer, float(shares[i]))
            for i in best
        ]


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
