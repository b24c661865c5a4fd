"""Pickles in serving code: modules that load them, and their bytes in the code or beside it.

The scoring script and what it imports from its folder are read, and the files beside them. Nothing
is run. Not seen: installed packages, imports and bytes that are computed, what is downloaded when
the server starts, and code that runs code in another way. The review of the code sees these.
"""

from __future__ import annotations

import ast
import base64
import binascii
import io
import pickletools
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Modules that run code when they load a file.
LOADERS = frozenset(
    {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
)
# What a pickle needs to call something.
_CALLS = frozenset(
    {"GLOBAL", "STACK_GLOBAL", "INST", "REDUCE", "OBJ", "NEWOBJ", "NEWOBJ_EX", "BUILD"}
)
_SHORTEST = 16
_LARGEST = 50_000_000
_ENCODED = re.compile(r"[A-Za-z0-9+/_=\s-]+")


@dataclass(frozen=True)
class Trace:
    """A trace of a pickle: the file, the line (0 for a file that is no code), and what it is."""

    file: Path
    line: int
    found: str


def traces(code: Path, script: str) -> Iterator[Trace]:
    """The traces of pickles in the scoring script and in what it imports from the folder `code`."""
    modules = list(_modules(code, code / script))
    for file, tree in modules:
        if tree is None:
            yield Trace(file, 1, "code that cannot be read")
        else:
            yield from _in_code(file, tree)
    for folder in sorted({file.parent for file, _ in modules}):
        for file in sorted(folder.iterdir()):
            if file.is_file() and file.suffix not in {".py", ".pyc"} and holds_pickle(file):
                yield Trace(file, 0, "the bytes of a pickle")


def holds_pickle(file: Path) -> bool:
    """Whether a file is a pickle, or a zip file with one in it, as torch writes it."""
    if file.stat().st_size > _LARGEST:
        return False
    content = file.read_bytes()
    if is_pickle(content):
        return True
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return any(is_pickle(archive.read(name)) for name in archive.namelist())
    except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError, ValueError):
        return False


def is_pickle(content: bytes) -> bool:
    """Whether these bytes are a pickle that calls something when it is loaded."""
    try:
        names = {opcode.name for opcode, _, _ in pickletools.genops(content)}
    except Exception:  # bytes of any other kind break the reader in any way
        return False
    return bool(names & _CALLS)


def _modules(code: Path, script: Path) -> Iterator[tuple[Path, ast.Module | None]]:
    """The script and the modules of the folder that it imports, each once."""
    waiting, met = [script.resolve()], set[Path]()
    while waiting:
        file = waiting.pop()
        if file in met or not file.is_file() or not file.is_relative_to(code.resolve()):
            continue
        met.add(file)
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError, RecursionError):
            yield file, None
            continue
        yield file, tree
        for names, level in _imports(tree):
            bases = (
                [file.parents[level - 1]] if level else [code.resolve(), script.resolve().parent]
            )
            for base in bases:
                for depth in range(1, len(names) + 1):
                    path = base.joinpath(*names[:depth])
                    waiting += [path.with_name(f"{path.name}.py"), path / "__init__.py"]


def _imports(tree: ast.Module) -> Iterator[tuple[list[str], int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.split("."), 0
        elif isinstance(node, ast.ImportFrom):
            module = node.module.split(".") if node.module else []
            for alias in node.names:
                yield [*module, alias.name], node.level


def _in_code(file: Path, tree: ast.Module) -> Iterator[Trace]:
    for names, level in _imports(tree):
        if not level and names[0] in LOADERS:
            yield Trace(file, _line(tree, names[0]), f"an import of `{names[0]}`")
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and _constant_is_pickle(node.value):
            yield Trace(file, node.lineno, "the bytes of a pickle")
        elif isinstance(node, ast.Call):
            words = {str(word.value) for word in node.args if isinstance(word, ast.Constant)}
            called = ast.unparse(node.func).rpartition(".")[2]
            if called in {"__import__", "import_module"} and words & LOADERS:
                yield Trace(file, node.lineno, f"an import of `{min(words & LOADERS)}`")
            for keyword in node.keywords:
                is_on = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
                is_off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                loads = (keyword.arg == "allow_pickle" and not is_off) or (
                    keyword.arg == "weights_only" and not is_on
                )
                if loads:
                    yield Trace(file, node.lineno, f"a call with `{ast.unparse(keyword)}`")


def _line(tree: ast.Module, module: str) -> int:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and any(a.name.split(".")[0] == module for a in node.names):
            return node.lineno
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == module:
            return node.lineno
    return 1


def _constant_is_pickle(value: object) -> bool:
    """Whether a constant is a pickle: as bytes, or as text in base64 or hexadecimal digits."""
    if isinstance(value, bytes) and len(value) >= _SHORTEST and is_pickle(value):
        return True
    text = value.decode("ascii", "ignore") if isinstance(value, bytes) else value
    if not isinstance(text, str) or len(text) < _SHORTEST or not _ENCODED.fullmatch(text):
        return False
    joined = "".join(text.split())
    for decode in (base64.b64decode, base64.urlsafe_b64decode, bytes.fromhex):
        try:
            if is_pickle(decode(joined)):
                return True
        except (ValueError, binascii.Error):
            continue
    return False
