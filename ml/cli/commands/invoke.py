"""`ml invoke`: send a request to a served model."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from typing import Annotated

import typer

from ml.core.errors import Problem, Refused

WIDTH = 96
# What an answer has that is an entry of a ranking.
ENTRY = {"rank", "score", "question", "answer"}


def command(
    endpoint: Annotated[str, typer.Argument(help="The endpoint, such as faq-matching.")],
    request: Annotated[str, typer.Argument(help="The request: a JSON object, or its one text.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="The answer as the model gave it.")
    ] = False,
) -> None:
    """Ask a served model; its server is started if it is not running."""
    from ml.release.rollout.invoke import ask, example, of_text

    if not request.strip():
        hint = example(endpoint, endpoint)
        raise Refused(Problem("no-request", "the request is empty", "some text", hint))
    body = _object(request)
    reply = ask(endpoint, of_text(endpoint, request) if body is None else body)
    if reply.started:
        typer.echo(f"{endpoint} was not running; started it at {reply.router.url}", err=True)
    if as_json:
        typer.echo(json.dumps(reply.body, indent=1))
        return
    for answer in answer_texts(reply.body):
        typer.echo(answer)
    typer.echo(f"({endpoint}, version {reply.version})", err=True)


def _object(request: str) -> Mapping[str, object] | None:
    try:
        document = json.loads(request)
    except ValueError:
        document = None
    return document if isinstance(document, dict) else None


def answer_texts(body: Mapping[str, object]) -> list[str]:
    """What a model answered, for a person: ranked entries one by one, anything else as JSON."""
    answers = body.get("answers")
    if isinstance(answers, list) and all(
        isinstance(entry, dict) and entry.keys() >= ENTRY for entry in answers
    ):
        return [_entry_text(entry) for entry in answers]
    return [json.dumps(body, ensure_ascii=False)]


def _entry_text(answer: Mapping[str, object]) -> str:
    """An entry as a person reads it: rank, score and question on a line, the answer below."""
    text = textwrap.fill(
        str(answer["answer"]), WIDTH, initial_indent="   ", subsequent_indent="   "
    )
    return f"{answer['rank']}. {answer['question']}  [{answer['score']:.3f}]\n{text}\n"
