"""MLTable files: which files they name, how their rows are read, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ml.backends.local.parallel import batches
from ml.toolkit.data import mltables


def table(folder: Path, text: str, **contents: str) -> dict[str, Any]:
    """The description of a table whose MLTable has this text, beside the files given."""
    for name, content in contents.items():
        (folder / name.replace("_", ".", 1)).write_text(content)
    (folder / mltables.FILE).write_text(text)
    return mltables.describe(folder)


def read(folder: Path, steps: str, **contents: str) -> pd.DataFrame:
    """All rows of a table of `a.csv` and `b.csv`."""
    text = "paths:\n  - pattern: ./*.csv\ntransformations:\n" + steps
    return mltables.frame(table(folder, text, **contents), None)


def test_paths(tmp_path: Path) -> None:
    """Files, folders and patterns, in the order of the document."""
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "d.txt").touch()
    text = "paths:\n  - pattern: ./*.csv\n  - folder: ./more\n  - file: z.txt\n"
    found = table(tmp_path, text, b_csv="", a_csv="", z_txt="")
    assert [Path(path).name for path in found["files"]] == ["a.csv", "b.csv", "d.txt", "z.txt"]
    assert found["read"] is None


def test_what_spark_leaves_beside_its_parts_is_no_part(tmp_path: Path) -> None:
    for name in ("a/part-0.csv", "a/_SUCCESS", "a/.part-0.csv.crc", "a/_delta/0.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = table(tmp_path, "paths: [{folder: ./a}]\ntransformations: [read_delimited]\n")
    assert [Path(path).name for path in found["files"]] == ["part-0.csv"]
    assert len(table(tmp_path, "paths: [{folder: ./a}]\n")["files"]) == 4


@pytest.mark.parametrize(
    ("options", "columns", "rows"),
    [
        ("{}", ["x", "y"], 2),
        ("{header: all_files_different_headers}", ["x", "y", "1", "2"], 2),
        ("{header: from_first_file}", ["x", "y"], 3),
        ("{header: no_header}", ["Column1", "Column2"], 4),
        ("{include_path_column: true}", ["Path", "x", "y"], 2),
    ],
)
def test_headers(tmp_path: Path, options: str, columns: list[str], rows: int) -> None:
    """By each of Azure ML's words for them."""
    other = "1,2\n3,4\n" if "different" in options or "first" in options else "x,y\n3,4\n"
    found = read(tmp_path, f"  - read_delimited: {options}\n", a_csv="x,y\n1,2\n", b_csv=other)
    assert (list(found.columns), len(found)) == (columns, rows)


def test_values(tmp_path: Path) -> None:
    """Delimiter, encoding, empty fields, types that are not guessed."""
    (tmp_path / "a.csv").write_bytes("n;s\n01;\n02;é\n".encode("latin-1"))
    options = "delimiter: ';', encoding: latin1"
    plain = read(tmp_path, f"  - read_delimited: {{{options}}}\n")
    assert list(plain["n"]) == [1, 2] and plain["s"].isna()[0] and plain["s"][1] == "é"
    kept = f"  - read_delimited: {{{options}, empty_as_string: true, infer_column_types: false}}\n"
    assert read(tmp_path, kept).to_dict("list") == {"n": ["01", "02"], "s": ["", "é"]}


def test_a_delimiter_at_the_end_of_each_line(tmp_path: Path) -> None:
    """Moves no column; a field that no column has is refused."""
    rows = read(tmp_path, "  - read_delimited\n", a_csv="x,y\n1,2,\n3,4,\n")
    assert rows.to_dict("list") == {"x": [1, 3], "y": [2, 4]}
    with pytest.raises(mltables.Unreadable, match=r"a\.csv has rows with more fields"):
        read(tmp_path, "  - read_delimited\n", a_csv="x,y\n1,2,3\n")


def test_json_lines(tmp_path: Path) -> None:
    """A line that is no JSON is an error, or dropped when the table says so."""
    text = (
        "paths: [{file: rows.jsonl}]\ntransformations:\n  - read_json_lines: {invalid_lines: %s}\n"
    )
    lines = {"rows_jsonl": '{"a": 1}\nnonsense\n\n{"a": 2}\n'}
    found = mltables.frame(table(tmp_path, text % "drop", **lines), None)
    assert list(found["a"]) == [1, 2]
    with pytest.raises(mltables.Unreadable, match="nonsense"):
        mltables.frame(table(tmp_path, text % "error", **lines), None)


@pytest.mark.parametrize("mark", ["\u2028", "\x85", "\x0b"])
def test_a_text_of_json_lines_has_any_end_of_line_but_one(tmp_path: Path, mark: str) -> None:
    text = "paths: [{file: rows.jsonl}]\ntransformations: [read_json_lines]\n"
    line = '{"a": "late%sfee"}\r\n' % (mark if mark > " " else "\\u000b")
    found = mltables.frame(table(tmp_path, text, rows_jsonl=line * 2), None)
    assert [*found["a"]] == [f"late{mark}fee"] * 2


@pytest.mark.parametrize(
    ("content", "said"), [("é".encode("latin-1"), "utf-8"), (b"[1, 2]\n", "not a JSON object")]
)
def test_lines_that_are_no_rows(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "rows.jsonl").write_bytes(content)
    text = "paths: [{file: rows.jsonl}]\ntransformations: [read_json_lines]\n"
    with pytest.raises(mltables.Unreadable, match=rf"rows\.jsonl: .*{said}"):
        mltables.frame(table(tmp_path, text), None)


def test_parquet(tmp_path: Path) -> None:
    """Columns keep their types."""
    pd.DataFrame({"a": [1, 2], "s": ["x", "y"]}).to_parquet(tmp_path / "f.parquet")
    text = "paths: [{file: f.parquet}]\ntransformations: [read_parquet]\n"
    found = mltables.frame(table(tmp_path, text), None)
    assert found.to_dict("list") == {"a": [1, 2], "s": ["x", "y"]}


def test_columns_that_are_left_out(tmp_path: Path) -> None:
    """In the order of the steps; one that is not there is named."""
    steps = "  - read_delimited\n  - drop_columns: y\n  - keep_columns: [z, x]\n"
    assert list(read(tmp_path, steps, a_csv="x,y,z\n1,2,3\n").columns) == ["z", "x"]
    with pytest.raises(mltables.Unreadable, match="`keep_columns` names `y`"):
        read(tmp_path, steps.replace("z, x", "y"), a_csv="x,y,z\n1,2,3\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("paths: [{file: a.csv}]\ntransformations: [filter: 'col(1)']\n", "`filter`"),
        ("paths: [{folder: .}]\ntransformations: [read_delta_lake: {}]\n", "`read_delta_lake`"),
        ("paths: [{file: none.csv}]\n", "there is no file"),
        ("paths: [{file: 'https://example.org/x.csv'}]\n", "not on this machine"),
        ("paths: [{file: 'azureml:x:1'}]\n", "not on this machine"),
        ("paths: []\ntransformations: [read_delimited: {quote: x}]\n", "`quote`"),
        ("paths: []\ntransformations: [read_delimited, take: 3]\n", "`take`"),
        ("paths: []\ntransformations: [read_parquet, read_delimited]\n", "`read_delimited`"),
        ("paths: [\n", "MLTable"),
    ],
)
def test_what_is_not_read_here(tmp_path: Path, text: str, said: str) -> None:
    """Said with the file, before anything runs; never left out silently."""
    with pytest.raises(mltables.Unreadable, match=said):
        table(tmp_path, text, a_csv="x\n1\n")


def test_a_file_that_is_a_folder(tmp_path: Path) -> None:
    """A public job says `file:` of a folder, and has its files divided."""
    (tmp_path / "mnist").mkdir()
    for name in ("1.png", "0.png"):
        (tmp_path / "mnist" / name).touch()
    found = table(tmp_path, "paths: [{file: ./mnist}]\n")
    assert [Path(path).name for path in found["files"]] == ["0.png", "1.png"]


def test_a_folder_or_a_file_without_a_table(tmp_path: Path) -> None:
    """All files below, sorted; a file is itself."""
    (tmp_path / "x" / "y").mkdir(parents=True)
    for name in ("b.txt", "x/y/a.txt"):
        (tmp_path / name).touch()
    names = [Path(path).name for path in mltables.describe(tmp_path)["files"]]
    assert names == ["b.txt", "a.txt"]
    alone = mltables.describe(tmp_path / "b.txt")["files"]
    assert [Path(path).name for path in alone] == ["b.txt"]


def test_files_in_mini_batches(tmp_path: Path) -> None:
    """By number; one each when nothing is said."""
    found = {"files": list("abcde"), "read": None}
    assert [one["files"] for one in batches.divide(found, 2, [])] == [
        ["a", "b"],
        ["c", "d"],
        ["e"],
    ]
    assert [one["items"] for one in batches.divide(found, 0, [])] == [1] * 5
    assert [one["id"] for one in batches.divide(found, 3, [])] == [0, 1]
    (tmp_path / "a.txt").touch()
    with pytest.raises(mltables.Unreadable, match="divided by store"):
        batches.describe(tmp_path, ["store"])
