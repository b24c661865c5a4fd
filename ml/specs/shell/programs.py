"""What programs evaluate of their arguments: `bash -c`, awk, find; `read` says where in a command.

What a program does with its arguments is not known here, except of those that are named below. A
script of the job's code may evaluate what it is given, and nothing here sees that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from ml.specs.shell.grammar import (
    ASSIGNMENT,
    EXPANSION,
    FIRST,
    MOST,
    PRIVATE,
    Context,
    Reading,
    Span,
    Text,
    Word,
)

SHELLS = frozenset({
    "sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "fish", "csh", "tcsh",
})  # fmt: skip
_INTERPRETER = re.compile(
    r"(i?python|pypy|perl|ruby|node|nodejs|php|lua|luajit|tclsh|deno|bun|ts-node|groovy|scala"
    r"|octave|julia|Rscript|R|pwsh|powershell)[\d.]*"
)
# All that they are given is code, or names a command or a variable that is evaluated.
_EVALUATORS = frozenset({
    "eval", "trap", "alias", "let", "declare", "typeset", "local", "readonly", "unset", "read",
    "mapfile", "readarray", "getopts", "complete", "compgen", "bind", "enable", "fc", "hash",
    "wait", "coproc", "source", ".", "[[", "ssh", "rsh", "su", "runuser", "parallel", "watch",
    "at", "batch", "crontab", "script", "make", "gmake", "git", "tar", "rsync", "ed", "ex", "vi",
    "vim", "emacs", "gdb", "expect", "screen", "tmux", "m4", "bc", "dc", "sqlite3", "psql",
    "mysql", "duckdb", "gnuplot", "matlab", "sas", "latex", "pdflatex", "busybox", "osascript",
    "spark-shell", "jq",
})  # fmt: skip
# Of these, the ones that read code from standard input, or from variables.
_READ_CODE = frozenset({
    "alias", "let", "enable", "ssh", "rsh", "su", "runuser", "parallel", "at", "batch", "crontab",
    "ed", "ex", "m4", "bc", "dc", "sqlite3", "psql", "mysql", "duckdb", "gnuplot", "gdb",
    "expect", "busybox", "make", "gmake", "spark-shell",
})  # fmt: skip
_AWKS = frozenset({"awk", "gawk", "mawk", "nawk"})
# They run the command that their arguments hold.
_RUNNERS = frozenset({
    "env", "sudo", "doas", "nohup", "nice", "ionice", "timeout", "exec", "command", "builtin",
    "xargs", "stdbuf", "setsid", "taskset", "numactl", "chroot", "strace", "ltrace", "flock",
    "unshare", "time", "mpirun", "mpiexec", "srun", "nsenter", "setpriv", "unbuffer", "tini",
    "dumb-init", "gosu", "chrt",
})  # fmt: skip
# They print or copy their arguments, and run none of them.
_WRITERS = frozenset({
    "echo", "printf", "cat", "grep", "head", "tail", "cut", "wc", "curl", "wget", "sort", "ls",
    "cp", "mv", "mkdir", "rm", "ln", "tee", "touch", "for", "select", "set", "cd", "export",
})  # fmt: skip
# Interpreters of which nothing more is code after the first `-c CODE`.
_INTERPRETED_AT_ONCE = re.compile(r"(i?python|pypy)[\d.]*")
_CODE_OPTION = re.compile(r"-[A-Za-z]*[ceE]|--?(eval|exec|execute|command|code|expr|expression)")
_CODE_OF_INTERPRETER = re.compile(
    r"-[A-Za-z]*[ceEp]|-r|--?(eval|print|exec|execute|run|batch|command|require)"
)
_CODE_IN_OPTION = re.compile(r"--?[\w-]*(eval|exec|execute|command|action|rsh|program)[\w-]*=")
# What code has that runs text which it is given.
_RUNS_TEXT = re.compile(
    r"exec|eval|system|open|spawn|subprocess|compile|import_module|__|getline|require|load"
    r"|source|`|\|\s*[\"']|qx"
)
# sed's own command `e` and flag `e` run a command.
_SED_RUNS = re.compile(r"(^|[;{}\n\d$/!])\s*e|[^\w\s]\w*e\w*\s*($|[;}\n])", re.M)


# Variables that a shell evaluates.
_SHELL_VARIABLES = re.compile(
    r"BASH_ENV|ENV|PROMPT_COMMAND|PS[0-4]|BASH_FUNC_.*|SHELLOPTS|BASHOPTS"
)
# Variables that name a command, a library or options for every program that starts.
_VARIABLES = re.compile(
    r"PATH|CDPATH|IFS|PYTHON[A-Z]+|PERL[A-Z0-9]*|RUBY(OPT|LIB)|NODE_OPTIONS|NODE_PATH|LUA_INIT.*"
    r"|(JDK_|_)?JAVA_(TOOL_)?OPTIONS|(LD|DYLD|GIT|PIP|SSH|SUDO)_[A-Z_]+|GCONV_PATH|BROWSER"
    r"|R_(PROFILE|ENVIRON|LIBS)[A-Z_]*|(GNU)?M(AKE)?FLAGS"
    r"|EDITOR|VISUAL|(MAN|GIT_)?PAGER|LESS(OPEN|CLOSE)?|TAR_OPTIONS|RSYNC_RSH|MAKEFILES|INPUTRC"
    r"|OPENSSL_(CONF|ENGINES)|MPLBACKEND|AWKPATH|PHPRC|CC|CXX|SHELL"
)


@lru_cache(4096)
def read(command: str, spans: tuple[Span, ...], blocks: tuple[Span, ...]) -> Reading:
    """How bash reads a command with placeholders at `spans`, optional texts `$[[…]]` at `blocks`.

    An optional text may be left out. A placeholder whose reading depends on that is evaluated.
    """
    if PRIVATE.search(command) or len(spans) > MOST:
        why = "a command that cannot be read (characters of the private use area)"
        return Reading((Context("evaluated", why),) * len(spans), why)
    first = _Programs(_marked(command, spans, blocks, ())).reading(len(spans))
    contexts = list(first.contexts)
    runs_text = first.runs_text
    for block in blocks:
        other = _Programs(_marked(command, spans, blocks, (block,))).reading(len(spans))
        runs_text = runs_text or other.runs_text
        for index, (start, _) in enumerate(spans):
            if not block[0] <= start < block[1] and other.contexts[index] != contexts[index]:
                why = "a place that is quoted differently when an optional text is left out"
                contexts[index] = Context("evaluated", why)
    return Reading(tuple(contexts), runs_text)


def is_evaluated(variable: str, has_placeholder: bool) -> bool:
    """Whether the value of an environment variable is evaluated as code.

    With a placeholder in the value this is also said of variables that name what is run or loaded.
    """
    names = (_SHELL_VARIABLES, _VARIABLES) if has_placeholder else (_SHELL_VARIABLES,)
    return any(pattern.fullmatch(variable) for pattern in names)


def _marked(
    command: str,
    spans: Sequence[Span],
    blocks: Sequence[Span],
    dropped: Sequence[Span],
) -> str:
    """The command with a character for each placeholder, without the brackets of optional texts."""
    edits = [(start, end, chr(FIRST + index)) for index, (start, end) in enumerate(spans)]
    for block in blocks:
        start, end = block
        if block in dropped:
            edits = [edit for edit in edits if not start <= edit[0] < end]
            edits.append((start, end, ""))
        else:
            edits += [(start, start + 3, ""), (end - 2, end, "")]
    for start, end, text in sorted(edits, reverse=True):
        command = command[:start] + text + command[end:]
    return command


class _Programs(Text):
    """A command, and what its programs evaluate."""

    def judge(self, words: list[Word]) -> None:
        """Mark what a simple command evaluates of its words."""
        words = list(words)
        while words and ASSIGNMENT.match(words[0].text) and _begins_bare(words[0]):
            word = words.pop(0)
            self._assignment(word)
            self.evaluate(_unquoted([word]), "an assignment, after which a command begins")
        if words:
            self._command(words)

    def _assignment(self, word: Word) -> None:
        name, _, value = word.text.partition("=")
        if is_evaluated(name.rstrip("+"), has_placeholder=True):
            self.evaluate([word], f"the variable `{name}`")
            if EXPANSION in value and _SHELL_VARIABLES.fullmatch(name):
                self.evaluate_all(f"a command that sets `{name}` to text which it makes")

    def _command(self, words: Sequence[Word]) -> None:
        program, *arguments = words
        name = program.name
        if not program.is_constant or (program.is_pattern and program.text not in {"[", "[["}):
            self.evaluate(words, "a command whose name is not constant")
            self.evaluate_all("a command whose name is not constant")
            return
        if name in _WRITERS:
            self._write(name, arguments)
            return
        self._known(name, program, arguments)

    def _known(self, name: str, program: Word, arguments: Sequence[Word]) -> None:
        """Mark the words of a program that runs code, or may run a program that does."""
        if name in SHELLS:
            self._shell(name, arguments)
        elif _INTERPRETER.fullmatch(name):
            self._interpreter(name, arguments)
        elif name in _AWKS or name == "sed":
            self._filter(name, arguments)
        elif name == "find":
            if any(word.splits for word in arguments):
                self.evaluate_all("a command whose words may run another (`find`)")
            self.evaluate(
                "".join(each for w in arguments for each in w.unquoted), "the words of `find`"
            )
            self._find(arguments)
        elif name in _RUNNERS:
            self._runner(name, arguments)
        elif name in _EVALUATORS:
            self._evaluator(name, arguments)
        elif name in {"test", "["}:
            if any(word.text == "-v" for word in arguments):
                self.evaluate(arguments, f"`{name} -v`")
                if any(word.has_expansion for word in arguments):
                    self.evaluate_all(f"a command with `{name} -v`, which evaluates a name")
        else:
            if "/" in program.text:
                self._executes(program, program.text)
            self._unknown(arguments)

    def _write(self, name: str, arguments: Sequence[Word]) -> None:
        """A program that prints or copies its words."""
        if name == "export":
            for word in arguments:
                if ASSIGNMENT.match(word.text):
                    self._assignment(word)
                else:
                    self.evaluate([word], "`export`")
        elif name == "printf" and arguments and arguments[0].text.startswith("-"):
            self._evaluator("printf -v", arguments)
        elif name in {"tee", "cp", "mv", "ln"}:
            for word in arguments:
                self.writes(word)
        elif name == "set" and any(not word.is_constant for word in arguments[:1]):
            self.evaluate(arguments[:1], "`set`")

    def _executes(self, file: Word, runner: str) -> None:
        self._executed[file.file] = runner

    def _shell(self, name: str, arguments: Sequence[Word]) -> None:
        """`bash -c CODE arguments`, `bash SCRIPT arguments`, or a shell that reads its input."""
        is_code = reads_input = takes_value = False
        for index, word in enumerate(arguments):
            is_option = word.text[:1] in {"-", "+"} and len(word.text) > 1
            if takes_value or is_option:
                self.evaluate([word], f"an option of `{name}`")
                if word.has_expansion:
                    self.evaluate_all(f"a command whose `{name}` has options that are not constant")
                is_short = not takes_value and word.text[:2] != "--"
                is_code |= is_short and "c" in word.text
                reads_input |= is_short and "s" in word.text
                takes_value = not takes_value and word.text in {
                    *("-o", "+o", "-O", "+O", "--rcfile", "--init-file"),
                }
                continue
            if is_code:
                self._code(word, f"the code of `{name} -c`")
            elif reads_input:
                break
            else:
                self.evaluate([word], f"the name of the script of `{name}`")
                if not word.is_constant or re.match(r"-$|/dev/|/proc/", word.text):
                    self.evaluate_all(f"a command that runs text which it makes (`{name}`)")
                self._executes(word, name)
            # After code comes `$0`.
            self._unknown(arguments[index + 1 + is_code :])
            return
        self.evaluate_all(f"a command that runs the text which it reads (`{name}`)")

    def _code(self, word: Word, evaluator: str) -> None:
        """Code that a shell runs."""
        self.evaluate([word], evaluator)
        if word.has_expansion:
            self.evaluate_all(f"a command that runs text which it makes (in {evaluator})")
        else:
            self.nested(word.text, evaluator)

    def _interpreter(self, name: str, arguments: Sequence[Word]) -> None:
        """`python -c CODE arguments`, `python SCRIPT arguments`, `python -m MODULE arguments`."""
        words = list(arguments)
        has_code = False
        while words:
            word = words.pop(0)
            evaluator = f"the code of `{name}`"
            is_option = word.text[:1] == "-" and len(word.text) > 1
            if is_option and word.text == "-m":
                self.evaluate(words[:1], f"the module of `{name} -m`")
                self._unknown(words[1:])
                return
            if is_option:
                self.evaluate([word], evaluator)
                if word.has_expansion:
                    self.evaluate_all(f"a command that runs text which it makes (in {evaluator})")
                if _CODE_OF_INTERPRETER.fullmatch(word.text) and words:
                    has_code = True
                    self._script(words.pop(0), evaluator)
                    if _INTERPRETED_AT_ONCE.fullmatch(name):
                        self._unknown(words)
                        return
                elif _CODE_OF_INTERPRETER.match(word.text):
                    has_code = True
                    self._script(word, evaluator)
                continue
            if not has_code:
                self.evaluate([word], f"the name of the script of `{name}`")
                if word.is_process or re.match(r"-$|/dev/|/proc/", word.text):
                    break
                self._executes(word, name)
            self._unknown(words)
            return
        if not has_code:
            self.evaluate_all(f"a command that runs the text which it reads (`{name}`)")

    def _script(self, word: Word, evaluator: str) -> None:
        """Code in another language than the shell's."""
        self.evaluate([word], evaluator)
        if word.has_expansion or _RUNS_TEXT.search(word.text):
            self.evaluate_all(f"a command that may run text which it makes (in {evaluator})")

    def _filter(self, name: str, arguments: Sequence[Word]) -> None:
        """awk and sed: their program is code, variables (`-v x=…`) and files are not."""
        words = list(arguments)
        self.evaluate("".join(each for w in words for each in w.unquoted), f"the words of `{name}`")
        has_program = False
        while words:
            word = words.pop(0)
            if word.text in {"-v", "-F", "--assign"} and name in _AWKS:
                if words and PRIVATE.search(words[0].text.partition("=")[0]):
                    self.evaluate(words[:1], f"the name of a variable of `{name}`")
                words = words[1:]
            elif word.text in {"-e", "--expression", "--source"}:
                has_program = True
                self._program(name, words[:1])
                words = words[1:]
            elif word.text in {"-f", "--file"}:
                has_program = True
                for file in words[:1]:
                    self.evaluate([file], f"the program of `{name}`")
                    self._executes(file, name)
                words = words[1:]
            elif word.text[:1] == "-" and len(word.text) > 1:
                self._program(name, [word])
            elif not has_program:
                has_program = True
                self._program(name, [word])

    def _program(self, name: str, words: Sequence[Word]) -> None:
        self.evaluate(words, f"the program of `{name}`")
        runs = _SED_RUNS if name == "sed" else re.compile(r"system|getline|\||@|--")
        for word in words:
            if word.has_expansion or (word.text[:1] != "-" and runs.search(word.text)):
                self.evaluate_all(f"a command that may run text which it makes (in `{name}`)")

    def _find(self, arguments: Sequence[Word]) -> None:
        """find, and the commands that it runs."""
        texts = [word.text for word in arguments]
        for index, text in enumerate(texts):
            if text in {"-exec", "-execdir", "-ok", "-okdir"}:
                ends = [i for i, t in enumerate(texts) if i > index and t in {";", "+"}]
                command = arguments[index + 1 : ends[0] if ends else None]
                if command:
                    runs_code = command[0].name in SHELLS | _EVALUATORS | _RUNNERS
                    first = next((w for w in command if "{}" in w.text and w.text != "{}"), None)
                    if runs_code and first is not None:
                        self.evaluate_all("a command that runs the names of files (`find`)")
                    self._command(command)

    def _runner(self, name: str, arguments: Sequence[Word]) -> None:
        """env, xargs and others that run the command in their arguments."""
        for index, word in enumerate(arguments):
            if name == "env" and re.match(r"-\w*S|--split-string", word.text):
                self.evaluate(arguments, "`env -S`")
                if any(each.has_expansion for each in arguments):
                    self.evaluate_all("a command that runs text which it makes (`env -S`)")
                return
            if ASSIGNMENT.match(word.text):
                self._assignment(word)
                self.evaluate(_unquoted([word]), "an assignment, after which a command begins")
                if word.splits:
                    self.evaluate_all(f"a command whose name may not be constant (after `{name}`)")
                continue
            if word.text[:1] == "-" or re.fullmatch(r"[\d.]+[smhdKkMG]?", word.text):
                self.evaluate([word], f"an option of `{name}`")
                if word.splits:
                    self.evaluate_all(f"a command whose name may not be constant (after `{name}`)")
                continue
            rest = arguments[index:]
            first = next((i for i, each in enumerate(rest) if _runs_code(each)), None)
            if first is not None and name == "xargs":
                takes_words = rest[first].name in SHELLS or _INTERPRETER.fullmatch(rest[first].name)
                replaces = any(
                    re.match(r"-[iI]|--replace", each.text) for each in arguments[:index]
                )
                if replaces or not takes_words:
                    self.evaluate_all("a command that runs the text which it reads (`xargs`)")
            # What follows an option may be its value, or the command.
            if index and re.match(r"-[^=]*$", arguments[index - 1].text):
                before = rest[:first]
                self.evaluate(before, f"the command of `{name}`")
                if any(each.has_expansion for each in before):
                    self.evaluate_all(f"a command whose name may not be constant (after `{name}`)")
                rest = rest[first or 0 :]
            self._command(rest)
            return

    def _evaluator(self, name: str, arguments: Sequence[Word]) -> None:
        self.evaluate(arguments, f"what `{name}` evaluates")
        if name in _READ_CODE:
            self.evaluate_all(f"a command that runs the text which it reads (`{name}`)")
        is_file = name in {"source", "."}
        for word in arguments:
            if word.has_expansion or (is_file and re.match(r"/dev/|/proc/", word.text)):
                self.evaluate_all(f"a command that runs text which it makes (`{name}`)")
        if is_file and arguments:
            self._executes(arguments[0], name)
        if name in {"eval", "trap"} and not any(word.has_expansion for word in arguments):
            code = arguments if name == "eval" else arguments[:1]
            self.nested(" ".join(word.text for word in code), f"what `{name}` evaluates")

    def _unknown(self, arguments: Sequence[Word]) -> None:
        """A program that is not known here: what follows an option like `-c` may be code."""
        for index, word in enumerate(arguments):
            before = arguments[index - 1] if index else None
            if before is not None and _CODE_OPTION.fullmatch(before.text):
                self.evaluate([word], f"what follows `{before.text}`")
            if _CODE_IN_OPTION.match(word.text):
                self.evaluate([word], f"what follows `{word.text.partition('=')[0]}=`")
            is_value = before is not None and before.text.startswith("--") and len(before.text) > 2
            if word.is_constant and not is_value and _runs_code(word):
                self._known(word.name, word, arguments[index + 1 :])
                return


def _runs_code(word: Word) -> bool:
    """Whether the word names a program that runs code, wherever it stands in a command."""
    name = word.name
    is_shell = name in SHELLS | _AWKS | {"eval", "xargs", "env", "ssh", "parallel", "sed", "find"}
    return word.is_constant and (is_shell or (bool(_INTERPRETER.fullmatch(name)) and len(name) > 1))


def _unquoted(words: Sequence[Word]) -> str:
    return "".join(char for word in words for char in word.unquoted)


def _begins_bare(word: Word) -> bool:
    return "=" in word.text and not PRIVATE.search(word.text.partition("=")[0])
