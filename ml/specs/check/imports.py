"""What a module of a job's code imports, as its source says: nothing is run.

Followed are the imports that run whenever the module is imported, so those at its top alone: not
those of functions, of `try` and of `if`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

Functions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Source:
    """A module: its syntax tree, the names that it imports at its top, and by which statement.

    `imports` are dotted names, of `from a import b` both `a` and `a.b`; `lazy` has for each
    function and class the modules that its body imports.
    """

    tree: ast.Module
    imports: tuple[str, ...] = ()
    lazy: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Imported:
    """A library that a module of the code imports; not `at_once`: a function that it takes does."""

    library: str
    module: str
    at_once: bool = True


def file_of(module: str, code: Path) -> Path | None:
    """The file of a module in the folder of the code; None where there is none."""
    path = code.joinpath(*module.split("."))
    for file in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
        if file.is_file():
            return file
    return None


def source(file: Path) -> Source:
    """The module in a file, read once until it changes; nothing of one that is no Python."""
    stat = file.stat()
    return _source(file, stat.st_mtime_ns, stat.st_size)


def libraries(module: str, code: Path, wanted: frozenset[str]) -> Iterator[Imported]:
    """The `wanted` libraries that importing a module of the code imports, each once.

    First come those that are imported at once, then those that a function imports: one of
    `module` or of a module beside it, or one that these take from another.
    """
    own = module.rpartition(".")[0]
    queue, seen, later = [module], {module}, list[Imported]()
    reported: set[str] = set()
    for name in queue:
        file = file_of(name, code)
        if file is None:
            continue
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        is_own = f"{name}.".startswith(f"{own}.")
        inner = source(file).lazy.values() if is_own else ()
        lazy = wanted & {library for function in inner for library in function}
        later += [Imported(library, name, at_once=False) for library in sorted(lazy)]
        for imported in _absolute(source(file).imports, package):
            top = imported.partition(".")[0]
            if top in wanted and file_of(top, code) is None and top not in reported:
                reported.add(top)
                yield Imported(top, name)
            holder, _, taken = imported.rpartition(".")
            if is_own and (held := file_of(holder, code)):
                for library in sorted(source(held).lazy.get(taken, frozenset()) & wanted):
                    later.append(Imported(library, name, at_once=False))
            parts = imported.split(".")
            for end in range(1, len(parts) + 1):
                parent = ".".join(parts[:end])
                if parent not in seen:
                    seen.add(parent)
                    queue.append(parent)
    for candidate in later:
        if candidate.library not in reported:
            reported.add(candidate.library)
            yield candidate


def _absolute(names: tuple[str, ...], package: str) -> Iterator[str]:
    """`..a` in the package `b.c` is `b.a`."""
    for name in names:
        level = len(name) - len(name.lstrip("."))
        above = package.split(".")[: len(package.split(".")) - level + 1] if level else []
        yield ".".join([*above, name[level:]]).strip(".")


@lru_cache(maxsize=1024)
def _source(file: Path, mtime_ns: int, size: int) -> Source:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return Source(ast.Module([], []))  # its own checks report it
    imports = (name for statement in tree.body for name in _names(statement))
    lazy = {
        function.name: frozenset(
            name.partition(".")[0] for inner in ast.walk(function) for name in _names(inner)
        )
        for function in tree.body
        if isinstance(function, Functions)
    }
    return Source(tree, tuple(imports), lazy)


def _names(node: ast.AST) -> Iterator[str]:
    """The modules that an import names, or a call of `import_module` with a text."""
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            from_module = "." * level + (module or "")
            yield from_module
            dot = "." if module else ""
            yield from (f"{from_module}{dot}{alias.name}" for alias in names)
        case ast.Call(
            func=ast.Attribute(attr="import_module") | ast.Name(id="import_module"),
            args=[ast.Constant(value=str(name))],
        ):
            yield name
