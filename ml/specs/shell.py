"""Where the text of a value may be evaluated in a command.

Azure ML pastes values into a command as text, and bash reads the outcome. What is understood here
is a small part of bash, and the programs that are known to take their arguments as data. Anything
else may evaluate text: there a value is a plain word or path, or refused (`ml.specs.expressions`).

A script of the job's code may evaluate what it is given, and nothing here sees that.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    """What a value meets at a placeholder: how it is quoted, and what may evaluate it, if anything.

    `evaluator` and `option_of` are what a sentence calls it, such as "the arguments of `tar`". With
    `option_of` a value that begins with `-` may be an option that runs code.
    """

    quoting: Quoting
    evaluator: str = ""
    option_of: str = ""


@dataclass(frozen=True)
class Reading:
    """The context of each placeholder of a command, in their order.

    `evaluator` says what in the command may evaluate any text, that of its environment variables
    included, or "".
    """

    contexts: tuple[Context, ...]
    evaluator: str = ""


# The part of bash that is understood. -----------------------------------------------------------

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

# Variables. -------------------------------------------------------------------------------------

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

# Programs. --------------------------------------------------------------------------------------

# None of their arguments or options runs anything.
_INERT = frozenset({
    "echo", "cat", "ls", "mkdir", "touch", "cp", "mv", "tee", "grep", "head", "tail", "wc", "cd",
    "pwd", "chmod", "sleep", "true", "false", ":", "exit",
})  # fmt: skip
# They run what some of their options name, and nothing of a value that is a plain word.
_PLAIN_ONLY = frozenset({
    "pip", "pip3", "conda", "apt", "apt-get", "git", "tar", "unzip", "gzip", "gunzip", "wget",
    "curl", "rm", "date", "nvidia-smi", "az", "azcopy", "Rscript", "julia", "papermill",
    "deepspeed", "horovodrun",
})  # fmt: skip
# The options before a script. A launcher that starts other machines through a shell is not here.
_LAUNCHER_OPTIONS = {
    "torchrun": rf"([\w=.:,/ -]|{_MARK})*",
    "accelerate": rf"launch(?!.*(deepspeed|config|tpu))([\w=.:,/ -]|{_MARK})*",
    **dict.fromkeys(("mpirun", "mpiexec"), rf"(-[\w-]+ ((\d+|none|{_MARK}) )?)*python3?( -u)?"),
}
_LAUNCHES_OTHERS = frozenset({"-m", "--module", "--no-python", "--no_python", ":"})
_PYTHON_FILE = r"[\w./][\w./-]*\.py"
_SHELL_FILE = r"[\w./][\w./-]*\.sh"
# Of `python -m`: a project's own, those that run what their arguments name, and such options.
_OWN_MODULE = re.compile(r"ml\.projects(\.\w+)+")
_RUNNERS = sys.stdlib_module_names | {
    "IPython", "accelerate", "dask", "debugpy", "fire", "invoke", "jupyter", "mpi4py", "papermill",
    "pip", "pytest", "torch",
}  # fmt: skip
_RUNS = re.compile(
    r"(.*[-_])?(eval|exec|execute|command|cmd|code|script|python|program|hook|expr|setup)"
    r"|init[-_]file"
)
# Files that no program here runs, and folders: `log.txt`, `out/`.
_DATA = re.compile(
    rf"(?:[\w./{_EXPANSION}-]|{_MARK})*\w\.(?:txt|log|out|err|jsonl?|[ct]sv|ya?ml|md)"
    r"|(?:\.{1,2}/)*(?:[\w-]+/)*[\w-]*\.?"
)
_DEVICES = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr"})
# Commands of which one form is understood: its arguments, and how a sentence writes it.
_SCRIPT = rf"(-[eux]+ |-[eux]*o pipefail )*{_SHELL_FILE}( .*)?"
_SOURCE = rf"(([\w./-]*/)?activate|{_SHELL_FILE})( .*)?"
_FORMS = {
    "bash": (_SCRIPT, "bash FILE.sh …"),
    "sh": (_SCRIPT, "sh FILE.sh …"),
    "source": (_SOURCE, "source FILE.sh"),
    ".": (_SOURCE, ". FILE.sh"),
    "for": (rf"(?!({_SENSITIVE.pattern})\b)\w+( in( .*)?)?", "for NAME in …"),
    "printf": (rf"(?!-|{_MARK}|{_EXPANSION}).+", "printf 'TEXT' …"),
    "set": (r"([-+][eux]*o?|pipefail| )*", "set -e"),
}


@lru_cache(4096)
def read(command: str, spans: tuple[Span, ...], blocks: tuple[Span, ...]) -> Reading:
    """What meets the values of a command: placeholders at `spans`, optional `$[[…]]` at `blocks`.

    An optional text may be left out. A placeholder whose reading depends on that is evaluated.
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
    """Whether the value of an environment variable is evaluated as code.

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
        # Whether text goes through a pipe or into a file, and what may run it.
        self.moves_text = False
        self.runs_files = ""

    def reading(self, count: int) -> Reading:
        """The contexts of the placeholders 0 … count - 1."""
        try:
            for words in self._commands():
                self._command(words)
            if self.moves_text and self.runs_files:
                self._fail(f"a command that writes text {self.runs_files}")
        except _NotUnderstoodError as error:
            return Reading((Context("evaluated", str(error)),) * count, str(error))
        absent = Context("evaluated", "an optional text")
        return Reading(tuple(self.contexts.get(chr(_FIRST + i), absent) for i in range(count)))

    def _fail(self, what: str) -> NoReturn:
        raise _NotUnderstoodError(what)

    def _evaluate(self, words: Sequence[_Word], evaluator: str, quoted: bool = True) -> None:
        """Note that `evaluator` may evaluate the placeholders in these words, `quoted` ones too."""
        for mark in re.findall(_MARK, " ".join(word.text for word in words)):
            if quoted or self.contexts[mark].quoting == "none":
                self.contexts[mark] = Context("evaluated", evaluator)

    # The words of the simple commands.

    def _commands(self) -> Iterator[list[_Word]]:
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
        if ">" in operator and target.text not in _DEVICES:
            self.moves_text = True
            self._write([target])

    def _write(self, files: Sequence[_Word]) -> None:
        """Note files that are written: one with a name like `run.sh` may be run."""
        if not all(_DATA.fullmatch(file.text) for file in files):
            self.runs_files = self.runs_files or "into a file that may be a script (`x.txt` is not)"

    # What a simple command does with its words.

    def _command(self, words: list[_Word]) -> None:
        while words and words[0].is_bare and words[0].text in _KEYWORDS:
            words = words[1:]
        while words and _ASSIGNMENT.match(words[0].text):
            self._assign(words[0])
            words = words[1:]
        if not words:
            return
        program, arguments = words[0].text, words[1:]
        if not re.fullmatch(r"[\w./+:-]+|\[", program):
            self._fail("a command whose name is not constant")
        folder, _, name = program.rpartition("/")
        if folder and re.fullmatch(r"[\w.-]+\.(sh|py)", name):
            return
        if folder and not folder.startswith("/"):
            self._fail(f"a command that runs `{program}`")
        self._program(name, arguments)

    def _assign(self, word: _Word) -> None:
        name = word.text.partition("=")[0]
        if is_evaluated(name, has_placeholder=True):
            self._evaluate([word], f"the variable `{name}`")
            if not _PATHS.issuperset(word.variables):
                self._fail(f"a command that sets `{name}` to the value of a variable")
        self._evaluate([word], "an assignment without quotes", quoted=False)

    def _program(self, name: str, arguments: Sequence[_Word]) -> None:
        """Mark the arguments that a program may evaluate."""
        if name in _FORMS:
            form, usage = _FORMS[name]
            if not re.fullmatch(form, " ".join(word.text for word in arguments), re.DOTALL):
                self._fail(f"a command with `{name}` in another form than `{usage}`")
        if name in {"source", "."}:
            self._evaluate(arguments, f"the arguments of `{name}`")
            self.runs_files = self.runs_files or f"and runs `{name}`"
        elif name == "tee":
            self.moves_text = True
            self._write(arguments)
        elif name in {"cp", "mv"}:
            self._write([word for word in arguments if word.text[:1] != "-"][1:])
        elif name in {"test", "["}:
            self._test(arguments)
        elif name == "export":
            for word in arguments:
                if _ASSIGNMENT.match(word.text):
                    self._assign(word)
                elif not re.fullmatch(r"\w+", word.text):
                    self._fail("a command with `export` of a name that is not constant")
        elif re.fullmatch(r"python[\d.]*", name):
            self._python(arguments)
        elif name in _LAUNCHER_OPTIONS:
            self._launcher(name, arguments)
        elif name in _PLAIN_ONLY:
            self._plain_only(name, arguments)
        elif name not in _INERT and name not in _FORMS:
            self._fail(f"a command that runs `{name}`")

    def _test(self, arguments: Sequence[_Word]) -> None:
        """`[ -f FILE ]`; `-v NAME` evaluates the name, and a value may be `-v`."""
        values = [word for word in arguments if re.search(_MARK, word.text)]
        for text in [word.text for word in arguments if word not in values]:
            if not re.fullmatch(r"-[fdesnzr]|!?=?|[\w./][\w./-]*|\]", text):
                self._fail(f"a command with `[` and `{text.replace(_EXPANSION, '$')}`")
        if len(values) > 1:
            self._evaluate(values, "a test of two values")
        self._evaluate(values, "a test without quotes", quoted=False)

    def _plain_only(self, name: str, arguments: Sequence[_Word]) -> None:
        """A program that runs nothing as long as all its arguments are plain words."""
        self._evaluate(arguments, f"the arguments of `{name}`")
        for word in arguments:
            if not re.fullmatch(rf"(?:[\w./:=,@%+<>~!^\[\] -]|{_MARK})*", word.text):
                self._fail(f"a command with `{name}` and arguments that may be code")
        self.runs_files = self.runs_files or f"and runs `{name}`"

    def _python(self, arguments: Sequence[_Word]) -> None:
        """`python FILE arguments` or `python -m MODULE arguments`."""
        rest = list(arguments)
        while rest and re.fullmatch(r"-[uBOqsEI]+", rest[0].text):
            rest.pop(0)
        if len(rest) > 1 and rest[0].text == "-m":
            self._module(rest[1].text, rest[2:])
        elif not rest or not re.fullmatch(_PYTHON_FILE, rest[0].text):
            self._plain_only("python", arguments)

    def _module(self, module: str, arguments: Sequence[_Word]) -> None:
        """A project's own module takes any arguments, another one values of long options alone."""
        if _OWN_MODULE.fullmatch(module):
            return
        program = f"python -m {module}"
        is_known = re.fullmatch(r"\w+(\.\w+)*", module) and module.split(".")[0] not in _RUNNERS
        takes_value = False
        for word in arguments:
            option = re.match(r"--([\w-]+)(=|$)", word.text)
            is_value = takes_value and word.text[:1] not in {"-", _EXPANSION}
            if not is_known or not (is_value or (option and not _RUNS.fullmatch(option[1]))):
                self._plain_only(program, arguments)
                return
            for mark in re.findall(_MARK, word.text):
                if word.text.startswith(mark) or self.contexts[mark].quoting == "none":
                    self.contexts[mark] = replace(self.contexts[mark], option_of=f"`{program}`")
            takes_value = option is not None and not option[2]

    def _launcher(self, name: str, arguments: Sequence[_Word]) -> None:
        """`torchrun OPTIONS FILE arguments`, `mpirun OPTIONS python FILE arguments`."""
        texts = [word.text for word in arguments]
        files = (index for index, text in enumerate(texts) if re.fullmatch(_PYTHON_FILE, text))
        end = next(files, -1)
        options = re.fullmatch(_LAUNCHER_OPTIONS[name], " ".join(texts[:end]))
        if end < 0 or not options or _LAUNCHES_OTHERS.intersection(texts):
            self._plain_only(name, arguments)
        else:
            self._evaluate(arguments[:end], f"the options of `{name}`")
