"""What a change touches: a table of changed files, in a small repository with the same folders."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from ml.core.errors import UserError
from ml.repository.affected.projects import (
    Affected,
    _affected,
    affected,
    as_text,
    is_document,
    main,
    of_pull_request,
)
from ml.repository.affected.stacks import stacks
from ml.repository.github.pull_requests.promotions import NEEDED, projects
from ml.repository.github.releases import environments
from tests.conftest import ROOT

JOB = "type: command\ncode: ../../../..\ncommand: python -m ml.projects.{0}.train\n"
FILES = {
    "README.md": "words",
    "Makefile": "all:\n",
    "pyproject.toml": "",
    ".amlignore": "*\n",
    ".gitignore": "ignored/\n",
    "shared/corpus/rows.tsv": "1",
    "ml/projects/two/corpus.yml": "type: uri_folder\nname: corpus\n"
    "version: '1'\npath: ../../../shared/corpus\n",
    "shared/steps/score.yml": "type: command\nname: score\ncode: .\ncommand: python score.py\n",
    "shared/steps/score.py": "print(1)\n",
    "shared/clean.yml": "type: command\nname: clean\ncommand: echo\n",
    "shared/two words/rows, all.tsv": "1",
    "shared/table/MLTable": "type: mltable\npaths:\n  - pattern: ../parts/*.tsv\n",
    "shared/parts/a.tsv": "1",
    "unused/notes.txt": "1",
    "requirements/main.lock": "",
    "requirements/framework.lock": "",
    "wheels/a.whl": "",
    "requirements/infra.lock": "",
    "requirements/dev.lock": "",
    "infra/Pulumi.yaml": "name: platform",
    "infra/Pulumi.dev.yaml": "config: {}",
    "infra/Pulumi.prod.yaml": "config: {}",
    "infra/README.md": "words",
    "infra/__main__.py": "from infra.program import network\n",
    "infra/program/network.py": "from ml.core import errors\n",
    "infra/cost/prices.json": "{}",
    "infra/cost/estimate.py": "",
    "infra/live/drift.py": "",
    "policies/waivers.py": "",
    "policies/infra/__main__.py": "",
    "policies/infra/limits.yml": "{}",
    "policies/promotion/engine.py": "from policies.waivers import read\n",
    "policies/promotion/gates.yml": "{}",
    "policies/supply_chain/formats.py": "",
    "ml/core/errors.py": "",
    "ml/core/files.py": "from . import errors\n",
    "ml/cli/app.py": "COMMANDS = {'run': 'ml.cli.run:run'}\n",
    "ml/cli/run.py": "from ml.core.files import replace\n",
    "ml/toolkit/metrics.py": "from ml.toolkit import tables\n",
    "ml/toolkit/tables.py": "",
    "ml/toolkit/words.txt": "the",
    "ml/toolkit/rank/__init__.py": "",
    "ml/toolkit/rank/__main__.py": "from ml.toolkit.rank import order\n",
    "ml/toolkit/rank/order.py": "",
    "ml/toolkit/split.py": "",
    "ml/toolkit/marked.py": "\ufefffrom ml.toolkit import names\n",
    "ml/toolkit/names.py": "",
    "ml/features/joins.py": "",
    "ml/serving/scoring/model.py": "",
    "ml/serving/server.py": "find('ml.serving.scoring.model')\n",
    "ml/environments/cpu/environment.yml": "name: ml-cpu\nversion: '1'\nconda_file: conda.yml\n",
    "ml/environments/cpu/conda.yml": "name: x\n",
    "ml/environments/gpu/environment.yml": "name: ml-gpu\nversion: '1'\n",
    "ml/projects/README.md": "words",
    "ml/projects/__init__.py": "",
    # one: metrics of the toolkit (Python reads that letter as m), data of another folder, the
    # environment cpu, no scoring
    "ml/projects/one/train.py": "from ml.toolkit.\uff4detrics import auc\n",
    "ml/projects/one/README.md": "words",
    "ml/projects/one/prompt.md": "what a model is told",
    "ml/projects/one/gates.yml": "{}",
    "ml/projects/one/data/faq/notes.md": "data, not a document",
    "ml/projects/one/corpus/page.md": "what a model may learn from",
    "ml/projects/one/jobs/train.yml": JOB.format("one")
    + "environment: azureml:ml-cpu:1\ninputs:\n  rows: {path: 'azureml:corpus:1'}\n",
    # two: scoring, features, a component of another folder, a path to another folder
    "ml/projects/two/train.py": "import ml.features.joins\nfrom ml.serving.scoring import model\n",
    "ml/projects/two/jobs/train.yml": JOB.format("two") + "environment: azureml:ml-gpu@latest\n",
    "ml/projects/two/jobs/score.yml": "type: pipeline\njobs:\n  a:\n    component: "
    "../../../../shared/steps/score.yml\n",
    # three: a package and a file of the toolkit that its job runs, a table of files elsewhere, a
    # path of several words, a component as a file, a module that begins with a byte order mark
    "ml/projects/three/train.py": "from ml.toolkit import marked\n",
    "ml/projects/three/jobs/rank.yml": "type: command\ncode: ../../../..\n"
    "# as ml/features/joins.py does\n"
    "command: python -m ml.toolkit.rank && python ./ml/toolkit/split.py\n"
    "inputs:\n  a: {type: mltable, path: ../../../../shared/table}\n"
    "  b:\n    path: ../../../../shared/two words/rows, all.tsv # both\n",
    "ml/projects/three/jobs/clean.yml": "type: pipeline\njobs:\n  a:\n    component: "
    "file:../../../../shared/clean.yml\n",
    "tests/test_architecture.py": "",
    "tests/projects/test_every_project.py": "",
    "tests/projects/one/test_it.py": "",
    "tests/policies/test_engine.py": "",
    "tests/github/test_rules.py": "",
    "benchmarks/one.py": "",
    ".github/workflows/check.yml": "on: push",
    ".github/CODEOWNERS": "",
}
ALL = ("one", "three", "two")
STACKS = ("dev", "prod")
ONE = ("tests/projects/one", "tests/projects/test_every_project.py")


@dataclass(frozen=True)
class Case:
    """Changed files (None: removed) and what they touch."""

    files: Mapping[str, str | None]
    documents: bool = False
    framework: bool = False
    projects: tuple[str, ...] = ()
    stacks: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    source_packages: tuple[str, ...] = ()
    tests: tuple[str, ...] = field(default=())


def edit(*files: str) -> dict[str, str]:
    return {file: FILES.get(file, "") + "\n# edited" for file in files}


def framework(*files: str, **more: tuple[str, ...]) -> Case:
    return Case(edit(*files), framework=True, tests=("tests",), **more)


CASES = {
    "nothing": Case({}),
    "documents": Case(edit("README.md", "infra/README.md", "ml/projects/one/README.md"), True),
    "a picture of a page": Case({"docs/images/demo.svg": "<svg/>"}, True),
    "a new document": Case({"docs/new page.md": "words"}, True),
    "a removed document": Case({"README.md": None}, True),
    "text that is data": Case(
        edit("ml/projects/one/data/faq/notes.md"), projects=("one",), tests=ONE
    ),
    "data of any folder": Case(
        edit("ml/projects/one/corpus/page.md"), projects=("one",), tests=ONE
    ),
    "a prompt beside the code": Case(
        edit("ml/projects/one/prompt.md"), projects=("one",), tests=ONE
    ),
    "a document and code": Case(
        edit("README.md", "ml/projects/one/train.py"), projects=("one",), tests=ONE
    ),
    "a project's code": Case(edit("ml/projects/one/train.py"), projects=("one",), tests=ONE),
    "a project's gates": Case(edit("ml/projects/one/gates.yml"), projects=("one",), tests=ONE),
    "a project without tests": Case(
        edit("ml/projects/two/train.py"),
        projects=("two",),
        tests=("tests/projects/test_every_project.py",),
    ),
    "a new project": Case(
        {"ml/projects/new/train.py": ""},
        projects=("new",),
        tests=("tests/projects/test_every_project.py",),
    ),
    "a removed project, with data of another": Case(
        {file: None for file in FILES if file.startswith("ml/projects/two/")},
        projects=("one",),
        tests=ONE,
    ),
    "a file renamed between projects": Case(
        {"ml/projects/one/train.py": None, "ml/projects/two/learn.py": "x = 1"},
        projects=("one", "two"),
        tests=ONE,
    ),
    "a project's tests": Case(edit("tests/projects/one/test_it.py"), tests=("tests/projects/one",)),
    "tests of every project": Case(
        edit("tests/projects/test_every_project.py"), tests=("tests/projects",)
    ),
    "what all projects are": Case(edit("ml/projects/__init__.py"), projects=ALL, tests=ONE),
    "data of another folder, by its asset": Case(
        edit("shared/corpus/rows.tsv"), projects=("one", "two"), tests=ONE
    ),
    "the spec of such data": Case(
        edit("ml/projects/two/corpus.yml"), projects=("one", "two"), tests=ONE
    ),
    "the spec of such data removed": Case(
        {"ml/projects/two/corpus.yml": None}, projects=("one", "two"), tests=ONE
    ),
    "the spec of such data renamed": Case(
        {
            "ml/projects/two/corpus.yml": "type: uri_folder\nname: other\n"
            "version: '1'\npath: ../../../shared/corpus\n"
        },
        projects=("one", "two"),
        tests=ONE,
    ),
    "a component of another folder": Case(
        edit("shared/steps/score.yml"),
        projects=("two",),
        tests=("tests/projects/test_every_project.py",),
    ),
    "the code of that component": Case(
        edit("shared/steps/score.py"),
        projects=("two",),
        tests=("tests/projects/test_every_project.py",),
    ),
    "an environment": Case(
        edit("ml/environments/cpu/environment.yml"),
        projects=("one",),
        environments=("cpu",),
        tests=ONE,
    ),
    "the packages of an environment": Case(
        edit("ml/environments/cpu/conda.yml"), projects=("one",), environments=("cpu",), tests=ONE
    ),
    "a new environment that nobody uses": Case(
        {"ml/environments/new/environment.yml": "name: new\n"}, environments=("new",)
    ),
    "what is sent to a node": Case(edit(".amlignore"), projects=ALL, tests=ONE),
    "what git ignores": Case(edit(".gitignore")),
    "ignored files": Case({"ignored/x.py": "1"}),
    "the toolkit, imported by a project": framework(
        "ml/toolkit/metrics.py", projects=("one",), source_packages=("ml/toolkit",)
    ),
    "the toolkit, imported by what a project imports": framework(
        "ml/toolkit/tables.py", projects=("one",), source_packages=("ml/toolkit",)
    ),
    "a module of the toolkit removed": Case(
        {"ml/toolkit/tables.py": None},
        framework=True,
        projects=("one",),
        source_packages=("ml/toolkit",),
        tests=("tests",),
    ),
    "a file beside the modules of the toolkit": framework(
        "ml/toolkit/words.txt", projects=("one", "three"), source_packages=("ml/toolkit",)
    ),
    "a package that a spec runs": framework(
        "ml/toolkit/rank/__main__.py", projects=("three",), source_packages=("ml/toolkit",)
    ),
    "what a package that a spec runs imports": framework(
        "ml/toolkit/rank/order.py", projects=("three",), source_packages=("ml/toolkit",)
    ),
    "a program in the code of a spec": framework(
        "ml/toolkit/split.py", projects=("three",), source_packages=("ml/toolkit",)
    ),
    "what a module with a byte order mark imports": framework(
        "ml/toolkit/names.py", projects=("three",), source_packages=("ml/toolkit",)
    ),
    "a path of several words": Case(
        {"shared/two words/rows, all.tsv": "2"},
        projects=("three",),
        tests=("tests/projects/test_every_project.py",),
    ),
    "a file of a pattern of a table": Case(
        edit("shared/parts/a.tsv"),
        projects=("three",),
        tests=("tests/projects/test_every_project.py",),
    ),
    "a component as a file": Case(
        edit("shared/clean.yml"),
        projects=("three",),
        tests=("tests/projects/test_every_project.py",),
    ),
    "features": framework(
        "ml/features/joins.py", projects=("two",), source_packages=("ml/features",)
    ),
    "scoring, which the server imports by name": framework(
        "ml/serving/scoring/model.py", projects=("two",), source_packages=("ml/serving",)
    ),
    "the server, which no project imports": framework(
        "ml/serving/server.py", source_packages=("ml/serving",)
    ),
    "the core, down to the program of the stacks": framework(
        "ml/core/errors.py",
        stacks=STACKS,
        source_packages=("infra", "infra/program", "ml/cli", "ml/core"),
    ),
    "a command that is imported by its name": framework(
        "ml/cli/run.py", source_packages=("ml/cli",)
    ),
    "one stack": Case(edit("infra/Pulumi.dev.yaml"), stacks=("dev",)),
    "a new stack": Case({"infra/Pulumi.test.yaml": "config: {}"}, stacks=("test",)),
    "a removed stack": Case({"infra/Pulumi.prod.yaml": None}, stacks=("prod",)),
    "what all stacks share": Case(edit("infra/Pulumi.yaml"), stacks=STACKS),
    "the program of the stacks": framework(
        "infra/program/network.py", stacks=STACKS, source_packages=("infra", "infra/program")
    ),
    "prices": framework("infra/cost/prices.json", stacks=STACKS, source_packages=("infra/cost",)),
    "what asks Azure": framework("infra/live/drift.py", source_packages=("infra/live",)),
    "limits of the stacks": Case(
        edit("policies/infra/limits.yml"),
        stacks=STACKS,
        policies=("infra",),
        tests=("tests/policies",),
    ),
    "a plug-in": framework(
        "policies/own/log_cap.py",
        stacks=STACKS,
        policies=("own",),
        source_packages=("policies/own",),
    ),
    "the organisation policy": Case(
        edit("policies/promotion/gates.yml"),
        policies=("promotion",),
        tests=("tests/policies",),
    ),
    "a policy": framework(
        "policies/supply_chain/formats.py",
        policies=("supply_chain",),
        source_packages=("policies/supply_chain",),
    ),
    "what a policy imports": framework(
        "policies/waivers.py",
        policies=("promotion",),
        source_packages=("policies", "policies/promotion"),
    ),
    "the lock": framework("requirements/main.lock", projects=ALL, stacks=STACKS),
    "the packages that are asked for": framework("pyproject.toml", stacks=STACKS),
    "the wheel": framework("requirements/framework.lock", "wheels/a.whl", stacks=STACKS),
    "the wheel, and what a node imports": framework(
        *("requirements/framework.lock", "wheels/a.whl", "ml/serving/scoring/model.py"),
        projects=("two",),
        stacks=STACKS,
        source_packages=("ml/serving",),
    ),
    "the wheel, and an environment": framework(
        *("requirements/framework.lock", "ml/environments/cpu/conda.yml"),
        projects=("one",),
        stacks=STACKS,
        environments=("cpu",),
    ),
    "the lock of infra": framework("requirements/infra.lock", stacks=STACKS),
    "the lock of the tools": framework("requirements/dev.lock"),
    "the Makefile": framework("Makefile"),
    "tests of the framework": framework("tests/test_architecture.py"),
    "a benchmark": framework("benchmarks/one.py"),
    "a file that nobody knows": framework("unused/notes.txt"),
    "a workflow": Case(edit(".github/workflows/check.yml"), tests=("tests/github",)),
    "owners": Case(edit(".github/CODEOWNERS"), tests=("tests/github",)),
    "a spec that is no YAML": Case(
        {"ml/projects/one/jobs/train.yml": "{["}, projects=("one",), tests=ONE
    ),
    "a spec with a long run of blanks": Case(
        {"ml/projects/one/jobs/train.yml": f"command: a{' ' * 1_000_000}b\n"},
        projects=("one",),
        tests=ONE,
    ),
    "a module that is no Python": Case(
        {"ml/projects/one/train.py": "def ("}, projects=("one",), tests=ONE
    ),
}


def git(folder: Path, *words: str) -> str:
    names = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *names, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("origin")
    write(folder, FILES)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "the template")
    return folder


@pytest.fixture
def repository(origin: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(origin, tmp_path / "copy"))


def write(folder: Path, files: Mapping[str, str | None]) -> None:
    for name, text in files.items():
        path = folder / name
        if text is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize("name", CASES)
def test_what_a_change_touches(name: str, repository: Path) -> None:
    case = CASES[name]
    write(repository, case.files)
    result = affected(repository, "HEAD")
    expected = Affected(
        result.base,
        0 if name == "ignored files" else len(case.files),
        case.documents,
        case.framework,
        case.projects,
        case.stacks,
        case.policies,
        case.environments,
        case.source_packages,
        case.tests,
        result.extras,
        result.causes,
        result.self_affecting_files,
    )
    assert result == expected
    assert {*result.causes.values(), *result.self_affecting_files} <= {*case.files}


@pytest.mark.attack("A pull request brings what its own files would be read by")
def test_the_tree_that_a_change_is_merged_into_says_no_less(origin: Path) -> None:
    """Of each change, by its files alone: nothing that the changed files lead to is left out."""
    for name, case in CASES.items():
        removed = frozenset(file for file, text in case.files.items() if text is None)
        result = _affected(origin, "", "HEAD", frozenset(case.files), removed)
        for expected, found in (
            (case.projects, result.projects),
            (case.stacks, result.stacks),
            (case.policies, result.policies),
        ):
            assert {*expected} <= {*found}, name
        assert result.documents is case.documents, name
        assert result.framework or not case.framework, name


def test_a_program_at_the_root_is_the_frameworks(repository: Path) -> None:
    """Though a spec of a project names it."""
    spec = "ml/projects/two/jobs/score.yml"
    write(repository, {spec: f"{FILES[spec]}\nx: ../../../../Makefile\n", **edit("Makefile")})
    assert affected(repository, "HEAD").framework


@pytest.mark.parametrize(
    ("changed", "trained"),
    [
        (("requirements/framework.lock", "wheels/a.whl"), []),
        (("requirements/main.lock", "pyproject.toml"), []),
        (("ml/projects/one/release.yml",), []),
        (("requirements/framework.lock", "ml/toolkit/tables.py"), ["one"]),
        (("ml/environments/cpu/conda.yml",), ["one"]),
    ],
)
def test_what_a_merge_trains(
    changed: tuple[str, ...], trained: list[str], repository: Path
) -> None:
    """An update trains what its nodes would run differently, and nothing else."""
    needed = {f"ml/projects/{name}/{file}": "" for name in ALL for file in NEEDED}
    write(repository, {name: text for name, text in needed.items() if name not in FILES})
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "projects")
    write(repository, edit(*changed))
    git(repository, "commit", "-qam", "an update")
    assert projects(repository, "HEAD^") == trained


def test_committed_or_not(repository: Path) -> None:
    """Half of a change is committed, a file is new: the whole change counts."""
    git(repository, "switch", "-qc", "change")
    write(repository, edit("infra/Pulumi.dev.yaml"))
    git(repository, "commit", "-qam", "a change")
    write(repository, {"infra/Pulumi.test.yaml": "config: {}"})
    assert affected(repository, "main").stacks == ("dev", "test")
    assert affected(repository, "HEAD").stacks == ("test",)


def test_what_others_merged_since_does_not_count(repository: Path) -> None:
    git(repository, "switch", "-qc", "change")
    write(repository, edit("ml/projects/one/train.py"))
    git(repository, "commit", "-qam", "ours")
    git(repository, "switch", "-q", "main")
    write(repository, edit("ml/projects/two/train.py"))
    git(repository, "commit", "-qam", "theirs")
    git(repository, "switch", "-q", "change")
    assert affected(repository, "main").projects == ("one",)


def test_a_shallow_clone_of_a_pull_request(origin: Path, repository: Path, tmp_path: Path) -> None:
    """As a workflow has it: the merge and its first parent, without what came before."""
    git(repository, "switch", "-qc", "change")
    write(repository, edit("infra/Pulumi.dev.yaml"))
    git(repository, "commit", "-qam", "ours")
    git(repository, "switch", "-q", "main")
    git(repository, "merge", "-q", "--no-ff", "-m", "merge", "change")
    git(tmp_path, "clone", "-q", "--depth", "2", f"file://{repository}", "shallow")
    assert affected(tmp_path / "shallow", "HEAD^1").stacks == ("dev",)


def test_a_clone_that_has_the_two_commits_alone(repository: Path, tmp_path: Path) -> None:
    """No common commit is known: the difference of the two trees."""
    write(repository, edit("infra/Pulumi.dev.yaml"))
    git(repository, "commit", "-qam", "ours")
    git(repository, "switch", "-q", "--orphan", "other")
    write(repository, {"README.md": "alone"})
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "other")
    assert affected(repository, "main").framework


def test_the_first_commit(repository: Path, tmp_path: Path) -> None:
    """A repository that is made of a template has one; a shallow clone does not look like it."""
    assert affected(repository, "HEAD^1").projects == ALL
    git(repository, "commit", "--allow-empty", "-qm", "the second")
    assert affected(repository, "HEAD^1").projects == ()
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repository}", "shallow")
    with pytest.raises(UserError, match="unknown-revision"):
        affected(tmp_path / "shallow", "HEAD^1")


@pytest.mark.parametrize("base", ["nothing", "--help", "-x", "HEAD:README.md", ""])
def test_an_unknown_revision(base: str, repository: Path) -> None:
    with pytest.raises(UserError, match="unknown-revision"):
        affected(repository, base)


def test_the_hint_of_a_base_that_no_remote_has(repository: Path) -> None:
    """Nothing can be fetched from an `origin` that was renamed."""
    with pytest.raises(UserError, match="or --base HEAD\\^"):
        affected(repository, "origin/main")
    git(repository, "remote", "add", "origin", str(repository))
    with pytest.raises(UserError, match="git fetch origin, then --base origin/main"):
        affected(repository, "origin/main")


@pytest.mark.parametrize(
    "name",
    [
        "ml/projects/$(touch x)/train.py",
        "ml/projects/-p evil/train.py",
        "ml/projects/a\nb/train.py",
        "infra/Pulumi.a b.yaml",
        "tests/projects/`id`/test_it.py",
        "ml/environments/a;b/conda.yml",
    ],
)
def test_a_name_that_is_no_word_is_refused(name: str, repository: Path) -> None:
    """Names become words of commands, and of a workflow's matrix."""
    write(repository, {name: ""})
    with pytest.raises(UserError, match="bad-name"):
        affected(repository, "HEAD")


@pytest.mark.attack("A merged folder or stack has a command in its name")
@pytest.mark.parametrize("listed", [projects, stacks, environments])
def test_what_a_workflow_lists_are_words(
    listed: Callable[[Path], list[str]], repository: Path
) -> None:
    """Also where nothing says since when: make expands what it is given."""
    name = "$(shell touch x)"
    write(repository, {f"ml/projects/{name}/gates.yml": "", f"infra/Pulumi.{name}.yaml": ""})
    with pytest.raises(UserError, match="bad-name"):
        listed(repository)


@pytest.mark.parametrize("name", ["a b.txt", "a\nprojects=[evil].txt", "ä.txt", "$(id).txt"])
def test_outputs_are_one_line_each(
    name: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(repository, {f"ml/projects/one/{name}": "", f"infra/{name}": ""})
    monkeypatch.chdir(repository)
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "outputs"))
    assert main(["--base", "HEAD"]) == 0
    lines = (tmp_path / "outputs").read_text().splitlines()
    outputs = {key: json.loads(value) for key, _, value in (line.partition("=") for line in lines)}
    assert outputs["projects"] == ["one"]
    assert outputs["framework"] is True
    assert len(lines) == len(outputs) == 10


@pytest.mark.parametrize(
    ("file", "line", "extras"),
    [
        ("conda.yml", "  - pytorch-cpu=2.13.0", ("torch",)),
        ("requirements.txt", "torch==2.13.0\ntorchvision==0.28.0", ("images", "torch")),
        ("conda.yml", "  - lightgbm=4.6.0 # in place of torch", ()),
    ],
)
def test_extras_are_what_the_affected_projects_environments_install(
    file: str, line: str, extras: tuple[str, ...], repository: Path
) -> None:
    write(repository, {f"ml/environments/gpu/{file}": f"dependencies:\n{line}\n"})
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "packages")
    write(repository, edit("ml/projects/one/train.py"))
    assert affected(repository, "HEAD").extras == ()
    write(repository, edit("ml/projects/two/train.py"))
    assert affected(repository, "HEAD").extras == extras


def test_a_link_is_not_followed(repository: Path, tmp_path: Path) -> None:
    """A spec that is a link out of the repository is not read."""
    (tmp_path / "outside.yml").write_text("path: ../../../../shared/corpus\n")
    (repository / "ml/projects/three/jobs/link.yml").symlink_to(tmp_path / "outside.yml")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "a link")
    write(repository, edit("shared/corpus/rows.tsv"))
    assert affected(repository, "HEAD").projects == ("one", "two")


def test_the_program_without_packages(repository: Path, tmp_path: Path) -> None:
    """A workflow asks before it installs anything but a YAML parser."""
    write(repository, edit("ml/projects/one/train.py"))
    (tmp_path / "yaml").symlink_to(Path(yaml.__file__).parent)
    outputs = tmp_path / "outputs"

    def ask(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-S", "-m", "ml.repository.affected.projects", *words],
            cwd=repository,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}", "GITHUB_OUTPUT": str(outputs)},
            capture_output=True,
            text=True,
        )
        return f"{done.returncode} {done.stdout or done.stderr}"

    assert ask("--base", "HEAD", "--tests") == f"0 {' '.join(ONE)}\n"
    assert 'projects=["one"]\n' in outputs.read_text()
    assert '"projects": [\n  "one"' in ask("--base", "HEAD", "--json")
    assert ask("--base", "no").startswith("2 error[unknown-revision]")


def test_the_text_names_the_cause(repository: Path) -> None:
    write(repository, edit("shared/corpus/rows.tsv"))
    text = as_text(affected(repository, "HEAD"))
    assert "project one  shared/corpus/rows.tsv" in text
    write(repository, {"shared/corpus/rows.tsv": "1", "README.md": "more"})
    assert as_text(affected(repository, "HEAD")).endswith(": documents alone")


def test_this_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core reaches the stacks; every project imports the toolkit."""
    from ml.repository.affected import projects as module

    change = module._Change(
        ROOT, "HEAD", frozenset({"ml/measures/metrics.py", "ml/core/errors.py"})
    )
    result: Callable[[str], bool] = {*change.affected("HEAD", 2).causes}.__contains__
    assert all(map(result, ("stack dev", "package ml/cli", "package ml/specs", "framework")))
    assert all(result(f"project {name}") for name in change.projects)


@pytest.mark.attack("A commit is pushed while the files of another are listed")
def test_files_are_those_of_one_commit() -> None:
    """Documents that are listed beside another head say nothing of either."""
    heads = iter("aabb")

    def get(path: str) -> Any:
        return {"head": {"sha": next(heads) * 40}, "changed_files": counted}

    counted = 1
    listed = [{"filename": "A.md", "status": "added"}]
    github: Any = SimpleNamespace(get=get, pages=lambda path: iter(listed))
    result, commit = of_pull_request(ROOT, github, 7)
    assert result.documents and commit == "a" * 40
    heads = iter("abbb")
    assert of_pull_request(ROOT, github, 7)[1] == "b" * 40
    heads = iter("abcdef")
    with pytest.raises(UserError, match="commit-changed"):
        of_pull_request(ROOT, github, 7)
    counted, heads = 5, iter("aa")
    result, _ = of_pull_request(ROOT, github, 7)
    assert result.framework and not result.documents  # four files are not known


@pytest.mark.attack("A tag, or a branch, has the name by which main is asked for")
@pytest.mark.parametrize("name", ["tags/origin/main", "heads/origin/main", "tags/main"])
def test_a_revision_is_a_branch_before_it_is_a_tag(name: str, repository: Path) -> None:
    """Who may push, and merge nothing, would say what a change is compared with."""
    main = git(repository, "rev-parse", "HEAD").strip()
    git(repository, "update-ref", "refs/remotes/origin/main", main)
    git(repository, "switch", "-qc", "change")
    write(repository, {"ml/core/errors.py": "x = 1\n"})
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "a change")
    git(repository, "update-ref", f"refs/{name}", "HEAD")
    for base in ("origin/main", "origin/main~0", "refs/heads/main", "main", main):
        assert affected(repository, base).files == 1
    git(repository, "update-ref", "refs/tags/v1", "HEAD")
    assert affected(repository, "v1").files == affected(repository, "HEAD").files == 0


@pytest.mark.attack("A text that an image or the packages are built of counts as a document")
@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("ml/environments/custom/pins.md", False),
        ("requirements/LICENSE", False),
        ("ml/projects/words/README.md", True),
        ("docs/pins.md", True),
    ],
)
def test_what_is_a_document(file: str, expected: bool) -> None:
    assert is_document(file) is expected
