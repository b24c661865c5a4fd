"""A team's own repository made of the template: thin and full, its values, and its updates."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.settings import loader
from infra.settings.azure import PROVIDERS
from infra.settings.workflows import OF_THE_PROGRAM
from ml.core.errors import UserError
from ml.repository.forks.init import lock_of
from tests.conftest import EXAMPLE, ROOT
from tests.repository.forks.forks import wheel, wheel_name
from tests.stand_ins.az_and_gh import SUBSCRIPTION, TENANT, Cloud, answered
from tests.stand_ins.github import APP, State, serving
from tests.test_fork import DELETE, GIT, tracked

PYTHON = ROOT / ".venv/update/bin/python"
VALUES = {
    "name": "contoso",
    "repository": "contoso/models",
    "team": "contoso/ml",
    "owner": "ml@contoso.com",
    "region": "northeurope",
    "subscription": SUBSCRIPTION,
    "tenant": TENANT,
}
TIMING = "ml/toolkit/training/timing.py"
# A team's own, and what travels to a node: not counted among the lines of a thin fork.
OWN = (
    *(
        "ml/projects/",
        "ml/features/",
        "ml/measures/",
        "ml/toolkit/",
        "ml/serving/",
        "ml/environments/",
        "tests/projects/",
    ),
    *("infra/Pulumi.", ".github/workflows/", "README.md"),
)
PROJECT = EXAMPLE.relative_to(ROOT).as_posix()
pytestmark = [
    pytest.mark.example,
    pytest.mark.skipif(not PYTHON.exists(), reason="make .venv/update.stamp"),
]
Made = Callable[..., Path]


def git(folder: Path, *words: str) -> str:
    done = subprocess.run([*GIT, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder: Path, message: str) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", message)


def ask(
    folder: Path,
    module: str,
    *words: str,
    code: int = 0,
    path: str = "/usr/bin:/bin",
    **more: str,
) -> subprocess.CompletedProcess[str]:
    """`make init` and `make update`, as the Makefile calls them."""
    framework = str(folder / ".venv/framework")
    variables = {**os.environ, "PYTHONPATH": framework, "PATH": path, **more}
    words = (str(PYTHON), "-m", f"ml.repository.{module}", *words)
    done = subprocess.run(
        words, cwd=folder, env=variables, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def options(values: dict[str, str]) -> list[str]:
    return [f"--{name}={value}" for name, value in values.items()]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with this tree, released as v0.1.0; without tests of the framework, of
    which there are many.
    """
    folder = tmp_path_factory.mktemp("template")
    names = ("projects/", "github/", "stand_ins/", "__init__", "conftest", "shared", "named")
    of_forks = tuple(f"tests/{name}" for name in names)
    for name in tracked(ROOT):
        if name.startswith(("tests/", "benchmarks/")) and not name.startswith(of_forks):
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "the template")
    git(folder, "tag", "v0.1.0")
    return folder


@pytest.fixture(scope="module")
def forks(template: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A thin and a full fork of it, committed."""
    made = {}
    for kind, more in (("thin", {}), ("full", {"full": "1"})):
        folder = tmp_path_factory.mktemp(kind) / "models"
        git(template, "clone", "-q", str(template), str(folder))
        ask(folder, "forks.init", *options({**VALUES, **more}))
        if kind == "thin":
            install(folder)
        commit(folder, "our own")
        made[kind] = folder
    return made


@pytest.fixture
def fork(forks: dict[str, Path], tmp_path: Path) -> Made:
    """A copy of one of them, to change."""

    def copy(kind: str) -> Path:
        return Path(shutil.copytree(forks[kind], tmp_path / kind, symlinks=True))

    return copy


def install(folder: Path) -> None:
    """What `make setup` does with requirements/framework.lock: the wheel, by its hash."""
    target = folder / ".venv/framework"
    shutil.rmtree(target, ignore_errors=True)
    uv = [ROOT / ".venv/bin/uv", "pip", "install", "--quiet", "--no-deps", "--offline"]
    lock = ["--require-hashes", "-r", "requirements/framework.lock"]
    subprocess.run([*uv, "--target", target, *lock], cwd=folder, check=True)


def environment(folder: Path) -> None:
    """A `.venv` with this one's packages and programs of its own."""
    own, venv = folder / ".venv", ROOT / ".venv"
    (own / "bin").mkdir(parents=True, exist_ok=True)
    for name in ("python", "python3", "ruff", "uv"):
        (own / "bin" / name).symlink_to(venv / "bin" / name)
    for name in ("mypy", "pytest"):  # programs of Python, by the fork's own
        text = (venv / "bin" / name).read_text().replace(str(venv), str(own))
        (own / "bin" / name).write_text(text)
        (own / "bin" / name).chmod(0o755)
    packages = next(venv.glob("lib/python3*/site-packages"))
    (own / packages.relative_to(venv)).parent.mkdir(parents=True)
    (own / packages.relative_to(venv)).symlink_to(packages)
    for folder in ("update", "parser"):
        (own / folder).symlink_to(venv / folder)
    shutil.copy(venv / "pyvenv.cfg", own / "pyvenv.cfg")
    (own / "framework.stamp").touch()
    for lock in own.glob("framework/requirements/*"):
        lock.touch()
    for stamp in ("update", "main", "dev", "infra", "torch", "automl", "parser"):
        (own / f"{stamp}.stamp").touch()


def shell(folder: Path, command: str, code: int = 0, **variables: str) -> str:
    """What a command of a person prints, in the folder."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env={**os.environ, "MAKEFLAGS": "", "MLOPS_HOME": "", **variables},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def table(file: Path) -> None:
    file.write_text("age,left\n" + "".join(f"{n},{n % 3 // 2}\n" for n in range(700)))


def stack(folder: Path, name: str) -> dict[str, object]:
    text = (folder / f"infra/Pulumi.{name}.yaml").read_text()
    config: dict[str, object] = yaml.safe_load(text)["config"]
    return config


# init.


def test_a_thin_fork_holds_what_a_team_edits(forks: dict[str, Path]) -> None:
    """At most 15,300 lines of Python without projects, since what travels to a node is source; and
    3,100 lines of other files.
    """
    folder = forks["thin"]
    names = tracked(folder)
    projects = ("ml/projects/", "tests/projects/")
    modules = [name for name in names if name.endswith(".py") and not name.startswith(projects)]
    assert sum((folder / name).read_text().count("\n") for name in modules) <= 15_300
    assert not (folder / "ml/automl").exists()
    conversion = [sys.executable, "-c", "import ml.toolkit.automl.conversion"]
    subprocess.run(conversion, cwd=folder, env={}, check=True)
    for room in ("ml/backends", "ml/specs", "ml/release/rollout", "infra/program", "benchmarks"):
        assert not (folder / room).exists()
    for file in ("ml/toolkit/data/tables.py", "ml/serving/scoring/model.py", "ml/serving/fast.py"):
        assert (folder / file).is_file()
    lines = {
        name: (folder / name).read_text().count("\n")
        for name in names
        if not name.startswith(OWN) and not name.endswith(".whl")
    }
    assert sum(lines.values()) <= 3100, lines
    assert {".github/workflows/wheel.yml", ".github/workflows/nightly.yml"}.isdisjoint(names)
    assert "requirements/uv.lock" in names
    assert {"Makefile", "LICENSE", ".github/workflows/check.yml", "policies/infra/limits.yml"} < {
        *names
    }
    assert {name for name in names if name.startswith("docs/")} == {
        "docs/how-to/pass-a-gate.md",
        "docs/operating.md",
        "docs/threat-model.md",
    }


def test_the_framework_is_one_wheel_locked_by_its_hash(forks: dict[str, Path]) -> None:
    lock = (forks["thin"] / "requirements/framework.lock").read_text()
    match = re.search(r"^\./(wheels/\S+\.whl) --hash=sha256:(\w+)$", lock, re.M)
    assert match
    content = (forks["thin"] / match[1]).read_bytes()
    assert hashlib.sha256(content).hexdigest() == match[2]
    assert not (forks["full"] / "requirements/framework.lock").exists()


@pytest.mark.parametrize("kind", ["thin", "full"])
def test_no_placeholder_is_left(forks: dict[str, Path], kind: str) -> None:
    """Names, regions and owners are where they belong."""
    folder = forks[kind]
    for name in tracked(folder):
        if name.endswith((".yaml", ".yml", "CODEOWNERS")) and not name.startswith("tests/"):
            text = (folder / name).read_text()
            assert "your-organisation" not in text and "mlplat" not in text, name
    for name in ("dev", "staging", "prod"):
        config = stack(folder, name)
        assert config["azure-native:subscriptionId"] == SUBSCRIPTION
        assert config["azure-native:location"] == "northeurope"
        assert config["platform:asset_registry"]["name"] == "contoso-shared"  # type: ignore[index]
    assert stack(folder, "prod")["platform:reviewers"] == ["contoso/ml"]
    owners = (folder / ".github/CODEOWNERS").read_text()
    assert "\n*                                @contoso/ml\n" in owners
    assert "repository: contoso/models\n" in (folder / "policies/promotion/gates.yml").read_text()


def test_a_full_fork_keeps_the_source(template: Path, forks: dict[str, Path]) -> None:
    names = {*tracked(forks["full"])}
    assert {*tracked(template)} - names == {".copier-answers.yml.copier", "copier.yml"}
    assert names - {*tracked(template)} == {".copier-answers.yml"}


def test_again_with_one_value(fork: Made) -> None:
    """That one is changed, and nothing else."""
    folder = fork("thin")
    assert git(folder, "status", "--porcelain") == ""
    assert "next: make demo; git add" in ask(folder, "forks.init").stdout
    assert git(folder, "status", "--porcelain") == ""
    owners_of = (
        "dev=dev@contoso.com prod=prod@contoso.com shared=ml@contoso.com staging=ml@contoso.com"
    )
    ask(folder, "forks.init", f"--owner={owners_of}")
    prod = folder / "infra/Pulumi.prod.yaml"
    prod.write_text(prod.read_text().replace("    - contoso/ml\n", "    - contoso/ml\n    - ana\n"))
    owners, line = folder / ".github/CODEOWNERS", "/ml/projects/words/ @contoso/ml-words\n"
    owners.write_text(owners.read_text() + line)
    ask(folder, "forks.init", "--name=fabrikam", "--team=fabrikam/ml")
    assert stack(folder, "prod")["platform:reviewers"] == ["fabrikam/ml", "ana"]
    assert owners.read_text().endswith(line) and "@contoso/ml\n" not in owners.read_text()
    assert stack(folder, "dev")["platform:owner"] == "dev@contoso.com"
    assert stack(folder, "prod")["platform:owner"] == "prod@contoso.com"
    registry = {"mode": "use", "stack": "shared", "name": "fabrikam-shared"}
    assert stack(folder, "prod")["platform:asset_registry"] == registry
    changed = git(folder, "diff", "--name-only").splitlines()
    assert changed == [".github/CODEOWNERS", *(f"infra/Pulumi.{name}.yaml" for name in
                       ("dev", "prod", "shared", "staging")),
                       "policies/infra/limits.yml"]  # fmt: skip
    limits = yaml.safe_load((folder / "policies/infra/limits.yml").read_text())["default"]
    assert limits["hosts"] == ["dev@contoso.com", "prod@contoso.com", "ml@contoso.com"]
    assert limits["repositories"] == ["contoso/models"]
    assert limits["reviewers"] == ["fabrikam/ml"]
    assert limits["registries"] == ["fabrikam-shared"]
    assert (
        limits["subscriptions"] == [SUBSCRIPTION] and limits["tenants"] != limits["subscriptions"]
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"name": ""}, "no NAME"),
        ({"name": "Contoso"}, "NAME=Contoso"),
        ({"repository": "contoso"}, "REPOSITORY=contoso"),
        ({"tenant": "contoso.com"}, "TENANT=contoso.com"),
        ({"region": "northeuropa"}, "unknown-region"),
        ({"subscription": "00000000-0000-0000-0000-000000000000"}, "placeholder"),
        ({"repository": "your-organisation/models"}, "placeholder"),
        ({"keep": "nobodys"}, "KEEP=nobodys"),
        ({"wheel": "no.whl"}, "no-wheel"),
    ],
)
def test_a_wrong_value_is_refused(
    changed: dict[str, str], words: str, template: Path, tmp_path: Path
) -> None:
    """Each with its variable, and nothing is changed before all are there."""
    folder = tmp_path / "models"
    git(template, "clone", "-q", str(template), str(folder))
    given = {name: value for name, value in {**VALUES, **changed}.items() if value}
    done = ask(folder, "forks.init", *options(given), code=2)
    assert words in done.stderr
    assert git(folder, "status", "--porcelain") == ""


def test_without_the_example(template: Path, tmp_path: Path) -> None:
    """Nor its tests, nor its endpoint among those that the stacks watch."""
    folder = tmp_path / "models"
    git(template, "clone", "-q", str(template), str(folder))
    done = ask(folder, "forks.init", *options({**VALUES, "keep": "none"}))
    assert "next: make setup; git add" in done.stdout  # `make demo` has no project to show
    assert not (folder / PROJECT).exists()
    assert not (folder / "tests/projects" / EXAMPLE.name).exists()
    assert "platform:endpoints" not in stack(folder, "dev")


def test_azure_is_asked_for_ids(template: Path, tmp_path: Path) -> None:
    """Where `az` is signed in, they need no variable."""
    folder, programs = tmp_path / "models", Cloud(tmp_path).programs()
    git(template, "clone", "-q", str(template), str(folder))
    given = {name: VALUES[name] for name in VALUES if name not in ("subscription", "tenant")}
    ask(folder, "forks.init", *options({**given, "full": "1"}), path=f"{programs}:/usr/bin:/bin")
    assert stack(folder, "dev")["azure-native:tenantId"] == TENANT


URL = "https://github.com/contoso/starter/releases/download/v0.1.0/"
URL += "azureml_gitops_starter-0.1.0-py3-none-any.whl"


@pytest.mark.attack("A wheel lies at the release's address that no workflow of it built")
@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("exit 0", ""),
        ("echo nobody >&2; exit 1", "nobody"),
        ("", "no program `gh`"),
    ],
)
def test_a_released_wheel_is_attested(
    program: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locked by its address and hash when `gh` verifies it, refused otherwise."""
    if program:
        (tmp_path / "gh").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n{program}\n')
        (tmp_path / "gh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    content = wheel("0.1.0")
    monkeypatch.setattr("urllib.request.urlopen", lambda address, timeout: io.BytesIO(content))
    if words:
        with pytest.raises(UserError, match=words):
            lock_of(URL)
        return
    digest = hashlib.sha256(content).hexdigest()
    assert f"azureml-gitops-starter @ {URL} --hash=sha256:{digest}\n" in lock_of(URL)[0]
    asked = (tmp_path / "asked").read_text().split()
    assert asked[:2] == ["attestation", "verify"] and asked[-2:] == ["--repo", "contoso/starter"]


# update.


@pytest.fixture(scope="module")
def newer(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The template's v0.2.0: a shared file changed, one new, one gone; a module of the wheel."""
    folder = tmp_path_factory.mktemp("newer") / "template"
    git(template, "clone", "-q", str(template), str(folder))

    def edit(name: str, old: str, new: str) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    edit("pyproject.toml", 'version = "0.1.0"', 'version = "0.2.0"')
    edit("Makefile", ".PHONY: clean\n", "polish: ## new\n\t@true\n\n.PHONY: clean\n")
    edit(TIMING, '"""', '"""Of the template: ')
    edit("ml/core/errors.py", '"""', '"""Of 0.2.0: ')
    edit(f"{PROJECT}/README.md", "#", "# The template's")
    (folder / ".github/workflows/new.yml").write_text("name: new\n")
    (folder / "ml/toolkit/training/tracking.py").unlink()
    commit(folder, "v0.2.0")
    git(folder, "tag", "v0.2.0")
    return folder


def follow(folder: Path, template: Path) -> None:
    """The fork's template is at another address."""
    answers = folder / ".copier-answers.yml"
    text = re.sub(r"_src_path: .*", f"_src_path: {template}", answers.read_text())
    answers.write_text(text)
    makefile = folder / "Makefile"
    makefile.write_text(
        makefile.read_text().replace(f"PROJECT := {EXAMPLE.name}", "PROJECT := ours")
    )
    (folder / PROJECT / "train.py").write_text("# ours\n")
    (folder / "docs").mkdir(exist_ok=True)
    (folder / "docs/logo.png").write_bytes(bytes(range(256)))
    commit(folder, "ours")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["thin", "full"])
def test_an_update_is_merged(kind: str, fork: Made, newer: Path) -> None:
    """What the team owns or changed stays; what is shared is the template's; the wheel is new."""
    folder = fork(kind)
    follow(folder, newer)
    done = ask(folder, "forks.update")
    assert done.stdout.startswith("v0.1.0 → v0.2.0\n")
    makefile = (folder / "Makefile").read_text()
    assert "PROJECT := ours" in makefile and "polish:" in makefile
    assert (folder / TIMING).read_text().startswith('"""Of the template: ')
    assert (folder / ".github/workflows/new.yml").is_file()
    assert not (folder / "ml/toolkit/training/tracking.py").exists()
    changed = git(folder, "status", "--porcelain", "-uall")
    assert "ml/projects" not in changed and "infra/Pulumi" not in changed and "docs" not in changed
    assert stack(folder, "dev")["platform:repository"] == "contoso/models"
    assert "_commit: v0.2.0" in (folder / ".copier-answers.yml").read_text()
    if kind == "thin":
        assert [path.name.split("-")[1] for path in (folder / "wheels").iterdir()] == ["0.2.0"]
        install(folder)
        errors = folder / ".venv/framework/ml/core/errors.py"
        assert errors.read_text().startswith('"""Of 0.2.0: ')
    else:
        assert (folder / "ml/core/errors.py").read_text().startswith('"""Of 0.2.0: ')


SMALL = (
    ".amlignore",
    "copier.yml",
    ".copier-answers.yml.copier",
    "pyproject.toml",
    "README.md",
    "Makefile",
)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A thin fork of a template with few files, whose v0.2.0 changes two."""
    template, folder = tmp_path / "template", tmp_path / "fork"
    for name in (*SMALL, "LICENSE", "requirements/main.lock", "ml/core/errors.py", TIMING):
        (template / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, template / name)
    git(template, "init", "-q", "-b", "main")
    commit(template, "v0.1.0")
    git(template, "tag", "v0.1.0")
    for name in ("LICENSE", "Makefile", TIMING):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(template / name, folder / name)
    content = wheel("0.1.0")
    digest, old = hashlib.sha256(content).hexdigest(), f"wheels/{wheel_name('0.1.0')}"
    for name in ("wheels", "requirements"):
        (folder / name).mkdir()
    (folder / old).write_bytes(content)
    (folder / "requirements/framework.lock").write_text(f"./{old} --hash=sha256:{digest}\n")
    answers = {"_commit": "v0.1.0", "_src_path": str(template), "full": False}
    (folder / ".copier-answers.yml").write_text(yaml.safe_dump(answers))
    shutil.copy(ROOT / ".gitignore", folder)
    (folder / "pyproject.toml").touch()
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "ours")
    for name, old, new in (
        (TIMING, '"""', '"""Of the template: '),
        ("Makefile", ".PHONY: clean", "polish:\n\n.PHONY: clean"),
        ("pyproject.toml", 'version = "0.1.0"', 'version = "0.2.0"'),
    ):
        text = (template / name).read_text()
        (template / name).write_text(text.replace(old, new, 1))
    commit(template, "v0.2.0")
    git(template, "tag", "v0.2.0")
    return folder


def test_a_thin_fork_becomes_a_full_one(fork: Made, forks: dict[str, Path], newer: Path) -> None:
    """By the lines of docs/operating.md; a project of the team stays, and updates are merged."""
    page = (ROOT / "docs/operating.md").read_text()
    block = re.search(r"^```shell\n(.*?)^```", page, re.M | re.S)
    assert block
    folder, full = fork("thin"), forks["full"]
    own = folder / "ml/projects/ours/README.md"
    own.parent.mkdir()
    own.write_text("# Ours\n")
    commit(folder, "a project")
    who = {"GIT_AUTHOR_NAME": "t", "GIT_COMMITTER_NAME": "t", "EMAIL": "t@example.org"}
    shell(folder, block[1], **who)
    assert git(folder, "status", "--porcelain") == ""
    assert {*tracked(folder)} - {*tracked(full)} == {"ml/projects/ours/README.md"}
    assert {*tracked(full)} <= {*tracked(folder)}
    ignored = ("infra/Pulumi.", "requirements/")
    other = [
        name
        for name in tracked(full)
        if (folder / name).read_bytes() != (full / name).read_bytes()
        and not name.startswith(ignored)
    ]
    assert other == []
    follow(folder, newer)
    ask(folder, "forks.update")
    assert '"""Of 0.2.0: ' in (folder / "ml/core/errors.py").read_text()


def test_a_conflict_is_told(small: Path) -> None:
    """With the file; the check of every pull request refuses its markers."""
    text = (small / TIMING).read_text()
    (small / TIMING).write_text(text.replace('"""', '"""Ours: ', 1))
    commit(small, "ours too")
    done = ask(small, "forks.update", code=1, PYTHONPATH=str(ROOT))
    assert f"{TIMING}: both changed the same lines" in done.stdout
    text = (small / TIMING).read_text()
    assert "<<<<<<< before updating" in text and "Ours: " in text and "Of the template: " in text
    assert "polish:" in (small / "Makefile").read_text()
    commit(small, "a merge that nobody finished")
    refusal = ask(small, "forks.links", code=1, PYTHONPATH=str(ROOT)).stderr
    assert f"conflict-markers]: {TIMING}" in refusal


@pytest.fixture
def github(small: Path) -> Iterator[State]:
    rights = {"contents": "write", "pull-requests": "write"}
    with serving(State(folder=small, tokens={"app": rights}, apps={"app"})) as state:
        yield state


@pytest.mark.slow
@pytest.mark.parametrize("changed", [False, True], ids=["merged", "conflict"])
def test_an_update_is_one_pull_request(changed: bool, small: Path, github: State) -> None:
    """Also when it is asked for twice; the tree in which it is typed stays as it was."""
    variables = {
        "GITHUB_API_URL": github.api,
        "GITHUB_REPOSITORY": github.repository,
        "GH_TOKEN": "app",
        "PYTHONPATH": str(ROOT),
    }
    if changed:
        text = (small / TIMING).read_text()
        (small / TIMING).write_text(text.replace('"""', '"""Ours: ', 1))
        commit(small, "ours too")
    old = {"number": 9, "state": "open", "title": "Template v0.1.5"}
    head = {
        "ref": "template-update/v0.1.5",
        "label": "team:template-update/v0.1.5",
        "repo": {"full_name": github.repository},
    }
    github.pulls.append({**old, "head": head, "user": {"login": APP}})
    request = ("forks.update", "--pull-request")
    assert "201 is opened; 9 is closed" in ask(small, *request, **variables).stdout
    changes = [*github.changes]
    assert "201 is as it should be" in ask(small, *request, **variables).stdout
    assert ("POST", "pulls") not in github.changes[len(changes) :]
    closed, pull = github.pulls
    assert closed["state"] == "closed" and pull["title"] == "Template v0.2.0"
    assert (pull.get("labels") == ["conflict"]) is changed
    assert (f"- `{TIMING}`" in pull["body"]) is changed
    branch = "template-update/v0.2.0"
    merged = git(small, "diff", "--name-status", "--no-renames", "main", branch).splitlines()
    assert [line for line in merged if "wheels" in line or "lock" in line] == [
        "M\trequirements/framework.lock",
        "D\twheels/azureml_gitops_starter-0.1.0-py3-none-any.whl",
        "A\twheels/azureml_gitops_starter-0.2.0-py3-none-any.whl",
    ]
    lock = git(small, "show", f"{branch}:requirements/framework.lock")
    wheel = ["git", "show", f"{branch}:wheels/azureml_gitops_starter-0.2.0-py3-none-any.whl"]
    content = subprocess.run(wheel, cwd=small, check=True, capture_output=True).stdout
    assert hashlib.sha256(content).hexdigest() in lock
    assert git(small, "status", "--porcelain") == ""


@pytest.mark.slow
def test_a_merged_version_is_not_asked_for_again(small: Path, github: State) -> None:
    variables = {"GITHUB_API_URL": github.api, "GITHUB_REPOSITORY": github.repository}
    first = ask(small, "forks.update", PYTHONPATH=str(ROOT))
    assert "next: git diff" in first.stdout
    (small / "requirements/main.lock").touch()  # of its own: it is not of a former version now
    commit(small, "v0.2.0")
    again = ask(small, "forks.update", PYTHONPATH=str(ROOT))
    assert again.stdout == "v0.2.0 of the template is merged already\n"
    done = ask(
        small, "forks.update", "--pull-request", PYTHONPATH=str(ROOT), GH_TOKEN="app", **variables
    )
    assert "v0.2.0 of the template is merged already" in done.stdout
    assert github.changes == []


def test_an_update_needs_a_fork_and_a_clean_tree(fork: Made, template: Path) -> None:
    assert "no-fork" in ask(template, "forks.update", code=2).stderr
    folder = fork("thin")
    (folder / "Makefile").write_text("changed\n")
    assert "uncommitted" in ask(folder, "forks.update", code=2).stderr


# What works in both.

ESCAPE = """
$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json
type: command
code: ../../../..
command: python -c "import ml.toolkit.data.tables as t; print(t.__file__); import ml.core.errors"
environment: azureml:ml-cpu:1
compute: azureml:cpu-cluster
"""


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["all", "none"])
def test_the_first_pull_request_of_a_thin_fork_passes(
    keep: str, template: Path, tmp_path: Path
) -> None:
    """What check.yml runs, for a new project and, where the examples are kept, an edit of one."""
    folder = tmp_path / "models"
    git(template, "clone", "-q", str(template), str(folder))
    ask(folder, "forks.init", *options(VALUES), *(["--keep=none"] if keep == "none" else []))
    install(folder)
    commit(folder, "ours")
    environment(folder)
    shell(folder, "PYTHONPATH=.venv/framework .venv/bin/python -m ml.core.imports")
    table(tmp_path / "churn.csv")
    shell(folder, ".venv/bin/ml new churn --table ../churn.csv --target left")
    commit(folder, "churn")
    touched = {"churn"}
    for name in ["fraud_scoring"] if keep == "all" else []:
        file = folder / f"ml/projects/{name}/train.py"
        file.write_text(f"{file.read_text()}\n# An edit.\n")
        touched.add(name)
    for command in ("make lint", "make smoke BASE=HEAD^", "make affected-tests BASE=HEAD^"):
        shell(folder, command)
    shell(folder, "make hooks; make hooks")
    hook = folder / ".git/hooks/pre-commit"
    assert "make -f Makefile lint" in hook.read_text() and os.access(hook, os.X_OK)
    hook.write_text("#!/bin/sh\n")
    assert "error[hook-exists]" in shell(folder, "make hooks", code=2)
    smoke = json.loads((folder / ".local/check/smoke.json").read_text())
    assert {(each["project"], each["status"]) for each in smoke} == {
        (name, "Completed") for name in touched
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["thin", pytest.param("full", marks=pytest.mark.torture(only=True))]
)
def test_the_main_job_runs(kind: str, fork: Made) -> None:
    """And its check, its preview, a new project; a job finds what was hashed and nothing else."""
    folder = fork(kind)
    environment(folder)
    ml = ".venv/bin/ml"
    shell(folder, "PYTHONPATH=.venv/framework .venv/bin/python -m ml.core.imports")
    assert " 0 errors" in shell(folder, f"{ml} check")
    assert "broken" not in shell(folder, "make links")
    small = "--set inputs.trees=2 --set inputs.matches=3"
    assert "output model:" in shell(folder, f"{ml} run {PROJECT}/jobs/train.yml {small}")
    table(folder.parent / "churn.csv")
    shell(folder, f"{ml} new churn --table ../churn.csv --target left")
    assert " 0 errors" in shell(folder, f"{ml} check", PYTHONPATH=".")
    assert "nothing rejected" in shell(folder, ".venv/bin/infra preview dev")
    job = folder / PROJECT / "jobs/escape.yml"
    job.write_text(ESCAPE)
    printed = shell(folder, f"{ml} run {job}", code=1)
    assert "No module named 'ml.core'" in printed
    hashed = re.search(r"^\S+ml/toolkit/data/tables.py$", printed, re.M)
    assert hashed is None or str(folder / "ml/toolkit") not in hashed[0]
    job.unlink()
    if kind == "thin":  # what measures for the gates is the wheel's
        (folder / "ml/measures/metrics.py").write_text("raise SystemExit('edited')\n")
        assert " 0 errors" in shell(folder, f"{ml} check")


@pytest.mark.slow
def test_automl_runs_from_the_wheel(fork: Made) -> None:
    """A snapshot of what travels of it, which the lock of the commit names until it is edited."""
    folder = fork("thin")
    environment(folder)
    shell(folder, "PYTHONPATH=.venv/framework .venv/bin/python -m ml.core.imports")
    rows = (f"{n % 7},{'ab'[n % 2]},{n % 3 // 2}\n" for n in range(700))
    (folder.parent / "churn.csv").write_text("calls,plan,left\n" + "".join(rows))
    shell(folder, ".venv/bin/ml new churn --table ../churn.csv --target left")
    commit(folder, "churn")
    limits = "--set jobs.search.limits.max_trials=2"
    module = folder / ".venv/framework/ml/automl/trial.py"
    for is_edited in (False, True):
        printed = shell(folder, f".venv/bin/ml run ml/projects/churn/jobs/automl.yml {limits}")
        job = folder / re.search(r"steps: (\S+)", printed)[1] / "search/job.json"  # type: ignore[index]
        code = json.loads(job.read_text())["lineage"]["code"]
        snapshot = folder / ".local/snapshots" / code["digest"].removeprefix("sha256:")
        assert code["dirty"] is is_edited
        assert {path.name for path in snapshot.iterdir()} == {"ml"}
        assert {path.name for path in (snapshot / "ml").iterdir()} == {
            *("automl", "measures", "serving", "toolkit")
        }
        module.write_text(f"{module.read_text()}# An edit.\n")


@pytest.mark.slow
def test_the_examples_are_deleted_from_a_thin_fork(fork: Made) -> None:
    """By the command of its own page, which names files that only the template has."""
    folder = fork("thin")
    environment(folder)
    shell(folder, "PYTHONPATH=.venv/framework .venv/bin/python -m ml.core.imports")
    (deleting,) = DELETE.findall((folder / "ml/projects/README.md").read_text())
    shell(folder, f"git rm -rq --ignore-unmatch {deleting}")
    commit(folder, "without the examples")
    assert [path.name for path in (folder / "ml/projects").iterdir() if path.is_dir()] == []
    assert " 0 errors" in shell(folder, ".venv/bin/ml check && make links && .venv/bin/ruff check")


@pytest.mark.slow
def test_plug_ins_of_a_thin_fork_only_reject(fork: Made) -> None:
    """The gate and the rules of the guide apply; a plug-in that fails or loosens is refused."""
    folder = fork("thin")
    environment(folder)
    shell(folder, "PYTHONPATH=.venv/framework .venv/bin/python -m ml.core.imports")
    guide = (ROOT / "docs/how-to/add-a-gate-or-rule.md").read_text()
    (diff,) = re.findall(r"^```diff\n(.*?)^```", guide, re.M | re.S)
    (folder / "guide.diff").write_text(diff)
    shell(folder, "git apply guide.diff && rm guide.diff && git add policies")
    assert " 0 errors" in shell(folder, ".venv/bin/ruff check . && .venv/bin/ml check")

    def edited(name: str, old: str, new: str, command: str, code: int) -> str:
        """What the command prints after an edit, which is undone."""
        file = folder / name
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))
        printed = shell(folder, command, code=code)
        file.write_text(text)
        return printed

    check, own = ".venv/bin/ml check", "policies/own"
    job = f"{PROJECT}/jobs/train.yml"
    printed = edited(job, "timeout: 1800", "timeout: 90000", check, 2)
    assert f"[job-timeout]: {job}:" in printed
    gates = "policies/promotion/gates.yml"
    assert "max_seconds" in edited(gates, "    max_seconds: 3600\n", "", check, 2)
    printed = edited(f"{own}/log_cap.py", "<= 10:", "<= 0.001:", ".venv/bin/infra preview dev", 3)
    assert "log-cap" in printed
    printed = edited(f"{own}/job_timeout.py", "seconds > ", "1 / 0 > ", check, 2)
    assert "error[plug-in-failed]" in printed and f"{own}/job_timeout.py:13" in printed
    printed = edited(f"{own}/training_time.py", '"training-time"', '"quality"', check, 2)
    assert "error[plug-in-name-taken]" in printed
    bind = (folder / ".venv/bin/ml").read_text().splitlines()[1]
    show = "from policies.promotion.engine import RULES; print([*RULES][-2:])"
    assert "['sign-off', 'training-time']" in shell(
        folder, f".venv/bin/python -P -c {shlex.quote(f'{bind}; {show}')}"
    )


# The lines of docs/fork.md.

FIRST = re.search(r"^```shell\n(.*?)^```", (ROOT / "docs/fork.md").read_text(), re.M | re.S)
# Before the stand-in for `gh`: what `infra bootstrap` does not ask of it.
GH = """#!/bin/sh
case "$1 $2" in
  "repo create") git remote add origin {github}; exec git push -q -u origin main;;
  pr*) echo "$*" >> {record}; exit 0;;
esac
"""
ORDER = ["shared", "dev", "staging", "prod"]


def things(folder: Path) -> dict[str, Any]:
    """What the stand-ins keep."""
    kept: dict[str, Any] = json.loads((folder / "state.json").read_text())["things"]
    return kept


def deploy(folder: Path, stand_ins: Path, github: Path) -> None:
    """What infra.yml does with main, in the order of the stacks: it needs the key of each on main,
    and the identities to sign in with; the programs make those of the environments.
    """
    state = json.loads((stand_ins / "state.json").read_text())
    assert state["things"]["started"] == ["infra.yml"]
    assert json.loads(ask(folder, "affected.stacks").stdout) == ORDER
    for name in ORDER:
        settings = loader.load(name, folder / "infra")
        provider, key = loader.encryption(name, folder / "infra") or ("", "")
        backend = state["things"][f"variables contoso/models {name}-deploy"]["PULUMI_BACKEND_URL"]
        assert name in state["things"][f"stacks of {backend}"]
        assert provider.startswith("azurekeyvault://")
        assert f"encryptedkey: {key}\n" in git(github, "show", f"main:infra/Pulumi.{name}.yaml")
        for purpose in () if settings.makes_registry else OF_THE_PROGRAM:
            identity = settings.names.local("id", purpose)
            state["things"][f"identity  {identity}"] = {"clientId": f"client-{identity}"}
    (stand_ins / "state.json").write_text(json.dumps(state))


@pytest.mark.slow
def test_the_readme_leads_to_the_first_pull_request(template: Path, tmp_path: Path) -> None:
    """Its ten lines, typed one after the other, each with its effect."""
    assert FIRST
    lines = FIRST[1].splitlines()
    assert len(lines) == 10
    github, record, home = tmp_path / "github", tmp_path / "record", tmp_path / "home"
    home.mkdir()
    table(home / "churn.csv")
    git(tmp_path, "init", "-q", "--bare", str(github))
    cloud = Cloud(tmp_path)
    cloud.state["github"] = str(github)
    programs = cloud.programs()
    stand_in = (programs / "gh").read_text().partition("\n")[2]
    (programs / "gh").write_text(GH.format(github=github, record=record) + stand_in)
    variables = {
        "HOME": str(home),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "TEMPLATE": str(template),
        **{f"GIT_{who}_{what}": "t@example.org" for who in ("AUTHOR", "COMMITTER")
           for what in ("NAME", "EMAIL")},
    }  # fmt: skip
    clone, init, commit_all, create, install_infra, bootstrap, run, again, new, request = lines
    folder = tmp_path / "models"
    shell(tmp_path, clone, **variables)
    environment(folder)
    bare = "PYTHONPATH=. .venv/bin/python -c 'from infra.cli import main; main()' bootstrap"
    assert "placeholder" in shell(folder, bare, code=2, **variables)
    assert "no NAME" in shell(folder, "make init", code=2, **variables)
    for line in (init, commit_all, create, install_infra):
        shell(folder, line, **variables)
    assert git(github, "ls-tree", "--name-only", "main", "infra/Pulumi.shared.yaml")
    first = shell(folder, bootstrap, **variables)
    assert "created  prod-stack\n" in first and "differs  ruleset-main-rules\n" in first
    made = things(tmp_path)
    assert {f"repos/contoso/models/environments/{name}-deploy" for name in ORDER} <= {*made}
    assert len(made[f"providers {SUBSCRIPTION}"]) == len(PROVIDERS)
    assert git(folder, "status", "--porcelain") == ""
    shell(folder, run, **variables)
    deploy(folder, tmp_path, github)
    second = shell(folder, again, **variables)
    waiting = re.findall(r"^missing  (\S+)", second, re.M)
    assert waiting == ["app", "ruleset-proposals", "ruleset-proposals-rules"]
    made = things(tmp_path)
    assert made["variables contoso/models prod-watch"]["AZUREML_REGISTRY_NAME"] == "contoso-shared"
    (main,) = [each for each in made["rulesets"].values() if each["name"] == "main"]
    assert main["bypass_actors"] == []
    shell(folder, new, **variables)
    shell(folder, request, **variables)
    assert git(github, "ls-tree", "-r", "--name-only", "first-model", "ml/projects/churn")
    assert record.read_text().splitlines() == ["pr create --fill"]


def test_githubs_stand_in_starts_no_workflow_without_a_dispatch(tmp_path: Path) -> None:
    """As GitHub: the line of the README is one that it takes."""
    cloud = Cloud(tmp_path)
    for text, fine in (("on:\n  push:\n", False), ("on:\n  workflow_dispatch:\n", True)):
        cloud.state["main"] = {".github/workflows/infra.yml": text}
        _, error = answered(cloud.state, ["gh", "workflow", "run", "infra.yml"])
        assert ("HTTP 422" in error) is not fine
