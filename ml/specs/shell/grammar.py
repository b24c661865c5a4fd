"""Reads a command as bash(1) describes: its words, how they are quoted, and its commands.

A placeholder is data in single quotes; in backticks, a here-document, an arithmetic expression or a
comment it is evaluated. A command that cannot be read here counts as evaluated as a whole.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NoReturn

Span = tuple[int, int]
Quoting = Literal["none", "single", "double", "text", "evaluated"]

# Of a placeholder and of an expansion (`$X`, `$(…)`) in the text of a word: two characters of the
# private use area, which no command contains.
FIRST, MOST = 0xE000, 4000
EXPANSION = chr(0xF8F0)
PRIVATE = re.compile("[\ue000-\uf8ff]")

_BLANKS = " \t"
_ENDS_WORD = " \t\n|&;()<>"
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\[[^]]*\])?\+?=")
# Words after which a command begins.
_OPENING = frozenset({"if", "then", "else", "elif", "do", "while", "until", "!", "{", "time"})
_CLOSING = frozenset({"fi", "done", "}", "esac"})
# `{NAME}`, `{NAME:-text}` and others in which nothing is evaluated but `$NAME`.
_PARAMETER = re.compile(
    r"\{#?(\w+|[@*#?!-])(\[([@*]|\d+)\])?"
    r"((:?[-+=?]|%%?|##?|//?|\^\^?|,,?)([^`$]|\$\w|\$\{\w+\})*|:\s*-?\d+(:\d+)?)?\}"
)


@dataclass(frozen=True)
class Context:
    """What a value meets at one placeholder: how it is quoted, and what evaluates it, if anything.

    `evaluator` is what a sentence calls it, such as "the code of `bash -c`".
    """

    quoting: Quoting
    evaluator: str = ""


@dataclass(frozen=True)
class Reading:
    """A command as bash reads it: the context of each placeholder, in their order.

    `runs_text` says what in the command runs text that the command makes (`eval "$X"`), or "".
    Then a value of any variable may be evaluated.
    """

    contexts: tuple[Context, ...]
    runs_text: str = ""


class _Unreadable(Exception):
    """The command is not one that this reader understands."""


@dataclass
class Word:
    """A word without its quotes: `text` has placeholders and expansions as single characters.

    `is_bare`: nothing in it is quoted. `is_pattern`: unquoted characters expand to other words.
    `is_process`: it is `<(…)`, a file with what commands print. `splits`: an expansion in it is not
    quoted and may become several words. `unquoted`: the placeholders that are not quoted.
    """

    text: str = ""
    is_bare: bool = True
    is_pattern: bool = False
    is_process: bool = False
    splits: bool = False
    unquoted: list[str] = field(default_factory=list)

    @property
    def is_constant(self) -> bool:
        """Whether its text is known here."""
        return not PRIVATE.search(self.text)

    @property
    def has_expansion(self) -> bool:
        """Whether it holds what a variable or a command gives."""
        return EXPANSION in self.text

    @property
    def name(self) -> str:
        """The last part of a path: of a program, its name."""
        return self.text.rpartition("/")[2]

    @property
    def file(self) -> str:
        """The name of a file, "*" where it is not known here."""
        return self.name if self.name and not PRIVATE.search(self.name) else "*"


class Text(ABC):
    """Reads one command; `reading` gives the outcome. A subclass knows what programs do.

    `inside` is what evaluates the text, "" for the command itself: then every placeholder in it is
    evaluated.
    """

    def __init__(self, text: str, inside: str = "") -> None:
        self.text, self.inside, self.at = text, inside, 0
        self.contexts: dict[str, Context] = {}
        self.runs_text = ""
        self._heredocs: list[tuple[str, bool, bool]] = []
        self._written: set[str] = set()
        self._executed: dict[str, str] = {}

    def reading(self, count: int) -> Reading:
        """The contexts of the placeholders 0 … count - 1."""
        self.parse()
        if self.runs_text:
            everywhere = Context("evaluated", self.runs_text)
            self.contexts = {
                chr(FIRST + index): self._of(index)
                if self._of(index).quoting == "evaluated"
                else everywhere
                for index in range(count)
            }
        return Reading(tuple(self._of(index) for index in range(count)), self.runs_text)

    def _of(self, index: int) -> Context:
        return self.contexts.get(chr(FIRST + index), Context("none"))

    def parse(self) -> None:
        """Read everything; what cannot be read makes every placeholder evaluated."""
        try:
            if self._commands() or self._heredocs:
                self._fail("`)`, `;;` or a here-document without its other end")
        except (_Unreadable, RecursionError) as error:
            self.runs_text = f"a command that cannot be read ({error or 'too deep'})"
        for name, runner in self._executed.items():
            written = any("*" in (name, file) or name == file for file in self._written)
            if written and not self.runs_text:
                self.runs_text = f"a command that runs a file which it writes (`{runner}`)"

    # Characters.

    def _peek(self, length: int = 1) -> str:
        return self.text[self.at : self.at + length]

    def _starts(self, token: str) -> bool:
        return self.text.startswith(token, self.at)

    def _fail(self, what: str) -> NoReturn:
        raise _Unreadable(what)

    def _until(self, end: str, what: str) -> str:
        """The text up to `end`, which is passed."""
        stop = self.text.find(end, self.at)
        if stop < 0:
            self._fail(f"{what} is not closed")
        inner = self.text[self.at : stop]
        self.at = stop + len(end)
        return inner

    def mark(self, text: str, quoting: Quoting, evaluator: str = "") -> None:
        """Note the context of every placeholder in `text`; what is evaluated stays so."""
        if self.inside:
            quoting, evaluator = "evaluated", self.inside
        for char in text:
            is_new = self.contexts.get(char, Context("none")).quoting != "evaluated"
            if FIRST <= ord(char) < FIRST + MOST and is_new:
                self.contexts[char] = Context(quoting, evaluator)

    def evaluate(self, words: Sequence[Word] | str, evaluator: str) -> None:
        """Note that `evaluator` evaluates every placeholder in these words."""
        text = words if isinstance(words, str) else "".join(word.text for word in words)
        self.mark(text, "evaluated", evaluator)

    def evaluate_all(self, why: str) -> None:
        """The command runs text that is not known: every placeholder is evaluated."""
        self.runs_text = self.runs_text or why

    # Commands.

    def _commands(self, inside_case: bool = False) -> str:
        """Read commands up to the end of the text, or to what ends this list, which is returned."""
        words: list[Word] = []
        while True:
            char = self._peek()
            if not char:
                self.judge(words)
                return ""
            if char in _BLANKS:
                self.at += 1
            elif self._starts("\\\n"):
                self.at += 2
            elif char == "\n":
                self.at += 1
                self.judge(words)
                words = []
                self._bodies()
            elif char == "#":
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                self.evaluate(self.text[self.at : end], "a comment")
                self.at = end
            elif char == ")":
                self.at += 1
                self.judge(words)
                return ")"
            elif self._starts(";;") or self._starts(";&"):
                self.at += 2
                self.judge(words)
                return ";;"
            elif self._starts("&>"):
                self._redirection(words)
            elif char in ";&|":
                self.at += 1
                self.judge(words)
                words = []
            elif char in "<>" and self._peek(2) not in {"<(", ">("}:
                self._redirection(words)
            elif char == "(":
                self._bracket(words)
                words = []
            else:
                word = self._word()
                if not words and self._keyword(word, words):
                    if word.text == "esac" and inside_case:
                        return "esac"
                    continue
                words.append(word)
                if word.is_bare and word.text.endswith("=") and self._peek() == "(":
                    self._array(word)

    def _keyword(self, word: Word, words: list[Word]) -> bool:
        """Whether the word is one of the shell's own, after which another command may begin."""
        if not word.is_bare or word.unquoted:
            return False
        if word.text == "case":
            self._case()
        elif word.text == "[[":
            self._test()
        elif word.text == "function":
            self._skip_blanks()
            self._word()
        elif word.text not in _OPENING | _CLOSING:
            return False
        return True

    def _skip_blanks(self) -> None:
        while self._peek() and (self._peek() in _BLANKS or self._starts("\\\n")):
            self.at += 2 if self._peek() == "\\" else 1

    def _bracket(self, words: list[Word]) -> None:
        """`(…)`, `((…))`, or the `()` of a function."""
        if words:
            match = re.compile(r"\(\s*\)").match(self.text, self.at)
            if match is None or len(words) > 1:
                self._fail("a `(` in a command")
            self.at = match.end()
        elif self._starts("(("):
            self._arithmetic("((", "))")
        else:
            self.at += 1
            if self._commands() != ")":
                self._fail("`(` is not closed")

    def _array(self, word: Word) -> None:
        self.at += 1
        while self._peek() != ")":
            if not self._peek():
                self._fail("`(` is not closed")
            if self._peek() in _BLANKS + "\n":
                self.at += 1
            elif self._peek() in _ENDS_WORD:
                self._fail("an array")
            else:
                word.text += self._word().text
        self.at += 1

    def _case(self) -> None:
        """`case WORD in PATTERN) … ;; esac`, after its first word."""
        self._skip_blanks()
        self._word()
        self._skip_space()
        if self._word().text != "in":
            self._fail("`case` without `in`")
        while True:
            self._skip_space()
            if re.compile(r"esac(?=[\s;&|)]|$)").match(self.text, self.at):
                self.at += 4
                return
            while self._peek() != ")":
                if not self._peek():
                    self._fail("`case` is not closed")
                if self._peek() in _BLANKS + "\n|(":
                    self.at += 1
                elif self._peek() in _ENDS_WORD:
                    self._fail("a pattern of `case`")
                else:
                    self._word()
            self.at += 1
            end = self._commands(inside_case=True)
            if end == "esac":
                return
            if end != ";;":
                self._fail("`case` is not closed")
            if self._peek() == "&":
                self.at += 1

    def _skip_space(self) -> None:
        while self._peek() and self._peek() in _BLANKS + "\n":
            self.at += 1

    def _test(self) -> None:
        """`[[ … ]]`, in which numbers are expressions (`[[ a[$(id)] -eq 0 ]]` runs id)."""
        expands = is_number = False
        while True:
            self._skip_space()
            if not self._peek():
                self._fail("`[[` is not closed")
            if self._peek() in _ENDS_WORD:
                self.at += 1
                continue
            word = self._word()
            if word.is_bare and word.text == "]]":
                if expands and is_number:
                    self.evaluate_all("a command with `[[ … ]]` of variables, which are evaluated")
                return
            self.evaluate([word], "`[[ … ]]`")
            expands |= word.has_expansion
            is_number |= word.text in {"-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v"}

    def _redirection(self, words: list[Word]) -> None:
        """`2> file`, `<<END`, `<<< word`: its target is no argument."""
        if words and words[-1].is_bare and self.text[self.at - 1].isdigit():
            digits = words[-1].text
            if digits.isdigit():
                words.pop()
        match = re.compile(r"&>>?|<<<|<<-|<<|<>|[<>]&|>>|>\||[<>]").match(self.text, self.at)
        assert match is not None
        operator = match[0]
        self.at = match.end()
        self._skip_blanks()
        if not self._peek() or (self._peek() in _ENDS_WORD and self._peek(2) not in {"<(", ">("}):
            self._fail(f"`{operator}` without a target")
        target = self._word()
        self.evaluate("".join(target.unquoted), f"the target of `{operator}`")
        if operator in {"<<", "<<-"}:
            if not target.is_constant:
                self._fail("the end of a here-document is not constant")
            self._heredocs.append((target.text, operator == "<<-", target.is_bare))
        elif operator != "<<<" and operator[0] != "<":
            self.writes(target)

    def writes(self, target: Word) -> None:
        """Note a file that the command writes."""
        if not target.text.startswith("/dev/"):
            self._written.add(target.file)

    def _bodies(self) -> None:
        """The here-documents that begin on this line."""
        for end, strips, expands in self._heredocs:
            while True:
                if self.at >= len(self.text):
                    self._fail("a here-document is not closed")
                stop = self.text.find("\n", self.at)
                stop = len(self.text) if stop < 0 else stop
                line = self.text[self.at : stop]
                self.at = min(stop + 1, len(self.text))
                if (line.lstrip("\t") if strips else line) == end:
                    break
                self.evaluate(line, "a here-document")
                if expands and ("$(" in line or "`" in line):
                    self.evaluate_all("a here-document that runs commands")
        self._heredocs = []

    # Words.

    def _word(self) -> Word:
        word = Word()
        start = self.at
        while (char := self._peek()) and (char not in _ENDS_WORD or self._peek(2) in {"<(", ">("}):
            if char in "<>":
                if self.at > start:
                    self._fail("a process substitution in a word")
                self.at += 2
                word.is_process = True
                self._substitution(word)
            elif char == "\\":
                escaped = self._peek(2)[1:]
                if not escaped:
                    self._fail("a backslash at the end")
                self.at += 2
                if escaped != "\n":
                    self.evaluate(escaped, "a place after a backslash")
                    word.text, word.is_bare = word.text + escaped, False
            elif char == "'":
                self.at += 1
                inner = self._until("'", "a single quote")
                self.mark(inner, "single")
                word.text, word.is_bare = word.text + inner, False
            elif char == '"':
                self.at += 1
                self._double(word)
            elif char == "$":
                self._dollar(word)
                word.splits |= word.text.endswith(EXPANSION)
            elif char == "`":
                self._backticks(word)
                word.splits = True
            else:
                self.at += 1
                if PRIVATE.match(char):
                    self.mark(char, "none")
                    word.unquoted.append(char)
                word.is_pattern |= char in "*?[{~"
                word.text += char
        return word

    def _double(self, word: Word) -> None:
        """The rest of `"…"`."""
        word.is_bare = False
        while (char := self._peek()) != '"':
            if not char:
                self._fail("a double quote is not closed")
            if char == "\\":
                escaped = self._peek(2)[1:]
                self.evaluate(escaped, "a place after a backslash")
                self.at += 2
                if escaped != "\n":
                    word.text += escaped if escaped and escaped in '$`"\\' else char + escaped
            elif char == "$":
                self._dollar(word, is_quoted=True)
            elif char == "`":
                self._backticks(word)
            else:
                self.mark(char, "double")
                word.text += char
                self.at += 1
        self.at += 1

    def _dollar(self, word: Word, is_quoted: bool = False) -> None:
        """`$X`, `${X}`, `$(…)`, `$((…))`, `$'…'`, or a dollar."""
        following = self._peek(2)[1:]
        if self._starts("$(("):
            self.at += 1
            self._arithmetic("((", "))")
        elif following == "(":
            self.at += 2
            self._substitution(word)
            return
        elif following == "[":
            self.at += 1
            self._arithmetic("[", "]")
        elif following == "{":
            self._parameter()
        elif following == "'" and not is_quoted:
            self.at += 2
            self._ansi()
        elif following == '"' and not is_quoted:
            inner = Word()
            self.at += 2
            self._double(inner)
            self.evaluate([inner], '`$"…"`')
        elif match := re.compile(r"\$(\w+|[@*#?$!-])").match(self.text, self.at):
            self.at = match.end()
        else:
            self.evaluate(following, "a place after a dollar")
            self.at += 1
            word.text += "$"
            return
        word.text += EXPANSION

    def _substitution(self, word: Word) -> None:
        """The rest of `$(…)`: commands, with quotes of their own."""
        if self._commands() != ")":
            self._fail("`$(` is not closed")
        word.text += EXPANSION

    def _arithmetic(self, opening: str, closing: str) -> None:
        """`((…))`, whose variables and subscripts are evaluated again."""
        start, depth = self.at, 0
        bracket, other = opening[0], closing[0]
        while True:
            char = self._peek()
            if not char:
                self._fail(f"`{opening}` is not closed")
            depth += (char == bracket) - (char == other)
            self.at += 1
            if not depth:
                break
        inner = self.text[start : self.at]
        if not inner.endswith(closing):
            self._fail("brackets in brackets")
        self.evaluate(inner, "an arithmetic expression")
        if re.search(r"[A-Za-z_$`]", inner):
            self.evaluate_all(
                "a command with an arithmetic expression of variables, which are evaluated"
            )

    def _parameter(self) -> None:
        """`${…}`: a name, and what may follow it is evaluated."""
        start, depth = self.at + 1, 0
        self.at += 1
        while True:
            char = self._peek()
            if not char:
                self._fail("`${` is not closed")
            depth += (char == "{") - (char == "}")
            self.at += 2 if char == "\\" else 1
            if not depth:
                break
        inner = self.text[start : self.at]
        if "'" in inner or '"' in inner:
            balanced = inner.count("'") % 2 == 0 and inner.count('"') % 2 == 0
            if not balanced or "}" in inner[:-1]:
                self._fail("quotes in `${…}`")
        self.evaluate(inner, "`${…}`")
        if not _PARAMETER.fullmatch(inner):
            self.evaluate_all("a command with a `${…}` that may run commands")

    def _ansi(self) -> None:
        r"""The rest of `$'…'`, in which `\'` is no end."""
        start = self.at
        while (char := self._peek()) != "'":
            if not char:
                self._fail("a single quote is not closed")
            self.at += 2 if char == "\\" else 1
        self.evaluate(self.text[start : self.at], "`$'…'`")
        self.at += 1

    def _backticks(self, word: Word) -> None:
        """`…` in backticks: backslashes are read first, so no quote in it protects."""
        self.at += 1
        start = self.at
        while (char := self._peek()) != "`":
            if not char:
                self._fail("a backtick is not closed")
            self.at += 2 if char == "\\" else 1
        inner = self.text[start : self.at]
        self.at += 1
        self.nested(re.sub(r"\\([$`\\])", r"\1", inner), "backticks")
        word.text += EXPANSION

    def nested(self, code: str, evaluator: str) -> None:
        """Read text that a shell evaluates: all its placeholders are evaluated."""
        inner = type(self)(code, evaluator)
        self.evaluate(code, evaluator)
        inner.parse()
        self._written |= inner._written
        self._executed |= inner._executed
        if inner.runs_text:
            self.evaluate_all(inner.runs_text)

    # What a command does with its words.

    @abstractmethod
    def judge(self, words: list[Word]) -> None:
        """Mark what a simple command evaluates of its words: assignments, a program, arguments."""
