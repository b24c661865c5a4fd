"""The gates and rules that a fork adds, in modules of `policies/own` that pyproject.toml names:

    [tool.azureml-gitops-starter.plug-ins]
    gates = ["training_time"]
    spec-rules = ["tags"]
    infrastructure-rules = ["log_cap"]

A plug-in can only add rejections: it cannot replace a gate or rule of the framework, which is
evaluated first and passes it a copy. It still runs in this process and could change any other
code, so review it like gates.yml.
"""

from __future__ import annotations

import contextlib
import re
import sys
import tomllib
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Literal, get_args

from ml.core import repository
from ml.core.errors import Place, Problem, UserError
from ml.core.imports import ROOT

Kind = Literal["gates", "spec-rules", "infrastructure-rules"]
FOLDER = Path("policies/own")
# The attribute that a module of the kind must define; spec rules register by a decorator instead.
_DEFINES: Mapping[Kind, str] = {"gates": "GATES", "infrastructure-rules": "RULES"}
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@cache
def load(kind: Kind, root: Path = ROOT) -> tuple[ModuleType, ...]:
    """Import the modules of one kind, in the order in which pyproject.toml names them.

    Raise UserError for an invalid table, a missing module, and a module whose import fails.
    """
    return tuple(_import(root, name, _DEFINES.get(kind, "")) for name in named(root).get(kind, ()))


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Run plug-in code in the block: stdout goes to stderr, SystemExit becomes RuntimeError."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as stop:
        raise RuntimeError(f"it raised {type(stop).__name__}") from stop


def check_names(
    kind: str, names: Collection[str], taken: Collection[str], module: ModuleType
) -> None:
    """Raise UserError if a gate or rule of the plug-in has a name that is in `taken`."""
    if both := sorted({*names} & {*taken}):
        actual = f"there is already a {kind} `{both[0]}`"
        place = Place(repository.shown(Path(str(module.__file__))), 1)
        hint = "to loosen a gate or rule of the framework, change its settings or add a waiver"
        raise UserError(Problem("plug-in-name-taken", actual, "another name", hint, place))


def is_own(check: Callable[..., Any]) -> bool:
    """Return whether a plug-in defines the function."""
    return check.__module__.startswith(_module_name(""))


def failure(error: BaseException, what: str, check: FunctionType | None = None) -> Problem:
    """Return the problem of an error in a plug-in, at the plug-in's line; `what` failed.

    If no line of the plug-in is in the traceback, the place is that of its function `check`.
    """
    frames = traceback.extract_tb(error.__traceback__)
    frames += traceback.extract_tb(error.__cause__.__traceback__) if error.__cause__ else []
    lines = [(frame.filename, frame.lineno or 1) for frame in frames]
    if isinstance(error, SyntaxError):  # the file is not in the traceback: it did not run
        lines.append((error.filename or "", error.lineno or 1))
    if check is not None:
        lines.insert(0, (check.__code__.co_filename, check.__code__.co_firstlineno))
    ours = [line for line in lines if Path(line[0]).parent.parts[-2:] == FOLDER.parts]
    place = Place(repository.shown(Path(ours[-1][0])), ours[-1][1]) if ours else None
    message = error.msg if isinstance(error, SyntaxError) else error
    actual = f"{what} failed: {type(error).__name__}: {message}"
    hint = f"correct it, or take it out of [tool.{repository.TABLE}.plug-ins] in {repository.MARK}"
    return Problem("plug-in-failed", actual, "no error", hint, place)


def named(root: Path) -> dict[str, list[str]]:
    """Return the plug-in names in pyproject.toml by kind; raise UserError for an invalid table."""
    path = root / repository.MARK
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        table = settings.get("tool", {}).get(repository.TABLE, {}).get("plug-ins", {})
        is_known = table.keys() <= {*get_args(Kind)}
        if is_known and all(_NAME.fullmatch(name) for names in table.values() for name in names):
            return dict(table)
        actual = f"`plug-ins` is {table!r}"
    except (ValueError, AttributeError, TypeError) as error:
        actual = f"the file or its table `plug-ins` is invalid: {error}"
    expected = f"[tool.{repository.TABLE}.plug-ins] with {', '.join(get_args(Kind))}"
    expected += ', each a list such as ["training_time"]'
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    line = next((number for number, text in enumerate(lines, 1) if "plug-ins" in text), 1)
    raise UserError(Problem("wrong-value", actual, expected, place=Place(repository.MARK, line)))


def _module_name(name: str) -> str:
    return f"{'.'.join(FOLDER.parts)}.{name}"


def _import(root: Path, name: str, defines: str) -> ModuleType:
    path = root / FOLDER / f"{name}.py"
    if not path.is_file() or path.is_symlink():
        actual = f"plug-in `{name}`: there is no file {FOLDER}/{name}.py"
        hint = f"add the file, or take the name out of [tool.{repository.TABLE}.plug-ins]"
        place = Place(repository.MARK, 1)
        raise UserError(Problem("missing-file", actual, "a module", hint, place))
    # Import it by path, so that no PYTHONPATH and no installed package can shadow it.
    spec = spec_from_file_location(_module_name(name), path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    try:
        with guarded():
            spec.loader.exec_module(module)
            if defines and not hasattr(module, defines):
                raise AttributeError(f"it does not define `{defines}`")
    except UserError:
        raise
    except Exception as error:
        raise UserError(failure(error, f"importing plug-in `{name}`")) from None
    return module
