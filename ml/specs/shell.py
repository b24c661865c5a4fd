"""Determines the quoting of each placeholder of a command, to prevent shell injection.

Azure ML substitutes values into a command as text, and bash parses the result. A command that only
calls Python scripts, modules or shell scripts may pass any properly quoted text as their arguments.
Everywhere else, a value must be a plain word or path (`ml.specs.expressions`).

A script of the job's code may still evaluate its arguments; this is not checked.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

Span = tuple[int, int]
# Quoting of the value at a placeholder; "evaluated": a shell or program may evaluate it.
Quoting = Literal["none", "single", "double", "evaluated"]

# For the regular expressions, a placeholder and the start and end of an optional block `$[[…]]`
# are replaced by one private-use character each, which no command may contain.
_MARK, _START, _END = "\ue000", "\ue001", "\ue002"
_EDGE = f"[{_START}{_END}]"
_FILLER = rf"(?:[ \t]|\\\n|{_EDGE})*"
# A blank between two arguments that remains if any optional block is removed.
_BLANK = rf"(?:\\\n|{_EDGE})*[ \t]{_FILLER}"
_VARIABLE = r"\$(?:\w+|\{\w+\})"
_QUOTED = rf"'[^'{_START}{_END}]*'|\"(?:[^\"\\$`{_START}{_END}]|{_VARIABLE})*\""
_WORD = rf"(?:[\w./:=,@%+~^{_MARK}-]|{_VARIABLE}|{_QUOTED})++(?![<>])"
_QUOTES: Mapping[str, Quoting] = {"'": "single", '"': "double"}
_EVALUATED: tuple[Quoting] = ("evaluated",)
# Preparatory commands of constant words, without placeholders.
_CONSTANT = "[\\w./=-]+|'[^'\ue000-\uf8ff]*'|\"[^\"\\\\$`\ue000-\uf8ff]*\""
_PREPARATION = rf"(?:cd|echo|mkdir|pip3?)(?:[ \t]+(?:{_CONSTANT}))*"
_SCRIPT = r"[\w./][\w./-]*"
_CALL = re.compile(
    rf"\s*(?:{_PREPARATION}"
    rf"|(?:python[\d.]*[ \t]+(?:-u[ \t]+)?(?:-m[ \t]+(?P<module>\w+(?:\.\w+)*)|{_SCRIPT}\.py)"
    rf"|bash[ \t]+{_SCRIPT}\.sh)"
    rf"(?P<arguments>(?:{_BLANK}{_WORD})*+)){_FILLER}"
    rf"(?P<next>&&|;|\n|$|(?P<output>2>&1|>|\|[ \t]*tee[ \t]))"
)
# Redirections of output after the last call, to a file that no later program reads.
_OUTPUT = re.compile(rf"(?:2>&1)?[ \t]*(?:(?:>|\|[ \t]*tee)[ \t]+[\w./{_MARK}-]+)?(?:[ \t]+2>&1)?")
# Modules that execute code given by their arguments.
_RUNNERS = sys.stdlib_module_names | {
    "IPython", "accelerate", "dask", "debugpy", "fire", "invoke", "jupyter", "mpi4py", "papermill",
    "pip", "pytest", "torch",
}  # fmt: skip


@lru_cache(4096)
def quotings(
    command: str, spans: tuple[Span, ...], blocks: tuple[Span, ...]
) -> tuple[Quoting, ...]:
    """Return the quoting of each placeholder of a command, in order.

    `spans` are the (start, end) of its placeholders, `blocks` of its optional blocks `$[[…]]`.
    """
    evaluated = _EVALUATED * len(spans)
    if re.search("[\ue000-\uf8ff]", command):
        return evaluated
    edges = {(start, start + 3): _START for start, _ in blocks}
    edges |= {(end - 2, end): _END for _, end in blocks}
    text = replace_spans(command, dict.fromkeys(spans, _MARK) | edges).rstrip()
    quotes: list[Quoting] = []
    position = 0
    while position < len(text):
        call = _CALL.match(text, position)
        if call is None or (call["module"] or "").split(".")[0] in _RUNNERS:
            return evaluated
        for part in re.findall(rf"{_QUOTED}|{_MARK}", call["arguments"] or ""):
            quotes += [_QUOTES.get(part[0], "none")] * part.count(_MARK)
        position = call.end("next")
        if call["output"]:
            if not _OUTPUT.fullmatch(text, call.start("output")):
                return evaluated
            break
    return (*quotes, *evaluated[len(quotes) :])


def replace_spans(command: str, texts: Mapping[Span, str]) -> str:
    """Replace each span (start, end) of the command by its text; spans must not overlap."""
    parts, position = [], 0
    for (start, end), text in sorted(texts.items()):
        parts += [command[position:start], text]
        position = end
    return "".join([*parts, command[position:]])
