"""Small FAQs made from a seed, in each layout that the loader reads."""

from __future__ import annotations

import random
from pathlib import Path

import yaml

ENTRIES, QUESTIONS = 24, 14
OPENINGS = ["how do i", "please", "can we", "what about", "why does it", "i want to", "where to"]
FILLERS = ["today", "really", "with", "my", "account", "again", "for", "us", "now", "here", "still"]


def wordings(seed: int = 0) -> list[tuple[str, str, list[str]]]:
    """(question, answer, paraphrases) of each entry: five words of its own, used in part."""
    rng = random.Random(seed)
    letters = "bcdfghklmnprstvz"
    word = lambda: "".join(rng.choice(letters) + rng.choice("aeiou") for _ in range(3))  # noqa: E731
    shared = [word() for _ in range(40)]
    entries = []
    for _ in range(ENTRIES):
        own = [word() for _ in range(5)]
        questions: set[str] = set()
        while len(questions) < QUESTIONS:
            words = [*rng.sample(own, 2), *rng.sample(shared, 3), *rng.sample(FILLERS, 2)]
            rng.shuffle(words)
            questions.add(f"{rng.choice(OPENINGS)} {' '.join(words)}?")
        answer = f"You {own[0]} the {own[1]} with {' '.join(rng.sample(shared, 4))}."
        entries.append((f"How to {own[0]} {own[2]} {own[3]}?", answer, sorted(questions)))
    return entries


def write_tsv(folder: Path, seed: int = 0) -> Path:
    """The reference's layout with topics."""
    folder.mkdir(parents=True, exist_ok=True)
    originals, duplicates, answers, topics = [], [], [], []
    for at, (question, answer, questions) in enumerate(wordings(seed)):
        originals.append(f"e{at}\ta{at}\t{question}\t2026-01-31")
        answers.append(f"a{at}\t{answer}")
        topics.append(f"e{at}\ttopic-{at % 3}")
        duplicates += [f"e{at}-{n}\ta{at}\t{t}\t2026-01-31" for n, t in enumerate(questions)]
    for name, rows in (
        ("orig-q", originals),
        ("dup-q", duplicates),
        ("ans", answers),
        ("topics", topics),
    ):
        (folder / f"{name}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def write_intents(folder: Path, seed: int = 0) -> Path:
    """banking77's layout: train.csv and test.csv with a header."""
    folder.mkdir(parents=True, exist_ok=True)
    train, test = ["text,category"], ["text,category"]
    for at, (_, _, questions) in enumerate(wordings(seed)):
        train += [f'"{text}",intent_number_{at}' for text in questions[:10]]
        test += [f'"{text}",intent_number_{at}' for text in questions[10:]]
    (folder / "train.csv").write_text("\n".join(train) + "\n", encoding="utf-8")
    (folder / "test.csv").write_text("\n".join(test) + "\n", encoding="utf-8")
    return folder


def small_schema(schema: Path, to: Path) -> Path:
    """A schema of the project with row bounds that fit generated data."""
    content = yaml.safe_load(schema.read_text(encoding="utf-8"))
    for table in content["tables"].values():
        table["rows"] = [1, 10_000]
    to.write_text(yaml.safe_dump(content), encoding="utf-8")
    return to
