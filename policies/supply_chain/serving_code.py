"""Finds imports and calls in serving code that may load code from data, as an aid for reviewers.

It finds mistakes, such as a pickle that `model.py` reads; it is no sandbox, because Python has too
many ways to run data. Reviewers of a scoring script are trusted, and a local server is isolated
from its caller (`ml/backends/local/serving/isolation.py`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# Modules of the standard library that serving code may import without a reviewer.
_STANDARD = """
    __future__ abc array base64 binascii bisect calendar collections contextlib contextvars copy csv
    dataclasses datetime decimal difflib enum fractions functools gc gzip hashlib heapq hmac html io
    itertools json logging math numbers operator os pathlib random re secrets statistics string
    struct sys tempfile textwrap threading time traceback types typing typing_extensions unicodedata
    urllib uuid warnings weakref zlib zoneinfo
"""
# Names that load or run code; those of `_BUILTINS` not as attributes (`model.eval()`).
_BUILTINS = re.compile("eval|exec|compile")
_REFUSED = re.compile(
    "__import__|breakpoint|import_module|system|popen|fork|posix_spawnp?|(exec|spawn)[lv]p?e?|"
    "read_pickle|read_hdf|unsafe_load|(Full|Unsafe)?Loader|register_custom_ops_library|builtins|"
    "cloudpickle|ctypes|ctypeslib|dill|importlib|joblib|marshal|multiprocessing|pickle|runpy|"
    "shelve|subprocess"
)
# Arguments of loaders → the values with which they load no code.
_ARGUMENTS = {"allow_pickle": "False", "weights_only": "True", "trusted": "None [] ()"}
_FILES = (".pyc", ".pyd", ".so", ".pkl", ".pickle", ".joblib", ".dill")
# Azure ML's server and its gunicorn take settings from these, which can name code.
_SETTINGS = ("config.json", "logging.json", "gunicorn.conf.py")
# A code folder that contains this folder is a whole repository.
_REPOSITORY = "ml/serving/scoring/"


@dataclass(frozen=True)
class Trace:
    """A place that may load code from data."""

    file: Path
    line: int  # 0 for a whole file
    actual: str


@dataclass(frozen=True)
class Code:
    """The serving code of a deployment."""

    files: Mapping[str, Path]  # path in the code folder → file
    script: str  # path of the scoring script in the code folder
    imports: Collection[str]  # modules that may be imported, from the gate `format`
    root: Path  # of the repository; its listed modules are reviewed by their owners, not read here

    def traces(self) -> Iterator[Trace]:
        """Yield the places that may load code, in the files that the server can import.

        In a full repository these are the files beside the script or at the top, and what they
        import. An imported function may import any module, because only training calls it.
        """
        if self.script not in self.files:
            yield Trace(Path(self.script), 0, "a scoring script that does not travel")
        settings = {folder + setting for folder in self._folders for setting in _SETTINGS}
        for name, file in self.files.items():
            if name.endswith(_FILES):
                yield Trace(file, 0, "compiled code or a pickle, which reviewers cannot read")
            elif name in settings:
                yield Trace(file, 0, "a file from which the server reads what code it runs")
        is_whole = any(name.startswith(_REPOSITORY) for name in self.files)
        folder = self._folders[1] or "/" if is_whole else ""
        tops = [name for name in self.files if name.removesuffix("/__init__.py").count("/") == 0]
        first = {self.script, *tops, *(name for name in self.files if name.startswith(folder))}
        waiting, read = [name for name in first if name.endswith(".py")], set[str]()
        while waiting:
            name = waiting.pop()
            if name in read or name not in self.files or self._is_reviewed(name):
                continue
            read.add(name)
            try:
                tree = ast.parse(self.files[name].read_bytes())
            except (SyntaxError, ValueError, RecursionError) as error:
                line = getattr(error, "lineno", None) or 1
                yield Trace(self.files[name], line, f"code that cannot be read: {error}")
                continue
            functions = [] if name in first else [*ast.walk(tree)]
            functions = [node for node in functions if isinstance(node, ast.FunctionDef)]
            lazy = {inner for function in functions for inner in ast.walk(function)}
            for node in ast.walk(tree):
                modules = _imported(name, node)
                waiting += [path for module in modules for path in self._imported_files(module)]
                problems = _problems(node) + [
                    f"an import of `{module}`"
                    for module in modules
                    if any(map(_REFUSED.fullmatch, module.split(".")))
                    or (node not in lazy and not self._is_listed(module))
                ]
                for problem in problems:
                    yield Trace(self.files[name], getattr(node, "lineno", 1), problem)

    @property
    def _folders(self) -> Sequence[str]:
        """The folders that the server imports from: the code folder and the script's folder."""
        return "", f"{PurePosixPath(self.script).parent}/".removeprefix("./")

    def _is_reviewed(self, name: str) -> bool:
        """Return whether a file is this repository's own and belongs to a listed module."""
        is_here = self.files[name].resolve() == (self.root / name).resolve()
        listed = [module.replace(".", "/") for module in self.imports if "." in module]
        return is_here and name.startswith(tuple(f"{path}{end}" for path in listed for end in "/."))

    def _is_listed(self, module: str) -> bool:
        """Return whether a module is in the code folder, in `imports` or in _STANDARD."""
        listed = (f"{name}." for name in (*self.imports, *_STANDARD.split()))
        return bool(self._imported_files(module)) or f"{module}.".startswith(tuple(listed))

    def _imported_files(self, module: str) -> Sequence[str]:
        """Return the files of the code folder that Python runs when it imports the module."""
        parts = module.split(".")
        paths = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
        names = [top + path for path in paths for top in self._folders]
        both = [name + ending for name in names for ending in ("/__init__.py", ".py")]
        return [name for name in both if name in self.files]


def _imported(name: str, node: ast.AST) -> Sequence[str]:
    """Return the dotted names that a statement of the file `name` imports; [] for other nodes."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    folders = PurePosixPath(name).parent.parts
    start = folders[: len(folders) - node.level + 1] if node.level else ()
    above = ".".join([*start, *filter(None, [node.module])])
    return [f"{above}.{alias.name}" for alias in node.names]


def _problems(node: ast.AST) -> list[str]:
    """Return the forbidden name, attribute or argument in a node, as text; [] if there is none."""
    name, attribute = getattr(node, "id", ""), getattr(node, "attr", "")
    if _BUILTINS.fullmatch(name) or _REFUSED.fullmatch(name or attribute):
        return [f"`{ast.unparse(node)}`"]
    if isinstance(node, ast.keyword) and node.arg in _ARGUMENTS:
        is_safe = ast.unparse(node.value) in _ARGUMENTS[node.arg].split()
        return [] if is_safe else [f"the argument `{ast.unparse(node)}`"]
    return []
