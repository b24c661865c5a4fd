"""Every node has its line, whatever the style; what would hang or crash a reader is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ml.core.documents import MAX_DEPTH, parse, read, strings
from ml.core.errors import Place, UserError

BLOCK = """\
# a comment
inputs:
  faq:
    type: uri_folder
    path: data
  rates:
    - 0.1
    - 0.2
tags: {a: one,
       b: two}
"""


def codes(text: str) -> list[str]:
    with pytest.raises(UserError) as refused:
        parse(text, "x.yml")
    return [problem.code for problem in refused.value.problems]


def test_positions_in_block_and_flow_style() -> None:
    """Keys point to their own line and column, items to theirs, what is not there to its parent."""
    document = parse(BLOCK, "x.yml")
    expected = {
        (): (2, 1),
        ("inputs",): (2, 1),
        ("inputs", "faq", "path"): (5, 5),
        ("inputs", "rates", 1): (8, 7),
        ("tags", "a"): (9, 8),
        ("tags", "b"): (10, 8),
        ("inputs", "faq", "gone"): (3, 3),
        ("inputs", "rates", 9): (6, 3),
        ("gone", "deep"): (2, 1),
    }
    assert {keys: document.position(*keys) for keys in expected} == expected
    assert str(document.place("inputs", "faq", "type")) == "x.yml:4"


def test_positions_through_aliases_and_merge_keys() -> None:
    """An alias's content and a merged key stand where they are written."""
    document = parse("a: &x\n  one: 1\nb: *x\nc:\n  <<: *x\n  two: 2\n", "x.yml")
    assert document.position("b", "one") == (2, 3)
    assert document.position("c", "one") == (2, 3)
    assert document.position("c", "two") == (6, 3)
    assert document.get("c") == {"one": 1, "two": 2}


def test_keys_other_than_text() -> None:
    """A number or a date as a key is found by its text."""
    document = parse("1: one\n2024-01-01: day\n", "x.yml")
    assert document.position(1) == (1, 1)
    assert document.position("2024-01-01") == (2, 1)


def test_strings_come_with_their_keys() -> None:
    """`strings` visits every text, in order, with the way to it."""
    assert list(strings({"a": ["x", 1, {"b": "y"}]})) == [(("a", 0), "x"), (("a", 2, "b"), "y")]


@pytest.mark.attack("A key is written twice, so that reader and parser see different values")
def test_all_duplicates_are_reported_at_once() -> None:
    """Two duplicate keys are two problems."""
    assert codes("a: 1\na: 2\nb: {c: 1, c: 2}\n") == ["duplicate-key", "duplicate-key"]
    parse("a: &a {b: 1}\nc: &c {d: 2}\ne: {<<: *a, <<: *c}\n1: x\n'1': y\n", "x.yml")


@pytest.mark.attack("A small YAML file expands to gigabytes by its aliases")
def test_alias_bomb_is_refused_and_plain_sharing_is_not() -> None:
    """Nine doublings of nine are refused before anything walks them; one shared mapping is fine."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    assert codes("\n".join(lines)) == ["alias-bomb"]
    parse("a: &a {b: c}\nd: *a\ne: *a\n", "x.yml")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "{a: " * 50_000,
        "- " * 50_000 + "x",
        "\n".join(" " * depth + f"k{depth}:" for depth in range(2_000)),
        "a: " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
    ],
    ids=["brackets", "braces", "dashes", "indent", "just-too-deep"],
)
@pytest.mark.attack("A document is nested so deeply that its reader crashes")
def test_deep_nesting_is_refused_without_crashing(text: str) -> None:
    """Text that would overflow a recursive reader is refused."""
    assert codes(text)[0] in {"too-deep", "unreadable-yaml"}


def test_depth_that_a_person_writes_is_fine() -> None:
    """Many brackets side by side and a few levels are no depth."""
    assert len(parse("a: [" + "[1], " * 500 + "]", "x.yml").data["a"]) == 500


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a: 1\0", "nul-character"),
        ('a: "x\\0y"', "nul-character"),
        ("a: [", "unreadable-yaml"),
        ("a: 1\n---\nb: 2\n", "unreadable-yaml"),
        ("a: *nowhere", "unreadable-yaml"),
        ("a: !custom x", "unreadable-yaml"),
        ("a: 2024-99-99", "unreadable-yaml"),
        ("{[a]: b}", "unreadable-yaml"),
        ("? {a: b}\n: c", "unreadable-yaml"),
        ("", "empty-file"),
        ("# only a comment", "empty-file"),
    ],
)
@pytest.mark.attack("A spec is not the text that a parser takes it for")
def test_unreadable_text(text: str, code: str) -> None:
    """What YAML cannot load is a problem with a code, not an exception."""
    assert codes(text) == [code]


@pytest.mark.attack("A comment has an end that YAML alone sees, and fields after it")
@pytest.mark.parametrize("end", ["\r", "\x85", "\u2028", "\u2029"])
def test_a_line_is_the_one_that_is_shown(end: str) -> None:
    with pytest.raises(UserError, match=rf"line-separator.*U\+{ord(end):04X}") as refused:
        parse(f"a: 1\r\n# words{end}b: 2\n", "x.yml")
    assert refused.value.problems[0].place == Place("x.yml", 2)
    assert parse('a: "\\L\\r"\r\nb: 2\r\n', "x.yml").data == {"a": "\u2028\r", "b": 2}


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: 1\nb:\n  - x\n  - 2024-13-01\n", 4, "`2024-13-01` is read as a date: month"),
        ("a: 1\n2024-02-30: b\n", 2, "`2024-02-30` is read as a date: day is out of range"),
        (
            "a: {b: 1,\n  c: 99:99:0x}\nd: 2024-01-01 25:00:00\n",
            3,
            "is read as a date: hour must be",
        ),
    ],
)
def test_a_value_that_does_not_exist_is_at_its_line(text: str, line: int, message: str) -> None:
    """With what to do about it."""
    with pytest.raises(UserError) as refused:
        parse(text, "x.yml")
    (problem,) = refused.value.problems
    assert problem.place is not None and problem.place.line == line
    assert message in problem.actual and "quotes" in problem.hint


FRAGMENTS = st.sampled_from(
    [
        *"ab\n\t#[]{},'\"|? !%@`\\é😀\u0085\u2028\ufeff1~=\x7f\xa0",
        *(": ", "- ", "  ", " # c", ">-\n", "&a ", "*a", "!!str ", "\\n", "0o7", "017", "1:2"),
        *("null", "yes", "2024-01-01", "---\n", "...\n", "<<: ", "a:b", "a: b\n", "- x\n"),
        *("k: v", "\r\n", "1e3", "1.e+3"),
    ]
)


@settings(max_examples=1500, deadline=None)
@given(st.lists(FRAGMENTS, max_size=9).map("".join))
@example("\ufeff!")
@example("[a?]")
@example("[?]")
def test_text_is_read_as_pyyaml_reads_it(text: str) -> None:
    """What is read is what the SDK's own reader makes of it; what that refuses is refused."""
    try:
        plain = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, TypeError):
        assert codes(text)
        return
    try:
        document = parse(text, "x.yml")
    except UserError as refused:
        ours = {"duplicate-key", "recursive-alias", "empty-file", "nul-character", "line-separator"}
        assert {problem.code for problem in refused.problems} <= ours
    else:
        assert repr(document.data) == repr(plain)


@pytest.mark.attack("a number of hundreds of digits, which Python does not print")
@pytest.mark.parametrize(
    "number", ["9" * 400, "-" + "9" * 5000, "0x" + "f" * 4000, ":".join(["59"] * 500), "1" * 301]
)
def test_a_number_of_hundreds_of_digits_is_refused(number: str) -> None:
    """With its line, wherever it stands; in quotes it is a text."""
    with pytest.raises(UserError) as refused:
        parse(f"a: 1\nb:\n  - {number}\n", "file.yml")
    assert str(refused.value.problems[0].place) == "file.yml:3"
    assert parse(f"a: '{number}'\n", "file.yml").data == {"a": number}
    assert parse(f"a: {'9' * 300}\n", "file.yml").data == {"a": int("9" * 300)}


def test_a_file_that_lies_below_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named from the root while the working directory is below it."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "ml/jobs").mkdir(parents=True)
    (tmp_path / "ml/jobs/train.yml").write_text("type: command\n")
    monkeypatch.chdir(tmp_path / "ml")
    with pytest.raises(UserError) as error:
        read(Path("ml/jobs/train.yml"))
    assert error.value.problems[0].hint == "did you mean `jobs/train.yml`?"
    monkeypatch.chdir(tmp_path / "ml/jobs")
    with pytest.raises(UserError) as error:
        read(Path("ml/jobs/train.yml"))
    assert error.value.problems[0].hint == "did you mean `train.yml`?"
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    with pytest.raises(UserError) as error:
        read(Path("ml/jobs/train.yml"))
    assert error.value.problems[0].hint == "did you mean `../ml/jobs/train.yml`?"


def test_a_digit_that_is_no_number_is_no_item() -> None:
    document = parse("a: [1, 2]\n", "a.yml")
    assert document.place("a", "²").line == 1
