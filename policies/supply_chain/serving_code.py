"""Serving code that could load code from data: an allow-list of what it imports and how it uses it.

Every Python file that travels and can be imported is parsed; nothing is run. A module is the code's
own, of the standard library's harmless part, or in the list of the gate `format`. A library is used
by its dotted name alone, so that its functions cannot be reached by a computed one. For the same
reason a function whose name stands nowhere in what is reached is never called: its body, such as
`save` of a model.py that exports to ONNX, may do what training alone does. Not seen: what
an installed package does inside, what a method of an object does, and files that the server
downloads or writes while it runs. The review of the code sees these.
"""

from __future__ import annotations

import ast
import base64
import binascii
import importlib
import io
import pickletools
import re
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import ModuleType


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Modules of the standard library that run no code that they read. Of some only a part is harmless:
# see `PARTS`.
STANDARD = _words("""
    __future__ abc array base64 binascii bisect calendar collections contextlib contextvars copy csv
    dataclasses datetime decimal difflib enum fractions functools gc gzip hashlib heapq hmac html io
    itertools json logging math numbers operator os pathlib random re secrets statistics string
    struct sys textwrap threading time traceback types typing typing_extensions unicodedata urllib
    uuid warnings weakref zlib zoneinfo
""")
# module → what may be used of it.
PARTS = {
    "azureml_inference_server_http": _words("api"),
    # `make_dataclass` makes a program of the names that it is given.
    "dataclasses": _words("""
        FrozenInstanceError InitVar KW_ONLY MISSING asdict astuple dataclass field
        is_dataclass replace
    """),
    "gc": _words("collect disable freeze"),
    "logging": _words("""
        CRITICAL DEBUG ERROR Filter Formatter Handler INFO Logger LoggerAdapter StreamHandler
        WARNING basicConfig critical debug error exception getLogger info warning
    """),
    "onnxruntime": _words("InferenceSession"),
    "operator": _words("add eq ge gt index itemgetter le lt mul ne neg sub truediv"),
    # Beside it are converters that read pickles.
    "skops": _words("io"),
    "os": _words("""
        PathLike cpu_count environ fspath getenv getpid linesep listdir path sched_getaffinity
        scandir sep stat urandom walk
    """),
    "sys": _words("byteorder float_info maxsize platform stderr stdout version version_info"),
    "torch": _words("""
        Tensor arange argmax as_tensor bfloat16 bool cat clamp concat device double empty exp eye
        finfo flatten float float16 float32 float64 from_numpy full gather get_num_threads half
        inference_mode int int16 int32 int64 isfinite isnan linspace load log log1p long manual_seed
        masked_select matmul max maximum mean min minimum nan_to_num nn no_grad norm ones optim
        permute quantile rand randint randn randperm relu reshape set_num_threads sigmoid softmax
        sqrt squeeze stack std sum tanh tensor topk transpose uint8 unsqueeze where zeros zeros_like
    """),
    "types": _words("MappingProxyType ModuleType NoneType SimpleNamespace"),
    "urllib": _words("parse"),
    "xgboost": _words("Booster DMatrix QuantileDMatrix train"),
    "yaml": _words("YAMLError safe_dump safe_load safe_load_all"),
}
# module → what of it reads pickles (from a cache of downloads), or evaluates texts.
LEFT_OUT = {"pandas": _words("core"), "scipy": _words("datasets"), "sklearn": _words("datasets")}
# Names that run text, unpickle, lead to the modules that do, or find something by a computed name.
REFUSED = _words("""
    ForwardRef __import__ breakpoint eval exec get_type_hints globals locals vars
    HDFStore NpzFile PyExtensionType deserialize from_custom_template load_inline load_library
    load_pickle query read_array read_hdf read_pickle read_serialized register_custom_ops_library
    rundocs runstring unpickle unsafe_load
    builtins cPickle cloudpickle codeop ctypeslib dill distutils f2py imp importlib joblib
    jsonpickle marshal multiprocessing pickle pickle_compat pkgutil posix pydoc runpy shelve
    subprocess testing jinja2 zipimport
    attrgetter evaluate_forward_ref get_annotations get_field getattr_static getmembers
    getmembers_static import_module import_optional_dependency methodcaller singledispatch
    singledispatchmethod update_wrapper
    Styler compile_expression from_string get_template select_template template_class
    cr_code f_builtins f_code f_globals f_locals gi_code
""")
# A library's own imports: `pathlib.os` is all of os. And `re.compile` is not the builtin function.
# `style` of a frame leads to its templates, which are programs; `help` imports what it is told.
_ATTRIBUTES = REFUSED | _words("ctypes os style sys")
_NAMES = REFUSED | _words("compile help")
# The attributes between two underscores that serving code may name.
_SPECIAL = re.compile(
    r"__(?!(all|call|class|doc|file|init|len|name|new|post_init|qualname|setattr|slots|version)__$)"
    r"\w+__"
)
# Arguments that decide whether a loader runs code → their harmless values.
_ARGUMENTS: Mapping[str, tuple[object, ...]] = {
    "allow_pickle": (False,),
    # A folder of pickles, which joblib reads.
    "memory": (None,),
    "trusted": (None, [], ()),
    "weights_only": (True,),
}
# Variables that serving code may set: of threads, and of its own.
_SETTABLE = re.compile(r"[A-Z]+_NUM_THREADS|TOKENIZERS_PARALLELISM|SCORE_\w+", re.ASCII)
_READS = _words("copy get items keys values")
# Methods of pandas that call another by its name, and their arguments that are not handed to it.
_EXCEPTIONS = _words("Exception RuntimeError ValueError")
_BY_NAME = _words("agg aggregate apply transform")
_OWN_ARGUMENTS = _words("axis by_row engine engine_kwargs include_groups raw result_type")
_COMPILED = (".pyc", ".pyd", ".so")
# The folder by which a code folder is known to be a whole repository.
_REPOSITORY = "ml/serving/scoring/"
# What Azure ML's server and its gunicorn read by themselves at the top or beside the script:
# settings that can name another script, a logging configuration whose factories are called,
# whatever they are, and environment variables (`raw_env`).
_SETTINGS = ("config.json", "logging.json", "gunicorn.conf.py")
# What a pickle needs to call something.
_CALLS = frozenset(
    {"GLOBAL", "STACK_GLOBAL", "INST", "REDUCE", "OBJ", "NEWOBJ", "NEWOBJ_EX", "BUILD"}
)
_SHORTEST = 16
_LARGEST = 50_000_000
_ENCODED = re.compile(r"[A-Za-z0-9+/_=\s-]+")


@dataclass(frozen=True)
class Trace:
    """What may load code from data: the file, the line (0 for a file that is no code), and what."""

    file: Path
    line: int
    found: str


@dataclass(frozen=True)
class Code:
    """The files that travel, by their path in the code folder, and the scoring script among them.

    `imports` are the modules that may be imported, from the list of the gate `format`. The owners
    of those that lie in this repository, at `root`, review them; they are not read here.
    """

    files: Mapping[str, Path]
    script: str
    imports: Collection[str]
    root: Path

    def traces(self) -> Iterator[Trace]:
        """What may load code from data, in each file that the server can import and beside it."""
        if self.script not in self.files:
            yield Trace(Path(self.script), 0, "a scoring script that does not travel")
        modules = self._modules()
        for name, module in modules.items():
            if module is None:
                yield Trace(self.files[name], 1, "code that cannot be read")
            else:
                for line, found in sorted(set(module.refused(modules))):
                    yield Trace(self.files[name], line, found)
        folders = {PurePosixPath(name).parent for name in modules}
        for name, file in self.files.items():
            if name in [folder + setting for folder in ("", self._beside) for setting in _SETTINGS]:
                yield Trace(file, 0, "a file from which the server reads what code it runs")
            elif name.endswith(_COMPILED):
                yield Trace(file, 0, "compiled code, which is not read here")
            elif (
                PurePosixPath(name).parent in folders
                and not name.endswith(".py")
                and holds_pickle(file)
            ):
                yield Trace(file, 0, "the bytes of a pickle")

    def find(self, module: str) -> str:
        """The file of the code folder that Python imports for a module; "" for one of elsewhere."""
        for start in dict.fromkeys(("", self._beside)):
            path = start + module.replace(".", "/")
            for name in (f"{path}/__init__.py", f"{path}.py"):
                if name in self.files:
                    return name
        return ""

    def has(self, module: str) -> bool:
        """Whether the code folder has the module, or the module that has this name in it.

        A folder without `__init__.py` yields to an installed package of its name.
        """
        parts = module.split(".")
        if self.is_listed(parts[0]):
            return bool(self.find(parts[0]))
        return any(self.find(".".join(parts[: end + 1])) for end in range(len(parts)))

    def is_listed(self, module: str) -> bool:
        """Whether a module that the code folder does not have may be imported."""
        if module.partition(".")[0] in STANDARD:
            return True
        return any(f"{module}.".startswith(f"{name}.") for name in self.imports)

    @property
    def _beside(self) -> str:
        """The folder of the scoring script, which the server imports from as well."""
        above = PurePosixPath(self.script).parent
        return "" if above == PurePosixPath() else f"{above}/"

    def _modules(self) -> dict[str, _Module | None]:
        """Every file that can be imported, parsed; None where that fails.

        Of a whole repository these are the files beside the script, whatever a library could import
        by its name alone, and what all of these import. Of what is imported alone, functions that
        nothing names are left out: their names are looked for until there are no more.
        """
        below = self._beside if any(name.startswith(_REPOSITORY) for name in self.files) else ""
        first = [self.script]
        for name in self.files:
            is_top = name.removesuffix("/__init__.py").removesuffix(".py").count("/") == 0
            if name.endswith(".py") and (name.startswith(below) or is_top):
                first.append(name)
        trees: dict[str, ast.Module | None] = {}
        named = {"init", "run"}  # which the server calls
        while True:
            modules = self._imported(first, named, trees)
            more = {word for module in modules.values() if module for word in module.words()}
            if more <= named:
                return modules
            named |= more

    def _imported(
        self, first: Collection[str], named: Collection[str], trees: dict[str, ast.Module | None]
    ) -> dict[str, _Module | None]:
        """The `first` files and what they import, without functions that are not `named` in those
        that are imported alone; `trees` keeps what was parsed.
        """
        waiting = [*first]
        modules: dict[str, _Module | None] = {}
        while waiting:
            name = waiting.pop()
            if name in modules or name not in self.files or self._is_reviewed(name):
                continue
            if name not in trees:
                try:
                    trees[name] = ast.parse(self.files[name].read_bytes())
                except (SyntaxError, ValueError, RecursionError):
                    trees[name] = None
            if (tree := trees[name]) is None:
                modules[name] = None
                continue
            module = _Module(self, name, tree, None if name in first else named)
            modules[name] = module
            for _, imported in module.imports():
                parts = imported.split(".")
                paths = (self.find(".".join(parts[: end + 1])) for end in range(len(parts)))
                waiting += filter(None, paths)
        return modules

    def _is_reviewed(self, name: str) -> bool:
        """Whether a file is this repository's own, of a module in the list."""
        dotted = name.removesuffix(".py").replace("/", ".")
        if self.files[name].resolve() != (self.root / name).resolve():
            return False
        return any(
            f"{dotted}.".startswith(f"{listed}.") for listed in self.imports if "." in listed
        )


class _Module:
    """A Python file of the code folder, of whose functions the bodies of those that are `named` are
    read; None for all of them.
    """

    def __init__(
        self, code: Code, name: str, tree: ast.Module, named: Collection[str] | None
    ) -> None:
        self._code, self._name = code, name
        self._nodes = list(ast.walk(tree) if named is None else _reached(tree, named))
        # What the file calls something that it imports → its dotted name.
        self.names: dict[str, str] = {}
        # The names of modules, and those that stand for two things.
        self._bound, self._twice = set[str](), set[str]()
        # The functions of the module: their bodies are read.
        self.functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        self._classes = {node.name for node in self._nodes if isinstance(node, ast.ClassDef)}
        self._stored = {
            node.id
            for node in self._nodes
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
        }
        self._above_of = {
            id(inner): node for node in self._nodes for inner in ast.iter_child_nodes(node)
        }
        for node in self._nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                for alias in node.names:
                    self._name_import(node, alias)

    def _name_import(self, node: ast.Import | ast.ImportFrom, alias: ast.alias) -> None:
        dotted = alias.name
        if isinstance(node, ast.ImportFrom):
            dotted = f"{self._above(node)}.{alias.name}"
        elif not alias.asname:
            dotted = alias.name.partition(".")[0]
        name = alias.asname or dotted.rpartition(".")[2]
        if self.names.setdefault(name, dotted) != dotted:
            self._twice.add(name)
        if isinstance(node, ast.Import) or self._code.find(dotted):
            self._bound.add(name)

    def words(self) -> Iterator[str]:
        """Every word by which a function could be called: names, attributes, imports, and texts
        that are names.
        """
        for node in self._nodes:
            if isinstance(node, ast.Name):
                yield node.id
            elif isinstance(node, ast.Attribute):
                yield node.attr
            elif isinstance(node, ast.alias):
                yield from node.name.split(".")
            elif isinstance(node, ast.MatchClass):
                yield from node.kwd_attrs
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value.rpartition(".")[2]

    def imports(self) -> Iterator[tuple[int, str]]:
        """The line and the dotted name of everything that is imported."""
        for node in self._nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield node.lineno, alias.name
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    yield node.lineno, f"{self._above(node)}.{alias.name}"

    def refused(self, modules: Mapping[str, _Module | None]) -> Iterator[tuple[int, str]]:
        """The line of everything that serving code may not do, and what it is."""
        for line, name in self.imports():
            if not self._code.has(name):
                yield from ((line, found) for found in self._of_import(name))
        bases = {id(node.value) for node in self._nodes if isinstance(node, ast.Attribute)}
        called = {id(node.func): node for node in self._nodes if isinstance(node, ast.Call)}
        for node in self._nodes:
            if isinstance(node, ast.Constant) and _constant_is_pickle(node.value):
                yield node.lineno, "the bytes of a pickle"
            elif isinstance(node, ast.Name):
                if node.id in self._twice:
                    yield node.lineno, f"`{node.id}`, which is imported as two things"
                elif node.id in _NAMES or _SPECIAL.fullmatch(node.id):
                    yield node.lineno, f"`{node.id}`"
                elif node.id in ("delattr", "getattr", "setattr") and not _is_plain(
                    called.get(id(node))
                ):
                    yield node.lineno, f"`{node.id}` of a computed name"
                elif node.id in self._bound and id(node) not in bases:
                    yield node.lineno, f"the module `{node.id}` under another name"
            elif isinstance(node, ast.MatchClass):
                for name in filter(_is_refused, node.kwd_attrs):
                    yield node.lineno, f"`{name}`"
            elif isinstance(node, ast.Attribute) and (
                _is_refused(node.attr)
                or (node.attr in _ARGUMENTS and isinstance(node.ctx, ast.Store))
                or (node.attr == "__setattr__" and not _sets_plain(called.get(id(node))))
            ):
                yield node.lineno, f"`{ast.unparse(node)}`"
            elif isinstance(node, ast.Call):
                for keyword in node.keywords:
                    if not _is_harmless(keyword):
                        yield node.lineno, f"a call with `{ast.unparse(keyword)}`"
                if self._calls_by_name(node):
                    yield node.lineno, f"`{ast.unparse(node.func)}` of a computed name"
            elif isinstance(node, ast.ClassDef) and node.keywords:
                yield node.lineno, f"the class `{node.name}` with `{ast.unparse(node.keywords[0])}`"
            if isinstance(node, ast.Attribute | ast.Name):
                dotted = self._dotted(node, modules)
                if dotted == "os.environ" and not self._only_reads(node):
                    yield node.lineno, "a change of `os.environ`, by which libraries load code"
                elif dotted.startswith("dataclasses.") and not self._is_of_class(node, dotted):
                    yield node.lineno, f"`{ast.unparse(node)}` other than in a class of the code"
                if id(node) in bases or self._is_read(dotted, modules):
                    continue
                if problem := self._of_use(dotted, called.get(id(node))):
                    yield node.lineno, f"`{ast.unparse(node)}`{problem}"

    def _only_reads(self, environ: ast.expr) -> bool:
        """Whether a use of os.environ sets nothing, or a variable that may be set."""
        use = self._above_of.get(id(environ))
        if isinstance(use, ast.Compare):
            return True
        if isinstance(use, ast.Subscript):
            return isinstance(use.ctx, ast.Load) or _is_settable(use.slice)
        if not isinstance(use, ast.Attribute):
            return False
        call = self._above_of.get(id(use))
        return use.attr in _READS or (
            use.attr == "setdefault" and isinstance(call, ast.Call) and _is_settable(*call.args[:1])
        )

    def _is_of_class(self, node: ast.expr, dotted: str) -> bool:
        """Whether a dataclass's fields are those of the text: they become a program's text."""
        use = self._above_of.get(id(node))
        if isinstance(use, ast.Call) and use.func is node:
            use = self._above_of.get(id(use))
        if dotted == "dataclasses.field":
            of = self._above_of.get(id(use))
            return isinstance(use, ast.AnnAssign | ast.Assign) and isinstance(of, ast.ClassDef)
        if dotted != "dataclasses.dataclass":
            return True
        return isinstance(use, ast.ClassDef) and all(map(self._is_class, use.bases))

    def _is_class(self, base: ast.expr) -> bool:
        """Whether a base is a class of the text, or an imported one."""
        while isinstance(base, ast.Attribute | ast.Subscript):
            base = base.value
        if not isinstance(base, ast.Name) or base.id in self._stored:
            return False
        return base.id in self._classes or base.id in self.names or base.id in _EXCEPTIONS

    def _calls_by_name(self, call: ast.Call) -> bool:
        """Whether pandas may be told the name of a method, and what to hand to it."""
        if not (isinstance(call.func, ast.Attribute) and call.func.attr in _BY_NAME):
            return False
        first, *others = [*call.args, *(each.value for each in call.keywords if each.arg == "func")]
        others += [each.value for each in call.keywords if each.arg not in _OWN_ARGUMENTS]
        if isinstance(first, ast.Constant):
            return not isinstance(first.value, str) or _is_refused(first.value)
        known = isinstance(first, ast.Lambda) or (
            isinstance(first, ast.Name) and first.id in self.functions - self._stored
        )
        return bool(others) and not known

    def _above(self, node: ast.ImportFrom) -> str:
        """The dotted name of the module that something is imported from."""
        folders = PurePosixPath(self._name).parent.parts
        start = folders[: len(folders) - node.level + 1] if node.level else ()
        return ".".join([*start, *filter(None, [node.module])])

    def _of_import(self, name: str) -> Iterator[str]:
        """Why a name that is not of the code folder may not be imported."""
        _, *inner = name.split(".")
        if (
            not self._code.is_listed(name)
            or any(part == "*" or _is_refused(part) for part in inner)
            or _is_left_out(name)
        ):
            yield f"an import of `{name}`"

    def _dotted(self, node: ast.expr, modules: Mapping[str, _Module | None]) -> str:
        """The dotted name, through the code folder's own modules; "" for what is no name."""
        if isinstance(node, ast.Name):
            dotted = self.names.get(node.id, node.id)
        elif isinstance(node, ast.Attribute):
            dotted = f"{self._dotted(node.value, modules)}.{node.attr}"
        else:
            return ""
        for _ in modules:  # a name may be handed on by one module after another
            parts = dotted.split(".")
            for end in range(len(parts) - 1, 0, -1):
                module = modules.get(self._code.find(".".join(parts[:end])))
                if module and parts[end] in module.names:
                    dotted = ".".join([module.names[parts[end]], *parts[end + 1 :]])
                    break
            else:
                break
        return dotted

    def _is_read(self, dotted: str, modules: Mapping[str, _Module | None]) -> bool:
        """Whether it is a function of a module that is read too."""
        above, _, name = dotted.rpartition(".")
        module = modules.get(self._code.find(above)) if above else None
        return module is not None and name in module.functions

    def _of_use(self, dotted: str, call: ast.Call | None) -> str:
        """Why something may not be used in this way, or ""; `call` is what calls it."""
        top, _, rest = dotted.partition(".")
        if not rest:
            return ""
        if self._code.is_listed(dotted) and not self._code.has(dotted) and _is_left_out(dotted):
            parts = (
                f"only {', '.join(sorted(PARTS[top]))}"
                if top in PARTS
                else "no private part and no other module"
            )
            return f": of `{top}` {parts}"
        names = [keyword.arg for keyword in call.keywords] if call else []
        if dotted == "functools.wraps" and (call is None or len(call.args) != 1 or names):
            return " with a list of names"
        if top == "sklearn" and None in names:
            return " with arguments that are not named"
        if dotted.rpartition(".")[2] != "load" and not (top == "skops" and rest.endswith("loads")):
            return ""
        # Whatever has this method: in another place the name may stand for a library.
        if call is None:
            return " under another name"
        arguments = {keyword.arg for keyword in call.keywords}
        # Of numpy.load the second one is the mode of the memory map.
        first, *others = [*call.args, None]
        named = all(each is None or isinstance(each, ast.Constant) for each in others)
        if None in arguments or len(others) > 2 or not named or isinstance(first, ast.Starred):
            return " with arguments that are not named"
        if top == "torch" and "weights_only" not in arguments:
            return " without `weights_only=True`"
        return ""


def _reached(tree: ast.Module, named: Collection[str]) -> Iterator[ast.AST]:
    """Every node but the bodies of the module's functions that nothing names.

    Python itself calls those between two underscores, and a decorator what it is given.
    """
    for statement in tree.body:
        if (
            not isinstance(statement, ast.FunctionDef)
            or statement.decorator_list
            or statement.name in named
            or statement.name.startswith("__")
        ):
            yield from ast.walk(statement)
        else:
            for part in filter(None, (statement.args, statement.returns)):
                yield from ast.walk(part)


def _is_refused(name: str) -> bool:
    return bool({name, name.lstrip("_")} & _ATTRIBUTES) or bool(_SPECIAL.fullmatch(name))


def _is_left_out(dotted: str) -> bool:
    """Whether it is a part of a library that may not be used."""
    top, *inner = dotted.split(".")
    is_other = bool(inner) and (
        inner[0] not in PARTS[top] if top in PARTS else inner[0] in LEFT_OUT.get(top, ())
    )
    return (
        is_other or any(part.startswith("_") for part in inner) or _leads_elsewhere([top, *inner])
    )


def _leads_elsewhere(parts: Sequence[str]) -> bool:
    """Whether a name goes through what a library imports itself: `enum.bltns` is `builtins`.

    The standard library's modules are looked at, which are the server's. Of another library, one of
    which only a part may be used counts below the second place: `safetensors.torch` is its own.
    """
    top, *inner = parts
    if top not in STANDARD:
        imported = [part for at, part in enumerate(inner) if at > 0 or part == top]
        return bool({*imported} & (PARTS.keys() - STANDARD))
    try:
        of: object = importlib.import_module(top)
    except ImportError:
        return False
    name = top
    for part in inner:
        of, name = getattr(of, part, None), f"{name}.{part}"
        if not isinstance(of, ModuleType):
            return False
        if of.__name__ != name and part not in PARTS.get(top, ()):
            return True
        name = of.__name__
    return False


def _is_plain(call: ast.Call | None) -> bool:
    """Whether a call of `getattr` names the attribute, and one that may be used."""
    return call is not None and len(call.args) > 1 and _is_name(call.args[1])


def _sets_plain(call: ast.Call | None) -> bool:
    """The same of a call of `object.__setattr__`, or of that of a class above."""
    return call is not None and any(map(_is_name, call.args[:2]))


def _is_name(node: ast.expr) -> bool:
    name = node.value if isinstance(node, ast.Constant) else None
    return isinstance(name, str) and name not in ("load", *_ARGUMENTS) and not _is_refused(name)


def _is_settable(name: ast.expr | None = None) -> bool:
    """Whether it is the name of a variable of the environment that serving code may set."""
    text = name.value if isinstance(name, ast.Constant) else None
    return isinstance(text, str) and bool(_SETTABLE.fullmatch(text))


def _is_harmless(keyword: ast.keyword) -> bool:
    """Whether an argument does not make a loader run code."""
    harmless = _ARGUMENTS.get(keyword.arg or "")
    try:
        return harmless is None or ast.literal_eval(keyword.value) in harmless
    except ValueError:
        return False


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
