"""What a script imports from outside of its snapshot, in the order in which it will.

Read off the source, module by module as the import statements lead on; nothing is executed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

# `import a.b` is ("a.b", ()); `from a.b import c` is ("a.b", ("c",)).
Entry = tuple[str, tuple[str, ...]]
_WRITES = frozenset(
    {"update", "setdefault", "pop", "popitem", "clear", "putenv", "unsetenv", "__setitem__"}
)
_SEARCH = frozenset({"path", "meta_path", "path_hooks"})


@dataclass
class Imports:
    """`entries` in order, those of function bodies last. `names` are what the snapshot offers at
    the top of its search path, and could therefore stand in front of anything of the same name.

    `cold` are packages that a module imports which also writes into `sys.modules`: it wants them
    imported then and there. The first `certain` of the entries are imported before the script does
    anything else. `obstacle` says why nothing may be imported before the script itself
    does it, "" if it may.
    """

    entries: dict[Entry, None] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    cold: set[str] = field(default_factory=set)
    certain: int = 0
    obstacle: str = ""

    def has(self, package: str) -> bool:
        """Whether something is imported from that package."""
        return any(name.partition(".")[0] == package for name, _ in self.entries)

    def without(self, packages: set[str]) -> Imports:
        """The same, but for imports from these packages."""
        kept = [one[0].partition(".")[0] not in packages for one in self.entries]
        entries = [one for one, keep in zip(self.entries, kept, strict=True) if keep]
        return replace(self, entries=dict.fromkeys(entries), certain=sum(kept[: self.certain]))


def of(root: Path, target: str, is_module: bool) -> Imports:
    """What `python target` or `python -m target`, started in `root`, imports."""
    base, start = (root, None) if is_module else ((root / target).parent, root / target)
    found = Imports(names=frozenset(_offered(base)))
    walk = _Walk(root, base, found)
    if start is not None:
        if start.is_file():
            walk.module(start, "__main__")
    else:
        walk.follow(target)
        walk.follow(f"{target}.__main__")
    walk.rest()
    found = found.without(found.cold)
    if walk.searches:
        # It looks for modules elsewhere, too: anything in the snapshot may come in front.
        found.names |= {name for folder in root.rglob("*/") for name in _offered(folder)}
    return found


def _offered(folder: Path) -> Iterator[str]:
    if folder.is_dir():
        for path in folder.iterdir():
            if path.is_dir() or path.suffix in {".py", ".so", ".pyc"}:
                yield path.name.partition(".")[0]


class _Walk:
    """Visits modules of the snapshot, each once, depth first, as importing them would."""

    def __init__(self, root: Path, base: Path, found: Imports) -> None:
        self._root, self._base, self._found = root, base, found
        self._seen: set[Path] = set()
        self._later: list[tuple[list[ast.stmt], str, Path]] = []
        self.searches = False
        self._only_imports = True

    def follow(self, name: str) -> None:
        """Visit the module of that name and the packages that it is in, if the snapshot has it."""
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            place = self._base.joinpath(*parts[:end])
            for path in (place / "__init__.py", place.with_suffix(".py")):
                if path.is_file():
                    self.module(path, ".".join(parts[:end]))
                    break

    def module(self, path: Path, name: str) -> None:
        """Visit one file; one that cannot be read or parsed says so itself when it runs."""
        if path in self._seen:
            return
        self._seen.add(path)
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            return
        self._inspect(tree, path)
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        self._statements(tree.body, package, path)

    def rest(self) -> None:
        """What functions import when they are called."""
        if self._only_imports:
            self._only_imports = False
            self._found.certain = len(self._found.entries)
        while self._later:
            body, package, path = self._later.pop(0)
            self._statements(body, package, path)

    def _statements(self, body: Iterable[ast.stmt], package: str, path: Path) -> None:
        for node in body:
            if self._only_imports and not _only_imports(node):
                self._only_imports = False
                self._found.certain = len(self._found.entries)
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._take(alias.name, ())
            elif isinstance(node, ast.ImportFrom):
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                inside = [*above, node.module or ""] if node.level else [node.module or ""]
                names = tuple(alias.name for alias in node.names)
                self._take(".".join(filter(None, inside)), names, relative=node.level > 0)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._later.append((node.body, package, path))
            elif not (isinstance(node, ast.If) and _is_for_types(node.test)):
                for part in ("body", "handlers", "orelse", "finalbody"):
                    inner = getattr(node, part, [])
                    for one in inner:
                        within = one.body if isinstance(one, ast.ExceptHandler) else [one]
                        self._statements(within, package, path)

    def _take(self, name: str, names: tuple[str, ...], relative: bool = False) -> None:
        if not name or name == "__future__":
            return
        if relative or name.partition(".")[0] in self._found.names:
            self.follow(name)
            for one in names:
                self.follow(f"{name}.{one}")
        else:
            self._found.entries.setdefault((name, names))

    def _inspect(self, tree: ast.Module, path: Path) -> None:
        named_here: set[str] = set()
        blocks = False
        for node in ast.walk(tree):
            if _changes(node, "environ", _WRITES) or _calls(node, {"putenv", "load_dotenv"}):
                where = f"{path.relative_to(self._root)}:{getattr(node, 'lineno', 1)}"
                self._found.obstacle = self._found.obstacle or (
                    f"{where} changes the environment, which packages read while they are imported"
                )
            if isinstance(node, ast.Call) and _calls(node, {"import_module", "__import__"}):
                match node.args:
                    case [ast.Constant(value=str(named))] if not named.startswith("."):
                        self._later.append(([ast.Import([ast.alias(named)])], "", path))
                        named_here.add(named)
            if isinstance(node, ast.Import):
                named_here |= {alias.name for alias in node.names}
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                named_here.add(node.module)
            blocks = blocks or _changes(node, "modules", _WRITES)
            if isinstance(node, ast.Attribute) and node.attr in _SEARCH and _is(node.value, "sys"):
                self.searches = True
        if blocks:
            tops = {name.partition(".")[0] for name in named_here}
            self._found.cold |= tops - sys.stdlib_module_names


def _only_imports(node: ast.stmt) -> bool:
    """Whether the statement imports something, or does nothing when it is executed."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return True
        case ast.If(test=test, orelse=[]):
            return _is_for_types(test)
    return False


def _is_for_types(test: ast.expr) -> bool:
    return _is(test, "TYPE_CHECKING")


def _is(node: ast.AST, name: str) -> bool:
    """Whether the expression is that name, or an attribute of that name."""
    return (isinstance(node, ast.Name) and node.id == name) or (
        isinstance(node, ast.Attribute) and node.attr == name
    )


def _changes(node: ast.AST, name: str, methods: frozenset[str]) -> bool:
    """Whether the node sets or deletes an item of that mapping, or calls what changes it."""
    if isinstance(node, ast.Subscript):
        return _is(node.value, name) and not isinstance(node.ctx, ast.Load)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in methods and _is(node.func.value, name)
    return isinstance(node, ast.AugAssign) and _is(node.target, name)


def _calls(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Call) and any(_is(node.func, name) for name in names)
