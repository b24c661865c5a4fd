"""Repeatable steps: each asks whether something exists, and creates it if not, with `az` or `gh`.

An interrupted run continues where it stopped; a second run changes nothing.
"""

from __future__ import annotations

import json
import shlex
import shutil
import string
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ml.core.errors import Exit, Problem, Refused

Words = tuple[str, ...]
# Runs a command: its JSON, or None if it is a question (True) and nothing exists.
Run = Callable[[Words, bool], Any]
# What both programs print if something does not exist; any other error is a failure.
ABSENT = ("NotFound", "could not be found", "was not found", "does not exist", "HTTP 404")
# Looks similar, but nothing can be created in an invisible subscription.
UNSEEN = "SubscriptionNotFound"
INSTALL = {
    "az": "https://learn.microsoft.com/cli/azure/install-azure-cli",
    "gh": "https://cli.github.com",
}


@dataclass(frozen=True)
class Step:
    """`look` asks, `make` creates; words may contain `{name.output}` of an earlier step's answer.

    `existing` reads the answer of `look`, given the `value` that it should have; None or empty if
    nothing exists.
    """

    name: str
    look: Words
    make: Words
    existing: Callable[[Any, str], Any] = field(default=lambda answer, value: answer)
    value: str = ""
    by_hand: bool = False


@dataclass(frozen=True)
class Result:
    """The outcome of a step."""

    step: Step
    outcome: Literal["exists", "created", "missing"]


def carry_out(plan: Sequence[Step], run: Run, *, make: bool) -> Iterator[Result]:
    """Each step as it is done; without `make` only questions are asked.

    A step that depends on a missing one is missing too, and is not asked about.
    """
    answers: dict[str, Any] = {}
    missing: set[str] = set()
    for step in plan:
        question, unknown = _filled((*step.look, step.value), answers)
        answer = None if unknown else step.existing(run(question[:-1], True), question[-1])
        if answer:
            answers[step.name] = answer
            yield Result(step, "exists")
            continue
        words: Words = ()
        wait = not make or step.by_hand or unknown.partition(".")[0] in missing
        if not wait:
            words, unknown = _filled(step.make, answers)
            wait = unknown.partition(".")[0] in missing
        if wait:
            missing.add(step.name)
            yield Result(step, "missing")
            continue
        if unknown:
            raise cannot(f"{step.name} needs {unknown}", "an answer that contains it")
        answers[step.name] = run(words, False)
        yield Result(step, "created")


def run_command(words: Words, question: bool) -> Any:
    """The JSON that a command printed; None for a `question` about something that does not exist.

    Raises Refused if the program is not installed or the command failed.
    """
    program = shutil.which(words[0])
    if program is None:
        message, hint = f"`{words[0]}` is not installed", INSTALL.get(words[0], "")
        raise Refused(Problem("no-such-program", message, "the Azure CLI and GitHub's", hint))
    more = ("--output", "json", "--only-show-errors") if words[0] == "az" else ()
    process = subprocess.run(
        [program, *words[1:], *more], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    errors = process.stderr
    if process.returncode == 0:
        try:
            return json.loads(process.stdout) if process.stdout.strip() else {"done": True}
        except ValueError:
            return {"done": True}
    if question and UNSEEN not in errors and any(sign in errors for sign in ABSENT):
        return None
    reason = next((line for line in reversed(errors.splitlines()) if line.strip()), "no reason")
    raise Refused(
        Problem(
            "command-failed",
            f"{' '.join(words[:4])} … ended with {process.returncode}: {reason.strip()[:300]}",
            "exit 0",
            "run it by hand, then this command again: it continues where it stopped",
        ),
        exit_code=Exit.RUN_FAILED,
    )


def shown(words: Words) -> list[str]:
    """A command; what only an earlier answer provides is in <>."""
    return [
        "".join(
            literal + (f"<{name}>" if name else "")
            for literal, name, _, _ in string.Formatter().parse(word)
        )
        for word in words
    ]


def shell(words: Words) -> str:
    """A command as a person would type it."""
    return shlex.join(shown(words))


def as_json(result: Result) -> dict[str, object]:
    """One result for a program."""
    return {
        "step": result.step.name,
        "outcome": result.outcome,
        "command": shown(result.step.make),
    }


def cannot(message: str, expected: str, hint: str = "infra settings") -> Refused:
    """The plan is impossible, or a step of it."""
    return Refused(Problem("cannot-bootstrap", message, expected, hint))


def _filled(words: Words, answers: Mapping[str, Any]) -> tuple[Words, str]:
    """The words with answers filled in, and the first reference without an answer."""
    filled = []
    for word in words:
        text = ""
        for literal, reference, _, _ in string.Formatter().parse(word):
            text += literal
            if not reference:
                continue
            step, _, output = reference.partition(".")
            answer = answers.get(step)
            value = answer.get(output) if isinstance(answer, Mapping) else None
            if not value:
                return (), reference
            text += str(value)
        filled.append(text)
    return tuple(filled), ""
