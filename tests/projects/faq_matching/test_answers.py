"""The FAQ's answers name commands, options, targets and files that are there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from infra import cli as infra_cli
from ml.cli import app as ml_cli
from ml.projects.faq_matching.loading import DEFAULT_SCHEMA, read
from tests.conftest import ROOT

PROJECT = ROOT / "ml/projects/faq_matching"
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.M))
# An answer that says so may name what is designed and not here yet.
DESIGNED = "status table"


def spans() -> Iterator[tuple[str, str]]:
    """Every `…` of an answer, with its entry's id."""
    for entry in read(PROJECT / "data/faq", DEFAULT_SCHEMA).entries:
        if DESIGNED not in entry.answer:
            for span in re.findall(r"`([^`]+)`", entry.answer):
                yield entry.id, span


def options(program: str, words: list[str]) -> set[str]:
    """The options of the command that the words lead to; ValueError when one leads nowhere."""
    app = infra_cli.app if program == "infra" else ml_cli.build(words[0] if words else None)
    found: Any = typer.main.get_command(app)
    for word in words:
        if word.startswith("-") or not hasattr(found, "commands"):
            break
        if word not in found.commands:
            raise ValueError(f"`{program}` has no command `{word}`")
        found = found.commands[word]
    return {name for one in found.params for name in one.opts} | {"--help"}


def wrong(span: str) -> str:
    """What a span names that is not there, "" when all is."""
    program, *words = shlex.split(span) if span.split()[0] in {"ml", "infra", "make"} else [""]
    if program == "make":
        targets = [word for word in words if re.fullmatch("[a-z-]+", word)]
        return " ".join(set(targets) - TARGETS)
    if program:
        try:
            takes = options(program, words)
        except ValueError as error:
            return str(error)
        return " ".join({word for word in words if word.startswith("--")} - takes)
    if re.fullmatch(r"(ml|infra|policies|jobs|endpoint|data)/[\w./-]+", span):
        places = [ROOT / span, PROJECT / span]
        return "" if any(place.exists() for place in places) else span
    return ""


def test_what_the_answers_name_is_there():
    """Commands with their options, make targets, files."""
    named = list(spans())
    assert sum(span.startswith(("ml ", "infra ", "make ")) for _, span in named) > 50
    assert [(entry, span, wrong(span)) for entry, span in named if wrong(span)] == []


@pytest.mark.parametrize(
    ("span", "said"),
    [
        ("ml rnu SPEC", "`ml` has no command `rnu`"),
        ("ml ab strat", "`ml` has no command `strat`"),
        ("ml run SPEC --dry", "--dry"),
        ("infra previw", "`infra` has no command `previw`"),
        ("make dmeo", "dmeo"),
        ("jobs/trian.yml", "jobs/trian.yml"),
        ("ml run SPEC --dry-run", ""),
        ("infra drift dev", ""),
        ('make ask Q="how?"', ""),
        ("jobs/train.yml", ""),
    ],
)
def test_what_is_not_there_is_found(span: str, said: str):
    """A wrong name is told, a right one is not."""
    assert wrong(span) == said
