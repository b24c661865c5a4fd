"""Fixtures: a tiny project whose models are trained once, and a home for each test."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from ml.backends.local.runs.store import LocalRuns
from ml.backends.local.serving import endpoint, server
from ml.backends.runs import Run
from ml.release.promotion.propose import propose
from ml.release.rollout.apply import apply
from policies.promotion import policy
from tests.local import BACKEND
from tests.release import fast_server, tiny
from tests.release.tiny import Tiny
from tests.shared import once

# Show the compared values of failed assertions, as pytest does by default only for test_*.py.
pytest.register_assert_rewrite("tests.release.scenario")
# Skills (accuracies) of the models: worse, medium, medium (not significantly better), and better.
SKILLS = (0.7, 0.8, 0.8025, 0.95)


@dataclass(frozen=True)
class World:
    """The tiny project, and its completed training runs by the model's skill."""

    project: Tiny
    runs: Mapping[float, Run]

    def run(self, skill: float) -> str:
        """Return the name of the training run with that skill."""
        return self.runs[skill].name


@dataclass(frozen=True)
class Template:
    """A repository and a home for tests to copy; they are read-only once created."""

    root: Path
    home: Path
    names: Mapping[float, str]

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Use the repository as working directory, and the home, within the block."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MLOPS_HOME", str(self.home))
            patch.chdir(self.root)
            yield


def _template(folder: Path, root: Path | None = None) -> Template:
    """Return the template in a filled folder."""
    names = json.loads((folder / "names.json").read_text())
    return Template(root or folder / "repository", folder / "home", dict(names))


def _from(base: Template, folder: Path) -> Template:
    """Return a new template in an empty folder: the base's repository and a copy of its home."""
    made = replace(base, home=folder / "home")
    shutil.copytree(base.home, made.home)
    (folder / "names.json").write_text(json.dumps([*base.names.items()]))
    return made


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Template:
    """Return a template with training runs and no registered version."""

    def fill(folder: Path) -> None:
        made = Template(folder / "repository", folder / "home", {})
        made.root.mkdir()
        with made.inside():
            project = tiny.make(made.root)
            names = [(skill, project.train(skill).name) for skill in SKILLS]
        (folder / "names.json").write_text(json.dumps(names))

    return _template(once(tmp_path_factory, "trained", fill))


@pytest.fixture(scope="session")
def promoted(trained: Template, tmp_path_factory: pytest.TempPathFactory) -> Template:
    """Return a template in which skill 0.8 is version 1, champion and live, but stopped."""

    def fill(folder: Path) -> None:
        with _from(trained, folder).inside():
            assert propose(BACKEND, "tiny", trained.names[0.8]).decision.allowed
            assert apply(BACKEND, "tiny", "local", "ana").outcome == "applied"
            endpoint.stop("tiny")

    return _template(once(tmp_path_factory, "promoted", fill), trained.root)


@pytest.fixture(scope="session")
def declared(promoted: Template, tmp_path_factory: pytest.TempPathFactory) -> Template:
    """Return `promoted` with skill 0.95 as version 2, which is declared but not applied."""

    def fill(folder: Path) -> None:
        with _from(promoted, folder).inside():
            assert propose(BACKEND, "tiny", promoted.names[0.95]).decision.allowed

    return _template(once(tmp_path_factory, "declared", fill), promoted.root)


@pytest.fixture
def copied(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Template], World]]:
    """Yield a function that copies a template; stop all servers at the end."""

    def copy(template: Template) -> World:
        shutil.copytree(template.home, own_home, dirs_exist_ok=True)
        root = tmp_path / "repository"
        shutil.copytree(template.root, root)
        monkeypatch.chdir(root)
        found = {skill: LocalRuns().find(name) for skill, name in template.names.items()}
        return World(Tiny(root), found)

    yield copy
    for name in endpoint.names():
        endpoint.stop(name)


@pytest.fixture
def world(trained: Template, copied: Callable[[Template], World]) -> World:
    """Return a world with trained models and no registered version."""
    return copied(trained)


@pytest.fixture
def served(promoted: Template, copied: Callable[[Template], World]) -> World:
    """Return a world in which version 1 serves."""
    made = copied(promoted)
    endpoint.ensure("tiny")
    return made


@pytest.fixture
def challenged(declared: Template, copied: Callable[[Template], World]) -> World:
    """Return a world in which version 1 serves, and a better version 2 is declared."""
    made = copied(declared)
    endpoint.ensure("tiny")
    return made


@pytest.fixture
def promoted_world(promoted: Template, copied: Callable[[Template], World]) -> World:
    """Return a world in which version 1 is recorded as live, but its server is stopped."""
    return copied(promoted)


@pytest.fixture
def declared_world(declared: Template, copied: Callable[[Template], World]) -> World:
    """Return a world as `promoted_world`, in which a better version 2 is declared."""
    return copied(declared)


@pytest.fixture(autouse=True, scope="module")
def _fast_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use the fast server in tests of this module; see `fast_server`."""
    folder = once(tmp_path_factory, "server", fast_server.install)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "begin", partial(fast_server.begin, folder))
        yield


@pytest.fixture(autouse=True, scope="module")
def _few_requests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Lower the organisation policy on canaries to the few requests of the tiny project."""
    file = tmp_path_factory.mktemp("policy") / "canary.yml"
    text = policy.CANARY.read_text().replace("requests: 100", "requests: 20")
    # Do not bound prediction drift: the predictions are scores, which differ between versions.
    file.write_text(text.partition("required:")[0] + "no_bound" + text.partition("no_bound")[2])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "CANARY", file)
        yield
