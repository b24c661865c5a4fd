"""Which commands are one start of Python, `python [-u] train.py …`, and what their scripts import.

Everything is read from the text of the command and of the code; nothing is executed.
"""

from __future__ import annotations

import ast
import re
import shlex
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path

_PYTHON = re.compile(r"python(3(\.\d+)?)?")
# Flags that hold for every process of an interpreter that was started with them.
_FLAGS = frozenset({"-u", "-B", "-O", "-OO", "-s", "-q"})
_QUOTED_OR_CONTINUED = re.compile(r"('[^']*')|\\\n")
_SHELL = re.compile(r"[$`\\!;&|<>(){}*?\[\]~#\n]")
_SITE = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_WRITES = frozenset({"update", "setdefault", "pop", "popitem", "clear", "__setitem__"})


@dataclass(frozen=True)
class Invocation:
    """`program flags script arguments`, or `program flags -m module arguments`."""

    program: str
    flags: tuple[str, ...]
    target: str
    is_module: bool
    arguments: tuple[str, ...]


class Unfit(Exception):
    """Why a command gets a shell and an interpreter of its own."""


def parse(command: str) -> Invocation:
    """What the command starts. Raises Unfit."""
    command = _QUOTED_OR_CONTINUED.sub(lambda match: match[1] or "", command.strip())
    if _SHELL.search(_QUOTED_OR_CONTINUED.sub("", command)):
        raise Unfit("the command needs a shell")
    try:
        program, *rest = shlex.split(command) or [""]
    except ValueError:
        raise Unfit("the command needs a shell") from None
    if not _PYTHON.fullmatch(program):
        raise Unfit("the command does not start with `python`")
    flags: list[str] = []
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        if rest[0] == "-W" and len(rest) > 1:
            flags += [rest.pop(0), rest.pop(0)]
        elif rest[0] in _FLAGS:
            flags.append(rest.pop(0))
        else:
            raise Unfit(f"`python {rest[0]}` needs an interpreter of its own")
    is_module = rest[:1] == ["-m"]
    target, *arguments = rest[is_module:] or [""]
    if not target:
        raise Unfit("the command names no script")
    if not is_module and not target.endswith(".py"):
        raise Unfit(f"`{target}` is not a .py file")
    return Invocation(program, tuple(flags), target, is_module, tuple(arguments))


def imports(root: Path, invocation: Invocation) -> tuple[str, ...]:
    """The third-party modules that the command, started in `root`, imports; `from a import b` may
    mean two, a and a.b.

    Imports inside functions count; those under `if TYPE_CHECKING` and names that are computed do
    not. A file that cannot be parsed contributes nothing. Raises Unfit when none of them may be
    imported before the script starts.
    """
    base = root if invocation.is_module else (root / invocation.target).parent
    scan = _Scan(root, base)
    if invocation.is_module:
        scan.follow(invocation.target)
        scan.follow(f"{invocation.target}.__main__")
    else:
        path = root / invocation.target
        if not path.is_file() or not path.resolve().is_relative_to(root.resolve()):
            raise Unfit(f"`{invocation.target}` is not a file of the code")
        scan.visit(path)
    for folder in [base, *(root.rglob("*/") if scan.extends_path else ())]:
        for name in _offered(folder):
            spec = PathFinder.find_spec(name, _SITE)
            if spec is not None and spec.loader is not None:
                raise Unfit(f"`{name}` of the code hides another module of that name")
    return tuple(name for name in dict.fromkeys(scan.modules) if _top(name) not in scan.stubbed)


class _Scan:
    """Visits each module of the code once, depth first.

    `stubbed` are the packages that a module imports which also writes to `sys.modules`: it decides
    itself what they find there. `extends_path`: the code looks for modules in further folders.
    """

    def __init__(self, root: Path, base: Path) -> None:
        self._root, self._base, self._seen = root, base, set[Path]()
        self.modules, self.stubbed, self.extends_path = list[str](), set[str](), False

    def follow(self, name: str) -> None:
        """Visit the module of that name and the packages that hold it, where the code has them."""
        place = self._base
        for part in name.split("."):
            place /= part
            self.visit(place / "__init__.py")
            self.visit(place.with_suffix(".py"))

    def visit(self, path: Path) -> None:
        """Read one file, if there is one."""
        if path in self._seen or not path.is_file():
            return
        self._seen.add(path)
        try:
            source = _read(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            return
        first = len(self.modules)
        for step in source.order:
            if isinstance(step, int):
                where = f"{path.relative_to(self._root)}:{step}"
                why = "changes the environment, which packages read when they are imported"
                raise Unfit(f"{where} {why}")
            for name in step.names(path.parent.relative_to(self._base).parts):
                self.follow(name)
                top = self._base / _top(name)
                if _top(name) in sys.stdlib_module_names:
                    continue
                if not top.is_dir() and not top.with_suffix(".py").is_file():
                    self.modules.append(name)
        self.extends_path |= source.extends_path
        if source.stubs:
            self.stubbed |= {_top(name) for name in self.modules[first:]}


@dataclass(frozen=True)
class _Import:
    """`import module`, or `from ..module import of` with a `level` of 2."""

    module: str
    of: tuple[str, ...] = ()
    level: int = 0

    def names(self, package: tuple[str, ...]) -> Iterator[str]:
        """What it may mean in a module of that package."""
        above = package[: len(package) - self.level + 1] if self.level else ()
        name = ".".join(filter(None, [*above, self.module]))
        yield from filter(None, [name])
        yield from (f"{name}.{each}".lstrip(".") for each in self.of)


@dataclass(frozen=True)
class _Source:
    """Of a file, in its order: what it imports, and the lines that change the environment."""

    order: tuple[_Import | int, ...]
    stubs: bool
    extends_path: bool


# A sweep's trials start the same files.
@lru_cache(maxsize=1024)
def _read(source: bytes) -> _Source:
    """Raises SyntaxError and ValueError for what is not Python."""
    tree = ast.parse(source)
    order: list[_Import | int] = []
    stubs = extends_path = False
    # Imports are statements; a file's expressions, most of its nodes, matter to few.
    for node in _nodes(tree) if _STEERS.search(source) else _statements(tree.body):
        if isinstance(node, ast.Import):
            order += [_Import(alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            names = tuple(alias.name for alias in node.names)
            order.append(_Import(node.module or "", names, node.level))
        elif _changes(node, "environ") or _calls(node, {"putenv", "unsetenv", "load_dotenv"}):
            order.append(getattr(node, "lineno", 1))
        stubs = stubs or _changes(node, "modules")
        extends_path |= _is(node, "path") and ast.unparse(node) == "sys.path"
    return _Source(tuple(order), stubs, extends_path)


_STEERS = re.compile(rb"environ|putenv|unsetenv|load_dotenv|modules|sys\s*\.\s*path")


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if _is_for_types(node):
            continue
        yield node
        yield from _nodes(node)


def _statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for node in body:
        if _is_for_types(node):
            continue
        yield node
        for part in ("body", "handlers", "cases", "orelse", "finalbody"):
            yield from _statements(getattr(node, part, ()))


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def _offered(folder: Path) -> Iterator[str]:
    """The modules that come first when the folder is the first of `sys.path`."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.suffix in {".py", ".so", ".pyc"} or (path / "__init__.py").is_file():
            yield path.name.partition(".")[0]


def _top(name: str) -> str:
    return name.partition(".")[0]


def _is(node: ast.AST, name: str) -> bool:
    """Whether the expression is that name, or an attribute of that name."""
    return name in (getattr(node, "id", ""), getattr(node, "attr", ""))


def _changes(node: ast.AST, name: str) -> bool:
    """Whether the node sets or deletes an item of that mapping, or calls a method that does."""
    if isinstance(node, ast.Subscript):
        return _is(node.value, name) and not isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _WRITES and _is(node.func.value, name)
    return isinstance(node, ast.AugAssign) and _is(node.target, name)


def _calls(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Call) and any(_is(node.func, name) for name in names)
