"""MLTable files: found beside the data, wrong ones named by their own lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from ml.specs.check.check import check
from ml.specs.sdk.load import load

JOB = (
    "command: ls ${{inputs.t}}\ninputs:\n  t:\n    type: mltable\n    path: ./table\n"
    "environment: azureml:e:1\ncompute: azureml:c\n"
)
GOOD = "paths:\n  - file: ./train.csv\ntransformations:\n  - read_delimited: {delimiter: ','}\n"


def problems_of(repo: Path, table: str | None) -> list[tuple[str, str, str]]:
    """Severity, code and place of what is wrong with a job that reads the table."""
    (repo / "table").mkdir()
    (repo / "table" / "train.csv").write_text("a\n1\n")
    (repo / "table" / "more").mkdir()
    if table is not None:
        (repo / "table" / "MLTable").write_text(table)
    (repo / "job.yml").write_text(JOB)
    problems = check(load(Path("job.yml")))
    return [(problem.severity, problem.code, str(problem.place)) for problem in problems]


@pytest.mark.parametrize(
    "table",
    [
        GOOD,
        "paths: [{folder: ./more}]\n",
        "paths: [{pattern: './*.csv'}]\n",
        "paths: [{file: 'https://account.blob.core.windows.net/c/a.csv'}]\n",
        "paths: [{file: 'azureml://datastores/d/paths/a.csv'}]\n",
        "type: mltable\n" + GOOD + "  - convert_column_types:\n"
        "    - {columns: [a], column_type: int}\n"
        "    - {columns: b, column_type: {datetime: {formats: ['%Y']}}}\n"
        "    - {columns: c, column_type: {boolean: {true_values: ['1'], false_values: ['0']}}}\n"
        "  - drop_columns: [a]\n  - filter: 'col(\"a\") > 3'\n  - take: 5\n",
        "paths: [{folder: ./more}]\ntransformations: [read_parquet, {skip: 1}]\n",
        "paths: [{folder: ./more}]\ntransformations: [{read_delta_lake: {version_as_of: 1}}]\n",
        "paths: [{pattern: '**/*.csv'}]\ntransformations: [{filter: a < 3}, {skip: 0}]\n",
    ],
)
def test_a_table_that_can_be_read(repo: Path, table: str) -> None:
    """Files, folders and patterns beside it, and addresses."""
    assert problems_of(repo, table) == []


@pytest.mark.parametrize(
    ("table", "severity", "code", "place"),
    [
        (None, "error", "bad-mltable", "job.yml:5"),
        ("type: mltable\n", "error", "bad-mltable", "table/MLTable:1"),
        ("paths:\n  - file: a\n    folder: b\n", "error", "bad-mltable", "table/MLTable:2"),
        ("paths:\n  - ./train.csv\n", "error", "bad-mltable", "table/MLTable:2"),
        ("paths: [\n", "error", "bad-mltable", "table/MLTable:2"),
        ("paths:\n  - file: none.csv\n", "error", "bad-mltable", "table/MLTable:2"),
        ("paths:\n  - folder: ./none\n", "error", "bad-mltable", "table/MLTable:2"),
        ("paths:\n  - pattern: ./*.tsv\n", "error", "bad-mltable", "table/MLTable:2"),
        (GOOD[:29] + "transformations: {take: 3}\n", "error", "bad-mltable", "table/MLTable:3"),
        ("type: table\n" + GOOD, "error", "bad-mltable", "table/MLTable:1"),
        *(
            (f"{GOOD[:29]}transformations:\n  {step}\n", "error", "bad-mltable", "table/MLTable:4")
            for step in (
                *("- read_csv: {}", "- read_delimeted", "- 3", "- {take: 5, skip: 1}", "- {}"),
                "- read_delimited: {encoding: utf-8}",
                *("- read_delimited: {header: yes}", "- read_json_lines: {invalid_lines: skip}"),
                *("- convert_column_types: [{columns: a, column_type: integer}]", "- take: all"),
                *("- convert_column_types: [{columns: a}]", "- convert_column_types: {a: int}"),
                "- convert_column_types: [{columns: a, column_type: {date: {formats: ['%Y']}}}]",
                *("- convert_column_types: [{columns: a, column_type: datetime}]", "- skip: -1"),
                *("- take_random_sample: {probability: 10}", "- drop_columns: 3", "- filter: 3"),
            )
        ),
    ],
)
def test_a_table_that_cannot(
    repo: Path, table: str | None, severity: str, code: str, place: str
) -> None:
    """At the line of the file that is wrong."""
    assert problems_of(repo, table) == [(severity, code, place)]


@pytest.mark.parametrize("path", ["file: rows.csv", "folder: .", "pattern: ./*.csv"])
def test_a_text_of_several_lines(repo: Path, path: str) -> None:
    """Azure ML ends a record at each line break, unless the table says otherwise."""
    table = repo / "lines" / "MLTable"
    (repo / "job.yml").write_text(JOB.replace("./table", "./lines"))
    for options, expected in (
        ("", [("bad-mltable", "lines/MLTable:1")]),
        (", support_multi_line: false", [("bad-mltable", "lines/MLTable:1")]),
        (", support_multi_line: true", []),
        (", delimiter: ';', support_multi_line: true", []),
    ):
        table.write_text(
            f"paths: [{{{path}}}]\n"
            f"transformations: [{{read_delimited: {{encoding: utf8{options}}}}}]\n"
        )
        actual = check(load(Path("job.yml")))
        assert [(problem.code, str(problem.place)) for problem in actual] == expected
