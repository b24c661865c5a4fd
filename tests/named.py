"""What a text names in `…` that is not there: commands, their options, make targets, files."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from infra import cli as infra_cli
from ml.cli import app as ml_cli
from tests.conftest import ROOT

# For pages about the whole template.
SOURCE = pytest.mark.skipif(
    not (ROOT / "framework.mk").exists(), reason="it names files that a thin fork does not have"
)
TARGETS = {
    target
    for file in ("Makefile", "framework.mk")
    if (ROOT / file).exists()
    for target in re.findall(r"^([a-z-]+):.*## ", (ROOT / file).read_text(), re.M)
}


def spans(text: str) -> list[str]:
    """Every `…` of a text."""
    return re.findall(r"`([^`\n]+)`", text)


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


def wrong(span: str, folder: Path = ROOT) -> str:
    """What a span names that is not there, "" when all is; files from the root or the folder."""
    span = span.removeprefix(".venv/bin/")
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
    if match := re.fullmatch(r"(tests/[\w./-]+\.py)::(\w+)", span):
        file = ROOT / match[1]
        return "" if file.exists() and f"\ndef {match[2]}(" in file.read_text() else span
    # A name in capitals stands for one of the reader's.
    is_file = re.fullmatch(r"(ml|infra|policies|tests|jobs|endpoint|data)/[\w./-]+", span)
    if is_file and not re.search(r"\b[A-Z]{3,}\b(?!\.md)", span):
        places = [ROOT / span, folder / span]
        return "" if any(place.exists() for place in places) else span
    return ""
