"""Steps that may be run again: each a question, and a command where the answer is wanting.

A run that was cut off is taken up where it stood, and another changes nothing.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ml.core.errors import Problem, Refused

Words = tuple[str, ...]
# Runs a command: its JSON, None when it ended with an error that means "there is none".
Run = Callable[[Words, bool], Any]


@dataclass(frozen=True)
class Step:
    """`look` asks, `make` acts; words may hold `{name.output}` of an earlier step's answer.

    `there` reads the answer of `look`, beside the `value` that it should have: what is there
    already, None or empty for nothing.
    """

    name: str
    look: Words
    make: Words
    there: Callable[[Any, str], Any] = field(default=lambda found, value: found)
    value: str = ""
    by_hand: bool = False


@dataclass(frozen=True)
class Done:
    """What became of a step."""

    step: Step
    outcome: Literal["there", "made", "wanting"]


def carry_out(plan: Sequence[Step], run: Run, *, make: bool) -> Iterator[Done]:
    """Each step as it is done; without `make` only questions are asked.

    A step that hangs on one that is wanting is wanting too, and not asked about.
    """
    known: dict[str, Any] = {}
    waiting: set[str] = set()
    for step in plan:
        asked, unknown = _filled((*step.look, step.value), known)
        found = None if unknown else step.there(run(asked[:-1], True), asked[-1])
        if found:
            known[step.name] = found
            yield Done(step, "there")
        elif not make or step.by_hand or unknown.partition(".")[0] in waiting:
            waiting.add(step.name)
            yield Done(step, "wanting")
        else:
            words, unknown = _filled(step.make, known)
            if unknown.partition(".")[0] in waiting:
                waiting.add(step.name)
                yield Done(step, "wanting")
                continue
            if unknown:
                raise cannot(f"{step.name} needs {unknown}", "an answer that names it")
            known[step.name] = run(words, False)
            yield Done(step, "made")


def shown(words: Words) -> list[str]:
    """A command with what only an earlier answer says in <>."""
    return [
        "".join(
            literal + (f"<{name}>" if name else "")
            for literal, name, _, _ in string.Formatter().parse(word)
        )
        for word in words
    ]


def shell(words: Words) -> str:
    """A command as a person would type it."""
    plain = set(string.ascii_letters + string.digits + "-_./:=@,<>")
    return " ".join(
        word if set(word) <= plain else "'" + word.replace("'", "'\"'\"'") + "'"
        for word in shown(words)
    )


def as_json(done: Done) -> dict[str, object]:
    """One step for a program."""
    return {"step": done.step.name, "outcome": done.outcome, "command": shown(done.step.make)}


def cannot(found: str, expected: str, hint: str = "infra settings") -> Refused:
    """The plan cannot be made, or carried out."""
    return Refused(Problem("cannot-bootstrap", found, expected, hint))


def _filled(words: Words, known: Mapping[str, Any]) -> tuple[Words, str]:
    """The words with answers in place, and the first reference that has no answer."""
    filled = []
    for word in words:
        text = ""
        for literal, reference, _, _ in string.Formatter().parse(word):
            text += literal
            if not reference:
                continue
            step, _, output = reference.partition(".")
            answer = known.get(step)
            value = answer.get(output) if isinstance(answer, Mapping) else None
            if not value:
                return (), reference
            text += str(value)
        filled.append(text)
    return tuple(filled), ""
