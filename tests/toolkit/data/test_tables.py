"""The checks of tables: each rule with data that is allowed and data that is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from ml.toolkit.data.tables import DataRefused, TableSchema, dangling, read_table

QUESTIONS = TableSchema.parse(
    {
        "rows": [2, 4],
        "columns": [
            {"name": "Id", "type": "id", "unique": True},
            {"name": "AnswerId", "type": "id", "refers_to": "ans.tsv"},
            {"name": "Text0", "type": "text"},
            {"name": "CreationDate", "type": "timestamp"},
        ],
    }
)
GOOD = "q1\ta1\thow?\t2026-01-31\nq2\ta1\twhy?\t2026-01-31T10:00:00\n"


def findings(tmp_path: Path, content: str | bytes):
    path = tmp_path / "q.tsv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_table(path, QUESTIONS)


def test_a_table_that_keeps_its_schema(tmp_path: Path):
    """Rows and the lines that they stand on."""
    table, wrong = findings(tmp_path, GOOD)
    assert wrong == [] and table.column("Text0") == ["how?", "why?"] and table.lines == [1, 2]


def test_a_quoted_field_may_hold_line_breaks(tmp_path: Path):
    """The line of a row is the one on which it begins."""
    table, wrong = findings(tmp_path, 'q1\ta1\t"two\nlines"\t2026-01-31\nq2\ta1\tb\t2026-01-31\n')
    assert wrong == [] and table.lines == [1, 3] and table.rows[0][2] == "two\nlines"


def test_gzip_is_read_alike(tmp_path: Path):
    """The original files come compressed."""
    path = tmp_path / "q.tsv.gz"
    path.write_bytes(gzip.compress(GOOD.encode()))
    table, wrong = read_table(path, QUESTIONS)
    assert wrong == [] and len(table.rows) == 2


@pytest.mark.parametrize(
    ("code", "content", "line"),
    [
        ("missing-column", GOOD + "q3\ta1\ttext\n", 3),
        ("extra-column", GOOD + "q3\ta1\ttext\t2026-01-31\tmore\n", 3),
        ("empty-value", GOOD + "q3\ta1\t \t2026-01-31\n", 3),
        ("wrong-type", GOOD + "q3\ta1\ttext\tyesterday\n", 3),
        ("wrong-type", GOOD + "q 3\ta1\ttext\t2026-01-31\n", 3),
        ("duplicate-id", GOOD + "q1\ta1\ttext\t2026-01-31\n", 3),
        ("duplicate-id", GOOD + " q1 \ta1\ttext\t2026-01-31\n", 3),
        ("empty-value", GOOD + "q3\ta1\ttext\tNA\n", 3),
        ("too-few-rows", GOOD.splitlines()[0] + "\n", 0),
        ("too-many-rows", "".join(f"q{i}\ta1\tt\t2026-01-31\n" for i in range(5)), 0),
        ("unreadable", b"q1\ta1\t\xff\xfe\t2026-01-31\n", 1),
    ],
)
def test_what_is_refused(tmp_path: Path, code: str, content: str | bytes, line: int):
    """One finding with the rule's name, the file and the line."""
    _, wrong = findings(tmp_path, content)
    assert [(finding.code, finding.line) for finding in wrong] == [(code, line)]
    where = f"q.tsv:{line}" if line else "q.tsv"
    assert f"error[{code}]" in str(wrong[0]) and where in str(wrong[0])


def test_a_missing_file(tmp_path: Path):
    """The path is named."""
    _, wrong = read_table(tmp_path / "none.tsv", QUESTIONS)
    assert wrong[0].code == "missing-file" and "none.tsv" in str(wrong[0])


def test_a_header_must_be_the_columns(tmp_path: Path):
    """A table with a header: allowed as declared, refused with another name."""
    columns = [{"name": "text", "type": "text"}, {"name": "category", "type": "id"}]
    schema = TableSchema.parse(
        {"header": True, "delimiter": ",", "rows": [1, 9], "columns": columns}
    )
    path = tmp_path / "t.csv"
    path.write_text("text,category\nhello,greet\n")
    assert read_table(path, schema)[1] == []
    path.write_text("text,label\nhello,greet\n")
    assert [finding.code for finding in read_table(path, schema)[1]] == ["missing-column"]


@pytest.mark.parametrize(
    ("content", "code", "told"),
    [
        ("day,who\n2026-01-31,a\n", "missing-column", "missing: text"),
        ("day,who,text,more\n2026-01-31,a,hi,1\n", "extra-column", "unexpected: more"),
        (
            "who,day,text\na,2026-01-31,hi\n",
            "column-order",
            "in another order: column 1 is who, expected day; column 2 is day, expected who",
        ),
        (
            "who,when,day\na,1,31/1/26\nb,2,1/2/26\n",
            "missing-column",
            "missing: text; unexpected: when; in another order: column 1 is who, expected day; "
            "column 3 is day, expected who; "
            "of another type: day (not of type timestamp: '31/1/26')",
        ),
    ],
)
def test_other_columns_are_told_in_one_place(tmp_path: Path, content: str, code: str, told: str):
    """What is missing, unexpected, moved or of another type; the file as declared is allowed."""
    columns = [("day", "timestamp"), ("who", "id"), ("text", "text")]
    schema = TableSchema.parse(
        {
            "header": True,
            "delimiter": ",",
            "rows": [1, 9],
            "columns": [{"name": name, "type": kind} for name, kind in columns],
        }
    )
    path = tmp_path / "t.csv"
    path.write_text("day,who,text\n2026-01-31,a,hi\n")
    assert read_table(path, schema)[1] == []
    path.write_text(content)
    (wrong,) = read_table(path, schema)[1]
    assert (wrong.code, wrong.line) == (code, 1)
    assert wrong.actual == f"the columns differ; {told}"
    assert wrong.expected == "day (timestamp), who (id), text (text)"


def test_references(tmp_path: Path):
    """A known answer is allowed, an unknown one is named with its line."""
    answers = TableSchema.parse({"rows": [1, 9], "columns": [{"name": "Id", "type": "id"}]})
    (tmp_path / "ans.tsv").write_text("a1\n")
    known, _ = read_table(tmp_path / "ans.tsv", answers)
    good, _ = findings(tmp_path, GOOD)
    assert dangling({"q.tsv": good, "ans.tsv": known}) == []
    bad, _ = findings(tmp_path, GOOD.replace("q2\ta1", "q2\ta9"))
    wrong = dangling({"q.tsv": bad, "ans.tsv": known})
    assert [(finding.code, finding.line) for finding in wrong] == [("unknown-id", 2)]
    assert "a9" in str(DataRefused(wrong))


def test_many_findings_are_shortened(tmp_path: Path):
    """All are kept; a person reads twenty and how many more there are."""
    _, wrong = findings(tmp_path, "short\n" * 60)
    refused = DataRefused(wrong)
    assert len(refused.findings) == 60 and "and 40 more" in str(refused)
