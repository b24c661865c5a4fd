"""Where a command takes the text of a value as data.

Azure ML pastes values into a command as text, and bash reads the outcome. One rule decides: a value
is a plain word or path (`ml.specs.expressions`), or its placeholder is an argument of a Python
script or module, of a shell script, or of a program that prints its arguments. Everything else may
evaluate text.

A script of the job's code may evaluate its arguments, and nothing here sees that.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NoReturn

Span = tuple[int, int]
Quoting = Literal["none", "single", "double", "text", "evaluated"]

# In the text that is read, each placeholder and each expansion (`$X`) is one character of the
# private use area, which no command contains.
_FIRST, _MOST = 0xE000, 4000
# Each optional text takes a reading of its own; a million characters take about two seconds.
_MOST_CHARACTERS = 1_000_000
_MARK = "[\ue000-\uefff]"
_EXPANSION = "\uf8ff"
_PRIVATE = re.compile("[\ue000-\uf8ff]")


@dataclass(frozen=True)
class Context:
    """How a value is quoted at a placeholder; `evaluator` is what may evaluate it, or ""."""

    quoting: Quoting
    evaluator: str = ""


@dataclass(frozen=True)
class Reading:
    """The context of each placeholder of a command, in their order.

    `evaluator` says what in the command may evaluate any text, that of its environment variables
    included, or "".
    """

    contexts: tuple[Context, ...]
    evaluator: str = ""


# The part of bash that is understood.
_VARIABLE = r"\$(?:\w+|[@*#?!$-]|\{\w+(?::?[-=+][\w./:-]*)?\})"
_TOKENS = re.compile(
    rf"""
    (?P<blank>[ \t]+)
    |(?P<continuation>\\\n)
    |(?P<copy>\d*[<>]&[\d-](?=[\s;|&]|$))         # `2>&1`
    |(?P<redirection>(?:&>>?|\d*>>?|\d*<)(?![<>&|(]))
    |(?P<end>\n|&&|\|\|?|;(?![;&])|&)
    |(?P<single>'[^']*')
    |(?P<double>"(?:[^"\\$`]|\\[^\ue000-\uefff]|{_VARIABLE}|\$(?=["\s/.,:;|)\]%^+=~<>]))*+")
    |(?P<none>{_VARIABLE})
    |(?P<escape>\\[^\n\ue000-\uefff])
    # An empty value before `#` would make a comment of it.
    |(?P<plain>(?:[^ \t\n'"\\$`|&;()<>#]|(?<![\ue000-\uefff])\#)+)
    """,
    re.VERBOSE,
)
# Words after which a command begins, or ends.
_KEYWORDS = frozenset({
    "if", "then", "elif", "else", "fi", "while", "until", "do", "done", "!", "{", "}", "time",
})  # fmt: skip
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=")

# Every shell evaluates their value.
_EVALUATED = re.compile(r"BASH_ENV|ENV|PROMPT_COMMAND|PS[0-4]|BASH_FUNC_.*|SHELLOPTS|BASHOPTS")
# Those of bash itself (some are numbers, which it evaluates as expressions), and those that name a
# command, a library or options for every program that starts.
_SENSITIVE = re.compile(
    r"BASH\w*|COMP_\w+|COMPREPLY|COPROC|DIRSTACK|EPOCH(REALTIME|SECONDS)|FUNC(NAME|NEST)|GROUPS"
    r"|HIST[A-Z]+|MAIL(CHECK|PATH)?|OPT(ARG|ERR|IND)|READLINE_\w+|SH(ELL|LVL|ELLOPTS)|S?RANDOM"
    r"|SECONDS|PATH|CDPATH|IFS|HOME|PWD|OLDPWD|E?UID|PPID|LINENO|PIPESTATUS|TMOUT|MAPFILE|REPLY|_"
    r"|ENV|PROMPT_COMMAND|PS[0-4]|PYTHON\w+|PERL[A-Z0-9]\w*|RUBY(OPT|LIB)|NODE_(OPTIONS|PATH)"
    r"|(R|LD|DYLD|GIT|PIP|UV|CONDA|SSH|SUDO|RSYNC|TAR|DOCKER|OPENSSL|JUPYTER|LUA|XDG)_\w+"
    r"|(NPM_CONFIG|npm_config|OMPI_MCA|PRTE_MCA|I_MPI)_\w+|\w+_(COMMAND|CMD|OPTS?|OPTIONS|HOOKS?)"
    r"|BROWSER|GZIP|GCONV_PATH|(GNU)?M(AKE)?FLAGS|MAKEFILES|EDITOR|VISUAL|(MAN)?PAGER|LESS(OPEN|CLOSE)?|INPUTRC"
    r"|MPLBACKEND|AWKPATH|PHPRC|CC|CXX"
)
# A path may be made of these: `PYTHONPATH=$PWD/src:$PYTHONPATH`.
_PATHS = frozenset({"PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "PWD", "HOME"})

# They print their arguments, or the files that these name: data as long as nothing else reads it.
_PRINTERS = frozenset({"echo", "cat", "ls", "grep", "head", "tail", "wc"})
# They run what some of their arguments name, and nothing of a plain word.
_PLAIN_ONLY = frozenset({
    "rm", "printf", "test", "[", "for", "set", "source", ".", "date", "pip", "pip3", "conda", "apt",
    "apt-get", "git", "tar", "unzip", "gzip", "gunzip", "wget", "curl", "nvidia-smi", "az",
    "azcopy", "Rscript", "julia", "papermill", "deepspeed", "horovodrun",
})  # fmt: skip
# They evaluate nothing, and make files or folders that others may run.
_FILES = frozenset({
    "mkdir", "touch", "cp", "mv", "tee", "cd", "pwd", "chmod", "sleep", "true", "false", ":",
    "exit", "export",
})  # fmt: skip
_PLAIN_TEXT = re.compile(rf"(?:[\w./:=,@%+<>~!^\[\] -]|{_MARK})*")
# They start a Python script after options of their own, here or on other machines.
_LAUNCHERS = frozenset({"torchrun", "accelerate", "mpirun", "mpiexec"})
_LAUNCHER_OPTION = re.compile(
    rf"(?!.*(no.python|deepspeed|config|tpu|-module))--?[\w-]+(=([\w.:,/-]|{_MARK})*)?"
    rf"|[\w.-]+:\d+|\d[\d.]*|none|launch|python3?|{_MARK}"
)
_PYTHON_FILE = re.compile(r"[\w./][\w./-]*\.py")
_SHELL_FILE = re.compile(r"[\w./][\w./-]*\.sh")
# Modules that run what their arguments name.
_RUNNERS = sys.stdlib_module_names | {
    "IPython", "accelerate", "dask", "debugpy", "fire", "invoke", "jupyter", "mpi4py", "papermill",
    "pip", "pytest", "torch",
}  # fmt: skip


@lru_cache(4096)
def read(command: str, spans: tuple[Span, ...], blocks: tuple[Span, ...]) -> Reading:
    """Read what meets the values of a command.

    Its placeholders are at `spans` and its optional texts, `$[[…]]`, at `blocks`. An optional text
    may be left out. A placeholder whose reading depends on that is evaluated.
    """
    is_long = len(command) * (len(blocks) + 1) > _MOST_CHARACTERS
    if _PRIVATE.search(command) or len(spans) > _MOST or is_long:
        why = "a command with too many placeholders, or characters of the private use area"
        return Reading((Context("evaluated", why),) * len(spans), why)
    marks = {span: chr(_FIRST + index) for index, span in enumerate(spans)}
    contexts, evaluator = [Context("none")] * len(spans), ""
    for dropped in [(), *((block,) for block in blocks), blocks]:
        reading = _Command(replace_spans(command, marks, blocks, dropped)).reading(len(spans))
        evaluator = evaluator or reading.evaluator
        for index, (start, _) in enumerate(spans):
            if not dropped:
                contexts[index] = reading.contexts[index]
            elif any(block[0] <= start < block[1] for block in dropped):
                continue
            elif reading.contexts[index] != contexts[index]:
                why = "a place that is quoted differently when an optional text is left out"
                contexts[index] = Context("evaluated", why)
    return Reading(tuple(contexts), evaluator)


def is_evaluated(variable: str, has_placeholder: bool) -> bool:
    """Return whether the value of an environment variable is evaluated as code.

    With a placeholder in the value this is also said of variables that name what is run or loaded.
    """
    return (_SENSITIVE if has_placeholder else _EVALUATED).fullmatch(variable) is not None


def replace_spans(
    command: str, texts: Mapping[Span, str], blocks: Iterable[Span], dropped: Container[Span]
) -> str:
    """The command with these texts, without the brackets of `blocks` and without what is dropped.

    `blocks` are the spans of the optional texts, `$[[…]]`.
    """
    edits = dict(texts)
    for start, end in blocks:
        if (start, end) in dropped:
            edits = {span: text for span, text in edits.items() if not start <= span[0] < end}
            edits[start, end] = ""
        else:
            edits |= {(start, start + 3): "", (end - 2, end): ""}
    for (start, end), text in sorted(edits.items(), reverse=True):
        command = command[:start] + text + command[end:]
    return command


class _NotUnderstoodError(Exception):
    """The command has a part that may evaluate any text of it."""


@dataclass
class _Word:
    """A word without its quotes: placeholders and expansions in `text` are single characters.

    `is_bare`: nothing in it is quoted. `variables`: the names of its expansions.
    """

    text: str = ""
    is_bare: bool = True
    variables: list[str] = field(default_factory=list)


class _Command:
    """Reads one command; `reading` gives the outcome."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.contexts: dict[str, Context] = {}
        # The arguments of programs that print; text that goes into a pipe or a file may be run.
        self.printed: list[_Word] = []
        self.moves_text = False

    def reading(self, count: int) -> Reading:
        """The contexts of the placeholders 0 … count - 1."""
        try:
            for words in self._commands():
                self._command(words)
        except _NotUnderstoodError as error:
            return Reading((Context("evaluated", str(error)),) * count, str(error))
        evaluator = ""
        if self.moves_text:
            moves = "a command that writes text into a pipe or a file"
            self._evaluate(self.printed, moves)
            evaluator = moves if any(_EXPANSION in word.text for word in self.printed) else ""
        absent = Context("evaluated", "an optional text")
        contexts = (self.contexts.get(chr(_FIRST + index), absent) for index in range(count))
        return Reading(tuple(contexts), evaluator)

    def _fail(self, what: str) -> NoReturn:
        raise _NotUnderstoodError(what)

    def _evaluate(self, words: Sequence[_Word], evaluator: str) -> None:
        """Note that `evaluator` may evaluate the placeholders in these words."""
        for mark in re.findall(_MARK, " ".join(word.text for word in words)):
            self.contexts[mark] = Context("evaluated", evaluator)

    def _commands(self) -> Iterator[list[_Word]]:
        """The words of each simple command."""
        words: list[_Word] = []
        word: _Word | None = None
        redirection = ""
        at = 0
        while at <= len(self.text):
            if word is None and self.text.startswith("#", at):
                comment = self.text[at:].partition("\n")[0]
                self._evaluate([_Word(comment)], "a comment")
                at += len(comment)
            token = _TOKENS.match(self.text, at)
            kind, text = (str(token.lastgroup), token[0]) if token else ("end", "")
            if token is None and at < len(self.text):
                excerpt = _PRIVATE.sub("…", self.text[at : at + 12])
                self._fail(f"a command with `{excerpt}`")
            if kind in {"blank", "end", "copy", "redirection"}:
                if word is not None and redirection:
                    self._redirect(redirection, word)
                    redirection = ""
                elif word is not None:
                    words.append(word)
                word = None
                if redirection and kind != "blank":
                    self._fail(f"`{redirection}` without a file")
                redirection = text if kind == "redirection" else redirection
            elif kind != "continuation":
                word = self._add(word or _Word(), kind, text)
            if kind == "end":
                self.moves_text |= text == "|"
                yield words
                words = []
            at += len(text) or 1

    def _add(self, word: _Word, kind: str, text: str) -> _Word:
        """Add a token to the word, which is returned."""
        word.is_bare &= kind == "plain"
        quoting: Quoting = "none"
        if kind in {"single", "double"}:
            quoting = "single" if kind == "single" else "double"
            text = text[1:-1]
        for mark in re.findall(_MARK, text):
            self.contexts[mark] = Context(quoting)
        if kind in {"double", "none"}:
            word.variables += [name.strip("${}") for name in re.findall(_VARIABLE, text)]
            text = re.sub(_VARIABLE, _EXPANSION, text)
        word.text += text[1:] if kind == "escape" else text
        return word

    def _redirect(self, operator: str, target: _Word) -> None:
        self._evaluate([target], f"the file after `{operator}`")
        self.moves_text |= ">" in operator and target.text != "/dev/null"

    def _command(self, words: list[_Word]) -> None:
        """Mark the arguments of a simple command that its program may evaluate."""
        while words and words[0].is_bare and words[0].text in _KEYWORDS:
            words = words[1:]
        while words and _ASSIGNMENT.match(words[0].text):
            self._assign(words[0])
            words = words[1:]
        if not words:
            return
        program, arguments = words[0].text, words[1:]
        texts = [word.text for word in arguments]
        if not re.fullmatch(r"[\w./+:-]+|\[", program):
            self._fail("a command whose name is not constant")
        folder, _, name = program.rpartition("/")
        if folder and (_SHELL_FILE.fullmatch(name) or _PYTHON_FILE.fullmatch(name)):
            return
        if folder and not folder.startswith("/"):
            self._fail(f"a command that runs `{program}`")
        if re.fullmatch(r"python[\d.]*", name):
            self._python(texts)
        elif name in {"bash", "sh"}:
            options = r"(-[eux]+ |-[eux]*o pipefail )*"
            if not re.match(rf"{options}{_SHELL_FILE.pattern}( |$)", " ".join(texts)):
                self._fail(f"a command with `{name}` in another form than `{name} FILE.sh …`")
        elif name in _LAUNCHERS:
            self._launcher(name, arguments)
        elif name in _PRINTERS:
            self.printed += arguments
        elif name in _PLAIN_ONLY or name in _FILES:
            self._plain_only(name, arguments)
        else:
            self._fail(f"a command that runs `{name}`")

    def _assign(self, word: _Word) -> None:
        """A value in a variable may be evaluated wherever the command uses the variable."""
        name = word.text.partition("=")[0]
        self._evaluate([word], f"the variable `{name}`")
        if is_evaluated(name, has_placeholder=True) and not _PATHS.issuperset(word.variables):
            self._fail(f"a command that sets `{name}` to the value of a variable")

    def _plain_only(self, name: str, arguments: Sequence[_Word]) -> None:
        self._evaluate(arguments, f"the arguments of `{name}`")
        for word in arguments:
            if name == "export" and _ASSIGNMENT.match(word.text):
                self._assign(word)
            elif name not in _FILES - {"export"} and not _PLAIN_TEXT.fullmatch(word.text):
                self._fail(f"a command with `{name}` and arguments that may be code")

    def _python(self, texts: Sequence[str]) -> None:
        """`python FILE.py arguments` or `python -m MODULE arguments`."""
        rest = list(texts)
        while rest and re.fullmatch(r"-[uBOqsEI]+", rest[0]):
            rest.pop(0)
        if len(rest) > 1 and rest[0] == "-m":
            module = rest[1]
            if not re.fullmatch(r"\w+(\.\w+)*", module) or module.split(".")[0] in _RUNNERS:
                self._fail(f"a command that runs the module `{module}`")
        elif not rest or not _PYTHON_FILE.fullmatch(rest[0]):
            self._fail("a command with `python` in another form than `python FILE.py …`")

    def _launcher(self, name: str, arguments: Sequence[_Word]) -> None:
        """`torchrun OPTIONS FILE.py arguments`, `mpirun OPTIONS python FILE.py arguments`."""
        texts = [word.text for word in arguments]
        files = (index for index, text in enumerate(texts) if _PYTHON_FILE.fullmatch(text))
        end = next(files, len(texts))
        is_known = all(map(_LAUNCHER_OPTION.fullmatch, texts[:end])) and ":" not in texts
        if end == len(texts) or not is_known:
            self._fail(f"a command with `{name}` in another form than `{name} OPTIONS FILE.py …`")
        self._evaluate(arguments[:end], f"the options of `{name}`")
