"""Checks the code that a spec runs: imported packages, and arguments of the command line.

Code is parsed, never run. Only top-level imports are followed: imports in functions, `try` and `if`
may not run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path

from ml.core import repository
from ml.core.documents import Key
from ml.specs.assets import assets, packages
from ml.specs.assets.assets import Links
from ml.specs.check.nodes import WITH_NODES, Node
from ml.specs.check.rules.rule import Finding, Subject, rule
from ml.specs.expressions import did_you_mean
from ml.specs.yaml_node import YamlNode

Functions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Source:
    """A parsed Python module and its imports."""

    tree: ast.Module
    # Dotted names of top-level imports, relative ones with leading dots; `from a import b` gives
    # `a` and `a.b`.
    imports: tuple[str, ...] = ()
    # Function or class → top-level packages that its body imports.
    lazy: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Imported:
    """A library that a module imports."""

    library: str
    module: str
    is_top_level: bool = True  # a top-level import; False: only a function imports it


def file_of(module: str, code: Path) -> Path | None:
    """Return the file of a module in the folder `code`; None if there is none."""
    path = code.joinpath(*module.split("."))
    for file in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
        if file.is_file():
            return file
    return None


def source(file: Path) -> Source:
    """Parse the module in a file, cached until it changes; empty if it is not valid Python."""
    stat = file.stat()
    return _source(file, stat.st_mtime_ns, stat.st_size)


def libraries(
    module: str, wanted: frozenset[str], find: Callable[[str], Path | None]
) -> Iterator[Imported]:
    """Yield the `wanted` libraries that a module imports, directly or indirectly, each once.

    Top-level imports come first. Then come imports inside functions (`at_once` False) of the
    modules in the same package, and of functions that these import. `find` returns a module's
    file, as `file_of` does; None for an installed package.
    """
    entry_package = module.rpartition(".")[0]
    queue, seen, later = [module], {module}, list[Imported]()
    reported: set[str] = set()
    for name in queue:
        file = find(name)
        if file is None:
            continue
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        is_own = f"{name}.".startswith(f"{entry_package}.")
        inner = source(file).lazy.values() if is_own else ()
        lazy = wanted & {library for function in inner for library in function}
        later += [Imported(library, name, is_top_level=False) for library in sorted(lazy)]
        for imported in _absolute(source(file).imports, package):
            top = imported.partition(".")[0]
            if top in wanted and find(top) is None and top not in reported:
                reported.add(top)
                yield Imported(top, name)
            holder, _, taken = imported.rpartition(".")
            if is_own and (held := find(holder)):
                for library in sorted(source(held).lazy.get(taken, frozenset()) & wanted):
                    later.append(Imported(library, name, is_top_level=False))
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
    """Yield the absolute form of import names: `..a` in the package `b.c` is `b.a`."""
    for name in names:
        level = len(name) - len(name.lstrip("."))
        above = package.split(".")[: len(package.split(".")) - level + 1] if level else []
        yield ".".join([*above, name[level:]]).strip(".")


@lru_cache(maxsize=1024)
def _source(file: Path, mtime_ns: int, size: int) -> Source:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return Source(ast.Module([], []))  # a linter or test of the code reports it
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
    """Yield the names that an import statement or `import_module("…")` imports."""
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


_MODULE = re.compile(r"(?:^|\s)-m\s+(\w+(?:\.\w+)+)(?=\s|$)([^\n;&|]*)")
_OPTION = re.compile(
    r"(?<!\S)(?:\$\[\[\s*)?--([A-Za-z][\w-]*)(?=[\s=]|$)(?:[\s=]*(\$\{\{.*?\}\}))?"
)
_SPACE = re.compile(r"\$\{\{\s*search_space\.(\w+)\s*\}\}")


@dataclass(frozen=True)
class _Entry:
    """A module that a job or a deployment runs."""

    owner: YamlNode  # the spec or node with `environment` and `command`
    prefix: tuple[Key, ...]  # keys above those fields: ("trial",) for a sweep, else ()
    code: Path
    module: str
    arguments: str = ""  # text after `-m MODULE`


def _entries(node: Node) -> Iterator[_Entry]:
    """Yield the modules in a job's `code` that its command runs with `python -m`."""
    prefix: tuple[Key, ...] = ("trial",) if node.type == "sweep" else ()
    command, written = node.get(*prefix, "command"), node.get(*prefix, "code")
    code = assets.local_path(written, node.folder) if isinstance(written, str) else None
    if code is None or not isinstance(command, str):
        return
    for match in _MODULE.finditer(command):
        if file_of(match[1], code) is not None:
            yield _Entry(node, prefix, code, match[1], match[2])


@rule(
    "missing-package",
    scope=(*WITH_NODES, "online_deployment"),
    source="a job ends with ModuleNotFoundError once its node is up",
)
def missing_package(subject: Subject) -> Iterator[Finding]:
    """The environment lists the model libraries (torch, sklearn …) that the code imports.

    An error for a top-level import if all packages of the environment are known; else a warning.
    """
    entries = [entry for node in subject.nodes for entry in _entries(node)]
    # Several modules of one command share its environment.
    for (owner, prefix), group in groupby(entries, lambda entry: (entry.owner, entry.prefix)):
        if not re.search(r"\binstall\b", str(owner.get(*prefix, "command"))):
            yield from _missing(subject.links, [*group])
    if subject.spec.kind.family == "online_deployment":
        spec = subject.spec
        written, script = (
            spec.get("code_configuration", key) for key in ("code", "scoring_script")
        )
        code = assets.local_path(written, spec.folder) if isinstance(written, str) else None
        if code is not None and isinstance(script, str):
            module = ".".join(Path(script).with_suffix("").parts)
            yield from _missing(subject.links, [_Entry(spec, (), code, module)], serves=True)


def _missing(links: Links, entries: list[_Entry], *, serves: bool = False) -> Iterator[Finding]:
    """Yield a finding if the environment lacks libraries that the entries' modules import.

    With `serves`, only top-level imports count.
    """
    first = entries[0]
    imported = {
        item.library: item
        for entry in reversed(entries)
        for item in _libraries(links, entry.module, entry.code.resolve())
        if item.is_top_level or not serves
    }
    keys = (*first.prefix, "environment")
    written = first.owner.get(*keys)
    if not imported or not isinstance(written, str):
        return
    # Use the root for an asset, so that the cache is shared by all folders.
    is_asset = assets.parse(written) is not None
    folder = repository.root(first.owner.file) if is_asset else first.owner.folder
    environment = _packages(links, folder, written)
    if environment is None or imported.keys() <= environment.libraries:
        return
    missing = [
        item for library, item in sorted(imported.items()) if library not in environment.libraries
    ]
    at_once = [item for item in missing if item.is_top_level] or missing
    names = " and ".join(item.library for item in at_once)
    listed = " and ".join(packages.PACKAGES.get(item.library, item.library) for item in at_once)
    verb = "imports" if at_once[0].is_top_level else "has or calls a function that imports"
    file = repository.shown(environment.file.resolve())
    alternative = _other(first.owner, environment, frozenset(imported))
    hint = f"list {listed} in it"
    yield Finding(
        keys,
        f"{at_once[0].module} {verb} {names}, which {file} does not list",
        f"an environment with {listed}",
        f"environment: {alternative}, or {hint}" if alternative else hint,
        "error" if at_once[0].is_top_level and environment.is_known else "warning",
        place=first.owner.place(*keys),
    )


@lru_cache(maxsize=256)
def _libraries(links: Links, module: str, code: Path) -> tuple[Imported, ...]:
    """Return the model libraries that a module imports; cached per `links`, so per survey."""
    return tuple(libraries(module, packages.LIBRARIES, partial(_file_of, links, code)))


@lru_cache(maxsize=4096)
def _file_of(links: Links, code: Path, module: str) -> Path | None:
    """Return `file_of(module, code)`; cached per `links`, so per survey."""
    return file_of(module, code)


@lru_cache(maxsize=64)
def _packages(links: Links, folder: Path, written: str) -> packages.Packages | None:
    """Return `packages.of_environment(folder, written)`; cached per `links`, so per survey."""
    return packages.of_environment(folder, written)


def _other(owner: YamlNode, instead_of: packages.Packages, needed: frozenset[str]) -> str:
    """Return the repository's environment with the `needed` libraries that shares most packages.

    It is a reference `azureml:NAME:VERSION`; "" if there is none.
    """
    best, most = "", -1
    for spec in assets.definitions(repository.root(owner.file)):
        listed = packages.of_spec(spec) if spec.kind == "environment" else None
        if listed is not None and needed <= listed.libraries:
            shared = len(listed.names & instead_of.names)
            if shared > most:
                best, most = f"azureml:{spec.name}:{spec.version}", shared
    return best


@rule(
    "unknown-argument",
    scope=WITH_NODES,
    source="argparse ends a program with exit code 2 for an argument that it does not know",
)
def unknown_argument(subject: Subject) -> Iterator[Finding]:
    """A command passes only arguments that the `train` module of a tabular project defines.

    The arguments of other programs are not checked.
    """
    for node in subject.nodes:
        for entry in _entries(node):
            # Quoted text may contain something that looks like an argument.
            is_plain = not re.search(r"[\"'`\\]", entry.arguments)
            arguments = _arguments(entry.module, entry.code) if is_plain else frozenset()
            for option in _OPTION.finditer(entry.arguments) if arguments else ():
                name, value = option[1], _SPACE.fullmatch(option[2] or "")
                # argparse accepts a prefix of a name.
                if any(argument.startswith(name) for argument in arguments):
                    continue
                dimension = value[1] if value and value[1] in node.search_space else ""
                keys = ("search_space", dimension) if dimension else (*entry.prefix, "command")
                yield Finding(
                    keys,
                    f"{entry.module} has no argument `--{name}`",
                    f"one of {', '.join(f'--{argument}' for argument in sorted(arguments))}",
                    did_you_mean(name, arguments, "--{}")
                    or "write it into `SETTINGS` of model.py, or take it out of the command",
                    place=node.place(*keys),
                )


def _arguments(module: str, code: Path) -> frozenset[str]:
    """Return the argument names of a project's train.py; empty if they cannot be determined.

    The module must end in `f(PROJECT)`. The function `f`, from another module, must add literal
    arguments and those of the project's SETTINGS.
    """
    file = file_of(module, code)
    tree = source(file).tree if file else ast.Module([], [])
    match tree.body[-1:]:
        case [ast.If(body=[ast.Expr(ast.Call(func=ast.Name(function), args=[ast.Name(project)]))])]:
            pass
        case _:
            return frozenset()
    maker = _module_of(tree, function, code)
    if maker is None:
        return frozenset()
    functions = [item for item in maker.body if isinstance(item, ast.FunctionDef)]
    body = next((item for item in functions if item.name == function), None)
    if body is None or not _is_readable(body):
        return frozenset()
    names: set[str] = set()
    takes_settings = False
    for node in ast.walk(body):
        match node:
            case ast.Call(func=ast.Attribute(attr="add_argument"), args=[ast.Constant(str(name))]):
                names.add(name.removeprefix("--"))
            case ast.Call(func=ast.Attribute(attr="add_argument"), args=[ast.JoinedStr()]):
                takes_settings = True
            case ast.Call(func=ast.Attribute(attr="add_argument")):
                return frozenset()
    if not takes_settings:
        return frozenset({"help", *names}) if names else frozenset()
    changed = any(
        isinstance(node, ast.Attribute) and node.attr == "SETTINGS" for node in ast.walk(tree)
    )
    settings = None if changed else _settings(_model(tree, project, code))
    return frozenset({"help", *names, *settings}) if settings is not None else frozenset()


def _is_readable(function: ast.stmt) -> bool:
    """Return True if a function has one ArgumentParser and only adds and parses its arguments."""
    parsers, used, uses = list[str](), 0, 0
    for node in ast.walk(function):
        match node:
            case ast.Assign(
                targets=[ast.Name(name)],
                value=ast.Call(
                    func=ast.Name("ArgumentParser") | ast.Attribute(attr="ArgumentParser"),
                    keywords=keywords,
                ),
            ) if all(keyword.arg == "description" for keyword in keywords):
                parsers.append(name)
    for node in ast.walk(function):
        match node:
            case ast.Attribute(value=ast.Name(name), attr="add_argument" | "parse_args") if (
                name in parsers
            ):
                used += 1
            case ast.Name(name, ast.Load()) if name in parsers:
                uses += 1
    return len(parsers) == 1 and used == uses


def _module_of(tree: ast.Module, name: str, code: Path) -> ast.Module | None:
    """Return the module that `name` is, or is imported from; None if it is not imported."""
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            for alias in statement.names:
                if (alias.asname or alias.name) == name:
                    submodule = file_of(f"{statement.module}.{alias.name}", code)
                    file = submodule or file_of(statement.module, code)
                    return source(file).tree if file else None
    return None


def _model(tree: ast.Module, project: str, code: Path) -> ast.Module | None:
    """Return the module that defines `model` in `PROJECT = Tabular(SCHEMA, model, …)`, or None."""
    for statement in tree.body:
        match statement:
            case ast.Assign(
                targets=[ast.Name(name)],
                value=ast.Call(func=ast.Name("Tabular"), args=[_, ast.Name(model), *_]),
            ) if name == project:
                return _module_of(tree, model, code)
    return None


def _settings(model: ast.Module | None) -> frozenset[str] | None:
    """Return the argument names in SETTINGS; None unless it is a dict with literal keys."""
    if model is None:
        return None
    uses = [
        node for node in ast.walk(model) if isinstance(node, ast.Name) and node.id == "SETTINGS"
    ]
    for statement in model.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name("SETTINGS")], value=ast.Dict(keys=keys))
                | ast.AnnAssign(target=ast.Name("SETTINGS"), value=ast.Dict(keys=keys))
            ):
                names = [key.value for key in keys if isinstance(key, ast.Constant)]
                if len(names) != len(keys) or len(uses) != 1:
                    return None
                return frozenset(str(name).replace("_", "-") for name in names)
    return None
