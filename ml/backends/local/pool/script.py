"""Which commands are one start of Python, `python train.py …`, and what their scripts import.

Everything is read from the text of the command and of the code; nothing is executed.
"""

from __future__ import annotations

import ast
import re
import shlex
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

# Words that mean the same to bash and to `shlex`.
_WORDS = re.compile(r"""(?:[^\s'"\\$`!;&|<>(){}*?\[\]~#]|[ \t]|'[^'\n]*'|"[^"\\$`!\n]*"|\\\n)+""")
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_SITE = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
# Packages read the environment when they are imported; modules are found by the two lists of `sys`.
_STEERS_IMPORTS = re.compile(
    rb"environ\s*(\[[^\]\n]*\]\s*=[^=]|\.\s*(update|setdefault|pop|popitem|clear)\b|\|=)"
    rb"|\bdel\b.*environ|putenv|unsetenv|load_dotenv|sys\s*\.\s*(modules|path)\b"
)


@dataclass(frozen=True)
class Invocation:
    """`program flags script arguments`, or `program flags -m module arguments`."""

    program: str
    flags: tuple[str, ...]
    target: str
    is_module: bool
    arguments: tuple[str, ...]


class Unfit(Exception):
    """Raised, with the reason, for a command that needs its own shell and interpreter."""


def parse(command: str) -> Invocation:
    """What the command starts. Raises Unfit."""
    command = command.strip()
    if not _WORDS.fullmatch(command):
        raise Unfit("the command needs a shell")
    program, *words = shlex.split(command.replace("\\\n", ""))
    if not _PYTHON.fullmatch(program):
        raise Unfit("the command does not start with `python`")
    flags = tuple(words[:1]) if words[:1] == ["-u"] else ()
    is_module = words[len(flags) :][:1] == ["-m"]
    target, *arguments = words[len(flags) + is_module :] or [""]
    if not target or target.startswith("-") or not (is_module or target.endswith(".py")):
        raise Unfit("the command is neither `python [-u] FILE.py` nor `python [-u] -m MODULE`")
    return Invocation(program, flags, target, is_module, tuple(arguments))


def imports(root: Path, invocation: Invocation) -> tuple[str, ...]:
    """The third-party modules that the command, started in `root`, imports; `from a import b` may
    mean two, a and a.b.

    Imports inside functions count; those under `if TYPE_CHECKING` do not. A file that cannot be
    parsed contributes nothing. Raises Unfit when modules may not be imported before the script.
    """
    path = root / invocation.target
    base = root if invocation.is_module else path.parent
    if invocation.is_module:
        files = [*_files(base, f"{invocation.target}.__main__")]
    elif path.resolve().is_relative_to(root.resolve()) and path.is_file():
        files = [path]
    else:
        raise Unfit(f"`{invocation.target}` is not a file of the code")
    names: dict[str, None] = {}
    for file in files:  # which grows
        for name in _names(file, base):
            top = name.partition(".")[0]
            if (base / top).is_dir() or (base / f"{top}.py").is_file():
                files += [new for new in _files(base, name) if new not in files]
            elif top not in sys.stdlib_module_names:
                names[name] = None
    for file in base.iterdir():
        if file.suffix in {".py", ".so", ".pyc"} or (file / "__init__.py").is_file():
            spec = PathFinder.find_spec(file.name.partition(".")[0], _SITE)
            if spec is not None and spec.loader is not None:
                raise Unfit(f"`{spec.name}` of the code hides another module of that name")
    return tuple(names)


def _files(base: Path, name: str) -> Iterator[Path]:
    """The files of the code that `import name` executes."""
    for part in name.split("."):
        base /= part
        yield from filter(Path.is_file, (base / "__init__.py", base.with_suffix(".py")))


def _names(file: Path, base: Path) -> Iterator[str]:
    """The modules that a file of the code imports. Raises Unfit when it changes how."""
    try:
        source = file.read_bytes()
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return
    if match := _STEERS_IMPORTS.search(source):
        line = source.count(b"\n", 0, match.start()) + 1
        raise Unfit(f"{file.name}:{line} changes the environment, or where modules are found")
    package = file.relative_to(base).parts[:-1]
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join(filter(None, [*above, node.module]))
            yield from filter(None, [module])
            yield from (f"{module}.{alias.name}".lstrip(".") for alias in node.names)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node except those under `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")):
            yield node
            yield from _statements(node)
