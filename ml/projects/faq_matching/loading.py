"""Read an FAQ from TSV tables (as Stack Overflow's) or from labelled intents."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from ml.projects.faq_matching.text import clean
from ml.toolkit.data.tables import DataRefused, Flaw, Table, TableSchema, dangling, read_table

SCHEMAS = Path(__file__).parent / "data"
DEFAULT_SCHEMA = SCHEMAS / "faq.schema.yml"


@dataclass(frozen=True)
class Entry:
    """One question and answer of the FAQ, with the original text."""

    id: str
    question: str
    answer: str
    topic: str = ""
    title: str = ""  # a name in words; often ""

    @property
    def text(self) -> str:
        """Return the entry's title and question, cleaned for the model."""
        return clean(f"{self.title}. {self.question}" if self.title else self.question)


@dataclass(frozen=True)
class Question:
    """A question that a person asked."""

    id: str
    entry: int  # index of the entry that answers it
    text: str  # cleaned by `text.clean`
    held_out: bool = False  # the data itself reserves it for testing


@dataclass(frozen=True)
class Faq:
    """Entries and the questions that people asked about them."""

    entries: tuple[Entry, ...]
    questions: tuple[Question, ...]
    sha256: str  # of the files' content


@dataclass(frozen=True)
class DataSchema:
    """The schema of a data asset's tables, and the handling of invalid rows."""

    layout: str  # `tsv` or `intents`
    tables: dict[str, TableSchema]  # by file name
    # True: drop rows with an empty text, a repeated id or an unknown reference. False: reject the
    # data.
    repair: bool = False
    min_characters: int = 1  # shorter questions are always dropped
    # Questions per entry. With `repair` and the layout `tsv`, an entry with fewer is dropped;
    # otherwise the data is rejected.
    min_questions: int = 1

    @classmethod
    def read(cls, path: Path) -> DataSchema:
        """Read the schema in a YAML file; raise DataRefused if it is invalid."""
        try:
            raw: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
            tables = {name: TableSchema.parse(table) for name, table in raw.pop("tables").items()}
            return cls(tables=tables, **raw)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
            problem, expected = f"not a data schema: {error!r}", "YAML with layout and tables"
            raise DataRefused([Flaw("wrong-schema", path, 0, problem, expected)]) from None


def read(folder: Path, schema: Path = DEFAULT_SCHEMA) -> Faq:
    """Read the FAQ in `folder`; raise DataRefused with every violation of the schema."""
    if not folder.is_dir():
        problem, hint = "there is no such folder", "give --faq the folder of the data asset"
        raise DataRefused([Flaw("missing-folder", folder, 0, problem, "a folder", hint)])
    rules = DataSchema.read(schema)
    tables: dict[str, Table] = {}
    wrong: list[Flaw] = []
    digest = sha256()
    for name, table_schema in rules.tables.items():
        path = folder / name
        if not path.exists() and (folder / f"{name}.gz").exists():
            path = folder / f"{name}.gz"
        if not path.exists() and not table_schema.required:
            continue
        tables[name], findings = read_table(path, table_schema)
        wrong += findings
        if path.is_file():
            digest.update(f"{name}\n".encode() + sha256(path.read_bytes()).digest())
    wrong += dangling(tables)
    if rules.repair:
        wrong = [finding for finding in wrong if finding.code not in _REPAIRED]
    if wrong:
        raise DataRefused(wrong)
    build = _intents if rules.layout == "intents" else _tsv
    faq = replace(build(tables, rules), sha256=digest.hexdigest())
    question_count = Counter(question.entry for question in faq.questions)
    for index, entry in enumerate(faq.entries):
        if question_count[index] < max(rules.min_questions, 1):
            problem = f"entry {entry.id} has {question_count[index]} questions with text"
            least = f"{rules.min_questions} or more"
            hint = "add questions to the entry, or lower `min_questions` in the data schema"
            wrong.append(Flaw("too-few-questions", folder, 0, problem, least, hint))
    if wrong or not faq.questions:
        raise DataRefused(
            wrong or [Flaw("too-few-rows", folder, 0, "no question", "at least one question")]
        )
    return faq


_REPAIRED = frozenset({"empty-value", "duplicate-id", "unknown-id"})


def _tsv(tables: dict[str, Table], rules: DataSchema) -> Faq:
    """Build the FAQ from the tables orig-q, dup-q (Id, AnswerId, Text0 …) and ans."""
    dropped: Counter[str] = Counter()
    answers = {row[0]: row[1] for row in reversed(tables["ans.tsv"].rows)}
    topics: dict[str, str] = {}
    if "topics.tsv" in tables:
        topics = {row[0]: row[1] for row in tables["topics.tsv"].rows}
    entries: dict[str, Entry] = {}
    ids: set[str] = set()
    for id_, answer_id, text, *_ in tables["orig-q.tsv"].rows:
        if id_ in ids or answer_id in entries or answer_id not in answers:
            dropped["original questions repeated or without an answer"] += 1
        elif len(clean(text)) < rules.min_characters:
            dropped["original questions too short"] += 1
        else:
            ids.add(id_)
            entries[answer_id] = Entry(id_, text, answers[answer_id], topics.get(id_, ""))
    duplicates: dict[str, tuple[str, str]] = {}
    for id_, answer_id, text, *_ in tables["dup-q.tsv"].rows:
        cleaned = clean(text)
        if id_ in ids or id_ in duplicates or answer_id not in entries:
            dropped["duplicates repeated or of an unknown question"] += 1
        elif len(cleaned) < rules.min_characters:
            dropped["duplicates too short"] += 1
        else:
            duplicates[id_] = (answer_id, cleaned)
    count = Counter(answer_id for answer_id, _ in duplicates.values())
    fewest = rules.min_questions if rules.repair else 0
    entry_ids = [answer_id for answer_id in entries if count[answer_id] >= fewest]
    dropped["original questions with too few duplicates"] = len(entries) - len(entry_ids)
    _report_dropped(dropped)
    places = {answer_id: index for index, answer_id in enumerate(entry_ids)}
    questions = (Question(i, places[a], text) for i, (a, text) in duplicates.items() if a in places)
    return Faq(tuple(entries[answer_id] for answer_id in entry_ids), tuple(questions), "")


def _intents(tables: dict[str, Table], rules: DataSchema) -> Faq:
    """Build the FAQ from intents; an entry is an intent's name and first training question."""
    entries: dict[str, Entry] = {}
    questions: list[Question] = []
    places: dict[str, int] = {}
    # Training tables define the entries, so they are read before the test tables.
    for name, table in sorted(tables.items(), key=lambda item: item[0].startswith("test")):
        rows = zip(table.column("text"), table.column("category"), table.lines, strict=True)
        for raw, intent, line in rows:
            held_out = name.startswith("test")
            if intent not in places and not held_out:
                places[intent] = len(places)
                words = intent.replace("_", " ").replace("-", " ").strip().lower()
                entries[intent] = Entry(intent, raw.strip(), "", title=words)
            elif intent in places and len(clean(raw)) >= rules.min_characters:
                questions.append(Question(f"{name}:{line}", places[intent], clean(raw), held_out))
    return Faq(tuple(entries.values()), tuple(questions), "")


def _report_dropped(dropped: Counter[str]) -> None:
    """Print the number of dropped rows by reason to stderr."""
    for what, count in sorted(dropped.items()):
        if count:
            print(f"left out: {count} {what}", file=sys.stderr)
