"""The one resolver of Azure ML's expressions: `${{inputs.x}}`, `${{outputs.y}}`, `$[[optional]]`.

Values are substituted verbatim, as Azure ML does, but a value never becomes a command: a value with
a character that the shell interprets at that place is refused. In single quotes it interprets none.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from ml.core.errors import Place, Problem, Refused, nearest

Value = str | PurePath | None
Quoting = Literal["none", "single", "double", "code"]

# Characters that a shell interprets, quotes included (bash(1), "metacharacter" and "QUOTING");
# blanks only separate words, as on Azure ML.
METACHARACTERS = "|&;()<>$`\\\"'\n\r\0"

_PLACEHOLDER = re.compile(r"\$\{\{\s*(.*?)\s*\}\}", re.DOTALL)
_OPTIONAL = re.compile(r"\$\[\[(.*?)\]\]", re.DOTALL)
# Text before a quote after which its content is code or is read with backslashes:
# `bash -c '`, `python -c '`, `perl -e '`, `eval '`, `trap '`, `ssh host '`, `$'`.
_CODE_FOLLOWS = re.compile(
    r"(\s-[A-Za-z]*[ceE]\s*|\s--(eval|command|exec)[\s=]\s*|\beval\s+|\btrap\s+|\bssh\s[^;|&]*|\$)$"
)
_QUOTES: dict[str, Quoting] = {"": "none", "'": "single", '"': "double"}


@dataclass(frozen=True)
class Reference:
    """One placeholder: `${{inputs.faq}}` has source `inputs` and name `faq`.

    `quoting` is how the shell quotes it; `block` is the span of the `$[[…]]` around it, if any.
    """

    text: str
    source: Literal["inputs", "outputs", "search_space"] | str
    name: str
    start: int
    end: int
    quoting: Quoting = "none"
    block: tuple[int, int] | None = None

    @property
    def path(self) -> tuple[str, ...]:
        """The name split at its dots: `parent.jobs.prep.outputs.data` has five parts."""
        return (self.source, *self.name.split(".")) if self.name else (self.source,)


def references(template: str) -> list[Reference]:
    """Every placeholder of a text in its order, quoted as a shell would read the text."""
    if "${{" not in template:
        return []
    matches = list(_PLACEHOLDER.finditer(template))
    quoting = quoting_at(template, [match.span() for match in matches])
    blocks = [match.span() for match in _OPTIONAL.finditer(template)]
    placeholders = []
    for match, quoted in zip(matches, quoting, strict=True):
        source, _, name = match[1].partition(".")
        block = next((span for span in blocks if span[0] <= match.start() < span[1]), None)
        placeholders.append(Reference(match[0], source, name, *match.span(), quoted, block))
    return placeholders


def resolve_command(
    template: str,
    inputs: Mapping[str, Value],
    outputs: Mapping[str, Value],
    search_space: Mapping[str, Value] | None = None,
    place: Place | None = None,
) -> str:
    """The command that the shell receives.

    A `str` is a literal and goes in verbatim; a `PurePath` is data and is quoted where the
    command does not quote it. `None` is an optional input without a value: the `$[[…]]` that
    contains it is removed. Raises Refused for an undeclared name, for a value that the shell would
    interpret, and for a missing value outside `$[[…]]`.
    """
    spaces = {"inputs": inputs, "outputs": outputs, "search_space": search_space or {}}
    problems: list[Problem] = []
    edits: list[tuple[int, int, str]] = []
    dropped: set[tuple[int, int]] = set()
    for reference in references(template):
        values = spaces.get(reference.source, {})
        value = values.get(reference.name)
        if reference.name not in values:
            problems.append(unbound(reference, spaces, place))
        elif value is None and reference.block:
            dropped.add(reference.block)
        elif value is None:
            message = f"`{reference.text}` has no value"
            hint = f"write `$[[--{reference.name} {reference.text}]]`, or give the input a value"
            problems.append(
                Problem("no-value", message, "a value, or `$[[…]]` around it", hint, place)
            )
        elif problem := dangerous(value, reference, place):
            problems.append(problem)
        else:
            quoted = isinstance(value, PurePath) and reference.quoting == "none"
            text = shlex.quote(str(value)) if quoted else str(value)
            edits.append((reference.start, reference.end, text))
    if problems:
        raise Refused(*problems)
    for match in _OPTIONAL.finditer(template):
        start, end = match.span()
        if match.span() in dropped:
            edits = [edit for edit in edits if not start <= edit[0] < end]
            edits.append((start, end, ""))
        else:
            edits += [(start, start + 3, ""), (end - 2, end, "")]
    for start, end, text in sorted(edits, reverse=True):
        template = template[:start] + text + template[end:]
    return template


def resolve_value(template: str, inputs: Mapping[str, Value], outputs: Mapping[str, Value]) -> str:
    """A text outside of a shell (an environment variable) with its placeholders replaced."""
    spaces = {"inputs": inputs, "outputs": outputs}

    def fill(match: re.Match[str]) -> str:
        source, _, name = match[1].partition(".")
        value = spaces.get(source, {}).get(name)
        return match[0] if value is None else str(value)

    return _PLACEHOLDER.sub(fill, template)


def literal(value: object) -> str:
    """A literal as Azure ML passes it to the command: `str` of it (azure-ai-ml 1.35,
    `to_rest_dataset_literal_inputs`), so a boolean arrives as `True`."""
    return str(value)


def unbound(
    reference: Reference, spaces: Mapping[str, Iterable[str]], place: Place | None = None
) -> Problem:
    """The problem of a placeholder with an undeclared name."""
    declared = list(spaces.get(reference.source, ()))
    names = [
        f"{source}.{name}" for source, declared_names in spaces.items() for name in declared_names
    ]
    expected = f"one of {', '.join(declared)}" if declared else f"no `{reference.source}` here"
    return Problem(
        "unbound-expression",
        f"`{reference.text}` is not declared",
        expected if declared or reference.source in spaces else "inputs, outputs or search_space",
        did_you_mean(f"{reference.source}.{reference.name}", names, "${{{{{}}}}}"),
        place,
        source="Azure ML, command job YAML: an expression names an input or output of the job",
    )


def dangerous(value: Value, reference: Reference, place: Place | None = None) -> Problem | None:
    """The problem of a value that the shell would interpret at `reference`, or None.

    Without quotes the shell interprets every metacharacter of a literal (the resolver quotes
    paths); in double quotes `$`, backtick, the quote itself and a final backslash; in single
    quotes only the quote. In code that a program reads, all of them count.
    """
    text, quoting = str(value), reference.quoting
    acts = {"single": "'\0", "double": '$`"\0'}.get(quoting, METACHARACTERS)
    if quoting == "none" and isinstance(value, PurePath):
        acts = "\0"
    characters = sorted({char for char in text if char in acts})
    if quoting == "double" and text.endswith("\\"):
        characters.append("\\")
    if not characters:
        return None
    listed = " ".join({"\n": "newline", "\r": "return", "\0": "NUL"}.get(c, c) for c in characters)
    hint = f"write `'{reference.text}'` in the command, in single quotes"
    if quoting in {"single", "code"}:
        hint = "remove it from the value: no quoting protects it there"
    return Problem(
        "shell-metacharacter",
        f"the value {text!r} of `{reference.text}` contains {listed}, which the shell interprets",
        "a value without characters that the shell interprets",
        hint,
        place,
        source="Azure ML substitutes values verbatim into the command (azure-ai-ml 1.35)",
    )


def did_you_mean(word: str, candidates: Iterable[str], form: str = "{}") -> str:
    """A hint with the candidate closest to a misspelt word; "" when none is close."""
    near = nearest(word, candidates)
    return f"did you mean `{form.format(near[0])}`?" if near else ""


def quoting_at(command: str, spans: Sequence[tuple[int, int]]) -> list[Quoting]:
    """The quoting in force at each of `spans` (placeholders, in order, read as plain words).

    "code" means that no quoting protects: in an argument that a program runs as code, in a comment,
    after the start of a here-document, in `$'…'`. In doubt (`$(…)` in double quotes) the weaker.
    """
    states: dict[int, Quoting] = {}
    ends = dict(spans)
    heredoc = re.search(r"<<(?!<)", command)
    quote, code, index = "", False, 0
    while index < len(command):
        char = command[index]
        if index in ends:
            unsafe = code or (heredoc is not None and heredoc.start() < index)
            states[index] = "code" if unsafe else _QUOTES[quote]
            index = ends[index]
            continue
        if quote:
            if char == quote:
                quote, code = "", False
            elif char == "\\" and quote == '"':
                index += 1
        elif char == "\\":
            index += 1
        elif char in "'\"":
            quote, code = char, bool(_CODE_FOLLOWS.search(command[:index]))
        elif char == "#" and (index == 0 or command[index - 1] in " \t\n;|&("):
            end = command.find("\n", index)
            end = len(command) if end < 0 else end
            states.update((start, "code") for start, _ in spans if index < start < end)
            index = end
            continue
        index += 1
    return [states.get(start, "none") for start, _ in spans]
