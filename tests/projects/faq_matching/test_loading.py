"""The three layouts, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from ml.projects.faq_matching.loading import SCHEMAS, read
from ml.toolkit.data.tables import DataRefused
from tests.conftest import ROOT
from tests.projects.faq_matching.generated import (
    ENTRIES,
    QUESTIONS,
    small_schema,
    write_intents,
    write_tsv,
)

BANKING = ROOT / "../shared/data/banking77"


def codes(folder: Path, schema: Path) -> set[str]:
    with pytest.raises(DataRefused) as refused:
        read(folder, schema)
    return {finding.code for finding in refused.value.findings}


def test_our_layout(folder: Path, schema: Path):
    """Entries with topics and answers; every question knows its entry."""
    faq = read(folder, schema)
    assert len(faq.entries) == ENTRIES and len(faq.questions) == ENTRIES * QUESTIONS
    assert all(question.id.startswith(f"e{question.entry}-") for question in faq.questions)
    assert faq.entries[4].topic == "topic-1" and faq.entries[4].answer.startswith("You ")


def test_the_hash_follows_the_content(tmp_path: Path, schema: Path):
    """The same files, the same hash; one letter more, another."""
    a, b = write_tsv(tmp_path / "a"), write_tsv(tmp_path / "b")
    assert read(a, schema).sha256 == read(b, schema).sha256
    path = b / "ans.tsv"
    path.write_text(path.read_text().replace("You ", "Youu ", 1))
    assert read(a, schema).sha256 != read(b, schema).sha256


@pytest.mark.parametrize(
    ("code", "file", "old", "new"),
    [
        ("unknown-id", "dup-q.tsv", "e3-2\ta3", "e3-2\ta999"),
        ("duplicate-id", "dup-q.tsv", "e3-2\t", "e3-1\t"),
        ("wrong-type", "orig-q.tsv", "2026-01-31", "soon"),
        ("unknown-id", "topics.tsv", "e3\t", "e333\t"),
        ("missing-column", "orig-q.tsv", "e3\ta3\t", "e3 a3 "),
    ],
)
def test_broken_data_is_refused(
    tmp_path: Path, schema: Path, code: str, file: str, old: str, new: str
):
    """Each rule, in a copy with one fault."""
    folder = write_tsv(tmp_path / "faq")
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1))
    assert code in codes(folder, schema)


def test_an_entry_needs_its_paraphrases(tmp_path: Path, schema: Path):
    """Two questions of 14 dropped are allowed; three are refused, and the entry is named."""
    folder = write_tsv(tmp_path / "faq")
    rows = (folder / "dup-q.tsv").read_text().splitlines()
    for dropped, fine in ((2, True), (3, False)):
        valid_rows = [
            row for row in rows if not row.startswith(tuple(f"e5-{n}\t" for n in range(dropped)))
        ]
        (folder / "dup-q.tsv").write_text("\n".join(valid_rows) + "\n")
        if fine:
            assert len(read(folder, schema).questions) == len(valid_rows)
        else:
            with pytest.raises(DataRefused, match="entry e5 has 11"):
                read(folder, schema)


def test_missing_folder_and_files(tmp_path: Path, schema: Path):
    """Both are named, with what to do."""
    assert codes(tmp_path / "none", schema) == {"missing-folder"}
    assert codes(tmp_path, schema) == {"missing-file"}


@pytest.mark.parametrize("content", ["layout: tsv", "[1, 2]", "tables: {a.tsv: {rows: [1]}}", "{"])
def test_a_schema_that_is_none(folder: Path, tmp_path: Path, content: str):
    """An unusable schema is said to be one."""
    (tmp_path / "s.yml").write_text(content)
    assert codes(folder, tmp_path / "s.yml") == {"wrong-schema"}


def test_stack_overflow_files_are_repaired(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Compressed, with markup and leaks, repeated ids and orphans: dropped, and the drops told."""
    body = "my event handlers all see the last value of the variable when they run later on " * 2
    title = "how do closures in loops work"
    originals = [
        f"1\t11\t{title} {body}\t2011-01-01T00:00:00Z",
        f"2\t12\twhat does this mean {body}\t2011-01-01T00:00:00Z",
        f"1\t12\tthe same id again {body}\t2011-01-01T00:00:00Z",
        f"3\t99\tno such answer {body}\t2011-01-01T00:00:00Z",
    ]
    leak = f"<blockquote><p>Possible Duplicate: <a href='x'>{title}</a></p></blockquote>"
    duplicates = [
        f'{100 + n}\t{11 + n % 2}\t"{leak}\n<p>{body} number {n} <code>x()</code></p>"\t2012-01-01'
        for n in range(26)
    ]
    duplicates += ["1\t11\tan id of an original\t2012-01-01", "300\t11\tshort\t2012-01-01"]
    answers = ["11\t<p>Use let.</p>", "12\tIt is the receiver."]
    for name, rows in (("orig-q", originals), ("dup-q", duplicates), ("ans", answers)):
        (tmp_path / f"{name}.tsv.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    faq = read(tmp_path, SCHEMAS / "stackoverflow.schema.yml")
    assert [entry.id for entry in faq.entries] == ["1", "2"] and len(faq.questions) == 26
    assert not any(title in question.text or "x()" in question.text for question in faq.questions)
    output = capsys.readouterr().err
    assert "2 original questions repeated" in output and "1 duplicates too short" in output


def check_intents(folder: Path, schema: Path) -> None:
    faq = read(folder, schema)
    held_out = [question for question in faq.questions if question.held_out]
    assert held_out and len(held_out) < len(faq.questions)
    for entry in faq.entries:
        assert entry.text.startswith(entry.title) and "_" not in entry.title
    first = {entry.question for entry in faq.entries}
    assert len(first) == len(faq.entries)


def test_intents_as_entries(tmp_path: Path):
    """An intent's name in words and its first question; the test file's questions are held out."""
    schema = small_schema(SCHEMAS / "banking77.schema.yml", tmp_path / "s.yml")
    folder = write_intents(tmp_path / "intents")
    check_intents(folder, schema)
    assert len(read(folder, schema).questions) == ENTRIES * (QUESTIONS - 1)


@pytest.mark.skipif(not BANKING.is_dir(), reason="no copy of banking77 is here")
def test_banking77_where_it_is():
    """The real files; the generated stand-in is tested above in any case."""
    faq = read(BANKING, SCHEMAS / "banking77.schema.yml")
    assert len(faq.entries) == 77 and len(faq.questions) == 13083 - 77
    check_intents(BANKING, SCHEMAS / "banking77.schema.yml")
