"""Generate the reference of the commands `ml` and `infra` from their typer apps."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer

from docs.generate.markdown import anchor, code, escape, paragraphs, table
from infra import cli as infra_cli
from ml.cli import app as ml_cli

_TYPES: dict[Any, str] = {str: "TEXT", int: "NUMBER", float: "NUMBER", Path: "PATH"}


def page() -> str:
    """Return the page: every command with its arguments, options and defaults."""
    return "\n\n".join([*_program("ml"), *_program("infra")])


def _program(name: str) -> Iterator[str]:
    yield f"## {name}"
    if name == "infra":
        group: Any = typer.main.get_command(infra_cli.app)
        for word, command in group.commands.items():
            yield from _command(f"infra {word}", command, 3)
        return
    for word in ml_cli.COMMANDS:
        group = typer.main.get_command(ml_cli.build(word))
        yield from _command(f"ml {word}", group.commands[word], 3)


def _command(words: str, command: Any, level: int) -> Iterator[str]:
    yield f"{anchor('command', words.replace(' ', '-'))}\n{'#' * level} {words}"
    yield paragraphs(inspect.cleandoc(command.help or ""))
    if hasattr(command, "commands"):
        for word, inner in command.commands.items():
            yield from _command(f"{words} {word}", inner, level + 1)
        return
    rows = [_parameter(parameter) for parameter in command.params if parameter.name != "help"]
    if rows:
        yield table(["argument or option", "value", "default", "what it does"], rows)


def _parameter(parameter: Any) -> list[str]:
    is_option = parameter.param_type_name == "option"
    names = [*parameter.opts, *parameter.secondary_opts] if is_option else [parameter.name.upper()]
    is_flag = getattr(parameter, "is_flag", False)
    value = "" if is_flag else parameter.metavar or _values(parameter)
    default = parameter.default
    shown = "" if is_flag or callable(default) or default in (None, "", [], ()) else default
    needed = "required" if parameter.required else code(shown)
    return [", ".join(map(code, names)), code(value), needed, escape(parameter.help or "")]


def _values(parameter: Any) -> str:
    """Return a parameter's choices or type, with `…` if it accepts several values."""
    form: Any = parameter.type_descriptor.annotation
    many = ""
    if get_origin(form) in (list, tuple):
        form = get_args(form)[0]
        many = ", repeatable" if parameter.param_type_name == "option" else " …"
    if get_origin(form) is Literal:
        return f"{' or '.join(map(str, get_args(form)))}{many}"
    bounds = "–".join(str(bound) for bound in (parameter.min, parameter.max) if bound is not None)
    name = _TYPES.get(form) or str(form.__name__).upper()
    return f"{name} {bounds}".rstrip() + many
