"""Idempotent steps: each queries whether an object exists, and creates it, with `az` or `gh`.

An interrupted run continues where it stopped; a second run changes nothing.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import string
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ml.core.errors import Exit, Problem, UserError

Words = tuple[str, ...]
Outcome = Literal["exists", "created", "missing", "differs"]
# (command, is_query) → the command's JSON; None if it is a query for a missing object.
Run = Callable[[Words, bool], Any]
# What both programs print if something does not exist; any other error is a failure.
ABSENT = ("NotFound", "could not be found", "was not found", "does not exist", "HTTP 404")
# An error, although it contains a text of ABSENT: nothing can be created in that subscription.
INVISIBLE_SUBSCRIPTION = "SubscriptionNotFound"
# GitHub's errors if its plan excludes rulesets or required reviewers for private repositories
# (docs.github.com: actions/reference/workflows-and-actions/deployments-and-environments).
UNPAID = ("Upgrade to GitHub", "billing plan")
INSTALL = {
    "az": "https://learn.microsoft.com/cli/azure/install-azure-cli",
    "gh": "https://cli.github.com",
    "pulumi": "https://www.pulumi.com/docs/iac/download-install",
}


@dataclass(frozen=True)
class Step:
    """A setup step: a query for what exists, and a command that creates it.

    Words may contain `{step.output}`, an output of an earlier step. If the command ends with
    `--input - TEXT`, the text is its standard input.
    """

    name: str
    query: Words
    make: Words
    # (response of `query`, `value`) → the existing object; None or empty if there is none.
    existing: Callable[[Any, str], Any] = field(default=lambda answer, value: answer)
    value: str = ""  # the expected value; may also contain `{step.output}`
    by_hand: bool = False  # a person must run `make`
    # (existing object, `value`) → how it differs from the expected one.
    differences: Callable[[Any, str], Iterable[str]] = field(default=lambda answer, value: ())
    # Existing object → commands to run before `make`, such as deleting surplus objects.
    undo: Callable[[Any], Iterable[Words]] = field(default=lambda answer: ())
    after: tuple[str, ...] = ()  # steps that must exist before this one is made


@dataclass(frozen=True)
class Result:
    """The outcome of a step."""

    step: Step
    outcome: Outcome
    differences: tuple[str, ...] = ()
    commands: tuple[Words, ...] = ()


def carry_out(plan: Sequence[Step], run: Run, *, make: bool) -> Iterator[Result]:
    """Run the steps and yield each result; without `make` only run queries.

    A step that depends on a missing one is missing too, and is not queried.
    """
    answers: dict[str, Any] = {}
    missing: set[str] = set()
    for step in plan:
        question, unknown = _filled((*step.query, step.value), answers)
        answer = None if unknown else step.existing(run(question[:-1], True), question[-1])
        differences = tuple(step.differences(answer, question[-1])) if answer else ()
        if answer and not differences:
            answers[step.name] = answer
            yield Result(step, "exists")
            continue
        undo = tuple(step.undo(answer)) if answer else ()
        words: Words = ()
        wait = not make or step.by_hand or unknown.partition(".")[0] in missing
        wait = wait or not missing.isdisjoint(step.after)
        if not wait:
            words, unknown = _filled(step.make, answers)
            wait = unknown.partition(".")[0] in missing
        if wait:
            missing.add(step.name)
            outcome: Outcome = "differs" if differences else "missing"
            yield Result(step, outcome, differences, (*undo, step.make))
            continue
        if unknown:
            message = f"the step `{step.name}` needs {unknown}, which no earlier step returned"
            raise cannot(message, "a response that contains it")
        for command in undo:
            run(command, False)
        answers[step.name] = run(words, False)
        yield Result(step, "created", differences, (*undo, words))


def run_command(words: Words, is_query: bool) -> Any:
    """Run a command and return its JSON; None for a query about a missing object.

    Raise UserError if the program is not installed or the command failed.
    """
    # `env NAME=VALUE … PROGRAM` starts the program with these variables.
    name = next(word for word in words if word != "env" and "=" not in word)
    if shutil.which(name) is None:
        message, hint = f"`{name}` is not installed", INSTALL.get(name, "")
        raise UserError(Problem("no-such-program", message, "a program on the PATH", hint))
    program = shutil.which(words[0]) or words[0]
    more = ("--output", "json", "--only-show-errors") if words[0] == "az" else ()
    words, text = _separated(words)
    process = subprocess.run(
        [program, *words[1:], *more], input=text, capture_output=True, text=True
    )
    errors = process.stderr
    if process.returncode == 0:
        try:
            return json.loads(process.stdout) if process.stdout.strip() else {"done": True}
        except ValueError:
            return {"done": True}
    if is_query and INVISIBLE_SUBSCRIPTION not in errors and any(sign in errors for sign in ABSENT):
        return None
    command = f"{' '.join(words[:4])} …"
    if any(sign in errors for sign in UNPAID):
        actual = f"{command}: GitHub's plan excludes this for private repositories"
        expected = "GitHub Enterprise, for required reviewers and rulesets; or a public repository"
        hint = "gh repo edit --visibility public, or another plan; then this command again"
        raise UserError(Problem("github-plan", actual, expected, hint), exit_code=Exit.RUN_FAILED)
    reason = next((line for line in reversed(errors.splitlines()) if line.strip()), "no reason")
    actual = f"{command} ended with {process.returncode}: {reason.strip()[:300]}"
    hint = "run it by hand, then rerun this command, which resumes"
    raise UserError(Problem("command-failed", actual, "exit 0", hint), exit_code=Exit.RUN_FAILED)


def shown(words: Words) -> list[str]:
    """Return the words of a command, with `<step.output>` for outputs of earlier steps."""
    return [
        "".join(
            literal + (f"<{name}>" if name else "")
            for literal, name, _, _ in string.Formatter().parse(word)
        )
        for word in words
    ]


def shell(words: Words) -> str:
    """Return a command in shell syntax, with its standard input as `<<<`."""
    words, text = _separated(tuple(shown(words)))
    return shlex.join(words) + (f" <<< {shlex.quote(text)}" if text else "")


def as_json(result: Result) -> dict[str, object]:
    """Return one result for JSON output."""
    return {
        "step": result.step.name,
        "outcome": result.outcome,
        "differences": result.differences,
        "command": shown(result.step.make),
    }


def cannot(message: str, expected: str, hint: str = "infra settings") -> UserError:
    """Return the UserError `cannot-bootstrap` for an invalid plan or step."""
    return UserError(Problem("cannot-bootstrap", message, expected, hint))


def literal(value: object) -> str:
    """Return JSON with escaped braces, since single braces refer to another step."""
    return json.dumps(value).replace("{", "{{").replace("}", "}}")


def referring(value: object) -> str:
    """Return JSON as `literal`, but strings `{step.output}` become unquoted placeholders."""
    return re.sub(r'"\{(\{[\w.-]+\})\}"', r"\1", literal(value))


def _separated(words: Words) -> tuple[Words, str]:
    """Split a step's words into the command and its standard input."""
    return (words[:-1], words[-1]) if words[-3:-1] == ("--input", "-") else (words, "")


def _filled(words: Words, answers: Mapping[str, Any]) -> tuple[Words, str]:
    """Return the words with earlier outputs filled in, and ""; or () and the missing output."""
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
