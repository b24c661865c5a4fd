"""What reaches the terminal: foreign text is readable, and controls nothing."""

from __future__ import annotations

import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml.core.terminal import Shown, printable, readable, shown, unfiltered

HOSTILE = [
    *("\x1b[2J", "\x1b]0;title\x07", "\x1b[31mred", "\x9b31m", "a\x08b", "\x7f", "\x00", "\x0e"),
    *("\u202etxt.exe", "\u200bhidden", "\u2028next", "a\x0cb", "\x1bP1$r\x1b\\"),
]


@pytest.mark.attack("escape sequences in a text that is printed")
@pytest.mark.parametrize("text", HOSTILE)
def test_control_characters_are_spelt_out(text: str) -> None:
    """On stdout and on stderr, by print and by write; what was printed stays recognisable."""
    raw = io.StringIO()
    print(f"before {text} after", file=Shown(raw))
    line = raw.getvalue().removesuffix("\n")
    assert line.isprintable() and line.startswith("before ") and line.endswith(" after")
    assert "\\" in line


@pytest.mark.attack("A text has letters that nobody sees, or marks that cover the lines around it")
@pytest.mark.parametrize("text", ["\u3164", "\u2800", "a\u034f", "\uffa0", "\U000e0041", "\ufe01"])
def test_what_is_printed_as_nothing_is_spelt_out(text: str) -> None:
    assert ascii(text[-1])[1:-1] in printable(f"name{text}")
    assert "\\u0301" in printable("a" + "\u0301" * 9)
    for words in ("ö", "o\u0308", "สวัสดีครับ", "नमस्ते", "⚠️ ✅", "שָׁלוֹם"):
        assert printable(words) == words


def test_lines_tabs_and_other_scripts_stay() -> None:
    """Text of people stays as it is; a progress bar's return begins a new line."""
    text = "día → 東京 ✓\n\tnext\n"
    assert readable(text) == text
    assert readable("1 %\r2 %\r\nend\r") == "1 %\n2 %\nend\n"
    assert printable("a\nb\tc") == "a\\nb\\tc"


def test_the_streams_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Both are readable meanwhile, and are what they were afterwards."""
    streams = sys.stdout, sys.stderr
    with shown():
        print("\x1b[31m")
        print("\x07", file=sys.stderr)
        unfiltered(sys.stdout).write("\x1b[0m")
        assert sys.stdout.encoding and not sys.stdout.isatty()
    assert (sys.stdout, sys.stderr) == streams
    captured = capsys.readouterr()
    assert captured.out == "\\x1b[31m\n\x1b[0m" and captured.err == "\\x07\n"


@given(st.text(max_size=40))
def test_any_text_is_readable(text: str) -> None:
    """No text leaves a character that a terminal obeys, but the ends of lines and tabs."""
    assert readable(text).replace("\n", "").replace("\t", "").isprintable()


@pytest.mark.attack("A job's log holds commands of the runner that prints it")
@pytest.mark.parametrize(
    ("parts", "written"),
    [
        (["::set-output name=commit::x\n"], ":\\u003aset-output name=commit::x\n"),
        (["log\r  ::add-mask::x\n"], "log\n  :\\u003aadd-mask::x\n"),
        (["log ##[set-output name=a]x\n"], "log ##\\u005bset-output name=a]x\n"),
        ([" ", ":", ":error::x"], " :\\u003aerror::x"),
        (["log #", "#", "[error]x\n", "::", "x"], "log ##\\u005berror]x\n:\\u003ax"),
        (["tests/a.py::b\n", "a: :b ", "::", "c #[d]\n"], "tests/a.py::b\na: :b ::c #[d]\n"),
    ],
)
def test_what_is_printed_is_no_command_of_a_workflow(
    monkeypatch: pytest.MonkeyPatch, parts: list[str], written: str
) -> None:
    raw, plain = io.StringIO(), io.StringIO()
    for name, stream in (("true", raw), ("", plain)):
        monkeypatch.setenv("GITHUB_ACTIONS", name)
        shown_stream = Shown(stream)
        for part in parts:
            shown_stream.write(part)
    assert raw.getvalue() == written
    assert plain.getvalue() == readable("".join(parts))
