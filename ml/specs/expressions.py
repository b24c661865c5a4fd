"""Resolves Azure ML's expressions: `${{inputs.x}}`, `${{outputs.y}}`, `$[[optional]]`.

Values are substituted verbatim, as in Azure ML. A value with a character that the shell would
interpret at that place is refused, so that no value becomes a command. In an environment variable,
and where a program may evaluate the text again (`ml.specs.shell`), only a plain word or path is
accepted.
"""

from __future__ import annotations

import re
import shlex
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from ml.core.errors import Place, Problem, UserError, nearest
from ml.specs import shell
from ml.specs.shell import Quoting

Value = str | PurePath | None

# Characters that a shell interprets, quotes included (bash(1), "metacharacter" and "QUOTING");
# blanks only separate words, as on Azure ML.
METACHARACTERS = "|&;()<>$`\\\"'\n\r\0"

_PLACEHOLDER = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
_OPTIONAL = re.compile(r"\$\[\[(.*?)\]\]", re.DOTALL)
# A block that begins before the previous block is closed.
NESTED = re.compile(r"\$\[\[(?:(?!\]\]).)*\$\[\[", re.DOTALL)
# A plain word or path, which no shell, awk or Python evaluates. `=` is allowed only after a slash,
# as in `data/year=2024`, since `X=1` is an assignment.
_PLAIN = re.compile(
    r"-?\d+(\.\d*)?([eE][-+]?\d+)?|[\w.][\w.:@%+,-]*(/[\w.:@%+,=-]*)*|(/[\w.:@%+,=-]*)+", re.ASCII
)

# Environment variables whose value a shell evaluates when it starts or prompts.
_EVALUATED = re.compile(r"BASH_ENV|ENV|PROMPT_COMMAND|PS[0-4]|BASH_FUNC_.*|SHELLOPTS|BASHOPTS")


@dataclass(frozen=True)
class Reference:
    """One placeholder: `${{inputs.faq}}` has source `inputs` and name `faq`."""

    text: str
    source: Literal["inputs", "outputs", "search_space"] | str
    name: str
    start: int  # span in the template, to `end`
    end: int
    quoting: Quoting  # the shell's quoting at that place
    block: tuple[int, int] | None = None  # span of the `$[[…]]` around it, if any

    @property
    def path(self) -> tuple[str, ...]:
        """Return the source and the parts of the name: ("parent", "inputs", "faq")."""
        return (self.source, *self.name.split(".")) if self.name else (self.source,)


def references(template: str) -> list[Reference]:
    """Return every placeholder of a command in order, with its quoting as bash parses it."""
    if "${{" not in template:
        return []
    blocks = _blocks(template)
    matches = list(_placeholders(template))
    quotings = shell.quotings(template, tuple(match.span() for match in matches), blocks)
    placeholders = []
    for match, quoting in zip(matches, quotings, strict=True):
        source, _, name = match[1].strip().partition(".")
        index = bisect(blocks, (match.start(), len(template))) - 1
        block = blocks[index] if index >= 0 and match.start() < blocks[index][1] else None
        placeholders.append(Reference(match[0], source, name, *match.span(), quoting, block))
    return placeholders


def _placeholders(text: str) -> Iterator[re.Match[str]]:
    """Yield every `${{…}}`; stop at the last `}}`, so that the search takes linear time."""
    return _PLACEHOLDER.finditer(text, 0, text.rfind("}}") + 2)


def _blocks(text: str) -> tuple[tuple[int, int], ...]:
    """Return the span (start, end) of every `$[[…]]`."""
    return tuple(match.span() for match in _OPTIONAL.finditer(text, 0, text.rfind("]]") + 2))


def variable_references(template: str) -> list[Reference]:
    """Return every placeholder in the value of an environment variable."""
    placeholders = []
    for match in _placeholders(template):
        source, _, name = match[1].strip().partition(".")
        placeholders.append(Reference(match[0], source, name, *match.span(), "evaluated"))
    return placeholders


def resolve_command(
    template: str,
    inputs: Mapping[str, Value],
    outputs: Mapping[str, Value],
    search_space: Mapping[str, Value] | None = None,
    place: Place | None = None,
) -> str:
    """Return the command that the shell receives.

    A `str` is a literal and is substituted verbatim. A `PurePath` is data and is quoted unless the
    command quotes it. `None` is an optional input without a value: its `$[[…]]` is removed. Raises
    UserError for an undeclared name, a value that the shell would interpret, and a missing value
    outside `$[[…]]`.
    """
    spaces = {"inputs": inputs, "outputs": outputs, "search_space": search_space or {}}
    problems: list[Problem] = []
    texts: dict[tuple[int, int], str] = {}
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
            texts[reference.start, reference.end] = text
    if problems:
        raise UserError(*problems)
    for start, end in _blocks(template):
        if (start, end) in dropped:
            texts = {span: text for span, text in texts.items() if not start <= span[0] < end}
            texts[start, end] = ""
        else:
            texts |= {(start, start + 3): "", (end - 2, end): ""}
    return shell.replace_spans(template, texts)


def resolve_variables(
    variables: Mapping[str, str],
    inputs: Mapping[str, Value],
    outputs: Mapping[str, Value],
    place: Place | None = None,
) -> dict[str, str]:
    """Return the environment variables of a command with their placeholders replaced.

    Undeclared placeholders are kept. Raises UserError for a value that is no plain word or path.
    """
    spaces = {"inputs": inputs, "outputs": outputs}
    problems: list[Problem] = []
    resolved = {}
    for name, template in variables.items():
        problems += filter(None, [evaluated_text(name, template, place)])
        for reference in reversed(variable_references(template)):
            value = spaces.get(reference.source, {}).get(reference.name)
            if value is None:
                continue
            problems += filter(None, [dangerous(value, reference, place)])
            template = template[: reference.start] + str(value) + template[reference.end :]
        resolved[name] = template
    if problems:
        raise UserError(*problems)
    return resolved


def without_placeholders(text: str, word: str = "x") -> str:
    """Replace each placeholder of a text by `word`."""
    end = text.rfind("}}") + 2
    return _PLACEHOLDER.sub(word, text[:end]) + text[end:]


def literal(value: object) -> str:
    """Return `str(value)`, as Azure ML passes a literal to a command: a boolean becomes `True`.

    Source: azure-ai-ml 1.35, `to_rest_dataset_literal_inputs`.
    """
    return str(value)


def unbound(
    reference: Reference, spaces: Mapping[str, Iterable[str]], place: Place | None = None
) -> Problem:
    """Return the problem of a placeholder with an undeclared name."""
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
    """Return the problem of a value that the shell would interpret at `reference`, or None.

    Without quotes, the shell interprets every metacharacter of a literal (the resolver quotes
    paths). In double quotes it interprets `$`, backtick, the quote and a final backslash; in single
    quotes only the quote. Where a program may evaluate the text again, only a plain word or path is
    accepted, or an empty text.
    """
    text, quoting = str(value), reference.quoting
    if quoting == "evaluated":
        is_plain = not text or _PLAIN.fullmatch(text)
        return None if is_plain else _not_plain(text, reference, place)
    is_words = quoting == "none" and not isinstance(value, PurePath)
    acts = {"single": "'\0", "double": '$`"\0'}.get(quoting, METACHARACTERS)
    if quoting == "none" and not is_words:
        acts = "\0"
    characters = sorted({char for char in text if char in acts})
    if quoting == "double" and text.endswith("\\"):
        characters.append("\\")
    if quoting == "none" and re.search(r"(^|\s)#", text):
        characters.append("#")
    if not characters:
        return None
    listed = " ".join({"\n": "newline", "\r": "return", "\0": "NUL"}.get(c, c) for c in characters)
    hint = f"write `'{reference.text}'` in the command, in single quotes"
    if quoting == "single":
        hint = "remove it from the value: no quoting protects it there"
    return Problem(
        "shell-metacharacter",
        f"the value {text!r} of `{reference.text}` contains {listed}, which the shell interprets",
        "a value without characters that the shell interprets",
        hint,
        place,
        source=_SOURCE,
    )


def evaluated_text(name: str, text: str, place: Place | None = None) -> Problem | None:
    """Return a problem if a shell would evaluate the variable `name`, and `text` is not plain."""
    if not text or _PLAIN.fullmatch(without_placeholders(text)) or not _EVALUATED.fullmatch(name):
        return None
    return Problem(
        "shell-metacharacter",
        f"`{name}` is set to {text!r}, which every shell of the job evaluates",
        "a plain word or path",
        "name a file of the job's code, or run it in the command",
        place,
        source='bash(1), "Shell Variables"',
    )


_SOURCE = "Azure ML substitutes values verbatim into the command (azure-ai-ml 1.35)"


def _not_plain(text: str, reference: Reference, place: Place | None) -> Problem:
    return Problem(
        "shell-metacharacter",
        f"the value {text!r} of `{reference.text}` is where a shell or program may evaluate it",
        "a plain word or path (the template's policy): letters, digits and `_ . - / : @ % + ,`",
        "set it in `environment_variables`, or put this command into a script of `code:`, and pass "
        "the value as its argument: "
        f"`bash FILE.sh '{reference.text}'` or `python FILE.py '{reference.text}'`",
        place,
        source=_SOURCE,
    )


def did_you_mean(word: str, candidates: Iterable[str], form: str = "{}") -> str:
    """Return a hint with the candidate closest to a misspelt word; "" if none is close."""
    near = nearest(word, candidates)
    return f"did you mean `{form.format(near[0])}`?" if near else ""
