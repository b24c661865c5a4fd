"""ml.release.declaration.desired_state and project: what is declared, and for whom."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ml.core.errors import UserError
from ml.release.declaration import desired_state, projects, release_file
from ml.release.declaration.release_file import ReleaseEntry, Strategy
from tests.local import BACKEND
from tests.release import tiny

DECLARED = ReleaseEntry(
    "tiny", "10", "sha256:" + "1" * 64, "e1" * 32, "d1" * 32, "because: it is 'better'\nby far"
)


def test_what_is_declared_is_read_back() -> None:
    """Versions stay text, and a reason may hold anything."""
    path = desired_state.declare(BACKEND, "tiny", "local", DECLARED)
    assert desired_state.read(BACKEND, "tiny", "local") == DECLARED
    assert yaml.safe_load(path.read_text())["environments"]["local"]["version"] == "10"
    assert "tiny" in desired_state.projects(BACKEND)


def test_nothing_declared_is_none() -> None:
    """No file, or no entry for the environment."""
    assert desired_state.read(BACKEND, "tiny", "local") is None
    desired_state.declare(BACKEND, "tiny", "local", DECLARED)
    assert desired_state.read(BACKEND, "tiny", "prod") is None


def test_a_new_file_has_every_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that there are, whichever a fork has."""
    made = tiny.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    (made.folder / "release.yml").unlink()
    first, *others = desired_state.TRACKED
    path = desired_state.declare(BACKEND, "tiny", first, DECLARED)
    assert list(yaml.safe_load(path.read_text())["environments"]) == list(desired_state.TRACKED)
    assert all(desired_state.read(BACKEND, "tiny", name) is None for name in others)


def test_a_local_file_that_cannot_be_read_is_named() -> None:
    """The error has the file and the line; the tracked environments are declared elsewhere."""
    path = desired_state.declare(BACKEND, "tiny", "local", DECLARED)
    for text, line in (("schema_version: 1\nenvironments: {prod: {}}\n", 2), ("{", 2), ("- 1", 1)):
        path.write_text(text)
        with pytest.raises(UserError) as raised:
            desired_state.read(BACKEND, "tiny", "local")
        place = raised.value.problems[0].place
        assert place and place.path == str(path) and place.line == line


def test_a_tracked_environment_is_declared_in_the_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the project's own file, beside what else stands in it; `local` is not touched by it."""
    made = tiny.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = (made.folder / "release.yml").read_text()
    path = desired_state.declare(BACKEND, "tiny", "prod", DECLARED)
    assert path == made.folder / "release.yml"
    assert desired_state.read(BACKEND, "tiny", "prod") == DECLARED
    assert (
        desired_state.read(BACKEND, "tiny", "dev") is None
        and desired_state.read(BACKEND, "tiny", "local") is None
    )
    assert [line for line in before.splitlines() if line not in path.read_text()] == []
    assert desired_state.strategy(BACKEND, "tiny", "prod").requests == (20, 20, 20)
    assert desired_state.projects(BACKEND) == ["tiny"]
    path.unlink()
    assert desired_state.strategy(BACKEND, "tiny", "prod") == Strategy()
    desired_state.declare(BACKEND, "tiny", "dev", DECLARED)
    assert desired_state.read(BACKEND, "tiny", "dev") == DECLARED and release_file.check(path)


def test_a_file_with_anchors_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The person is told what to write by hand."""
    made = tiny.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    path = made.folder / "release.yml"
    text = "schema_version: 1\nenvironments:\n  dev: &one {traffic: {mirror: 5}}\n  prod: *one\n"
    path.write_text(text)
    with pytest.raises(UserError) as raised:
        desired_state.declare(BACKEND, "tiny", "prod", DECLARED)
    problem = raised.value.problems[0]
    assert problem.code == "cannot-edit" and "version: 10" in problem.hint
    assert path.read_text() == text


def test_only_known_environments() -> None:
    """A misspelt one is refused with the nearest."""
    for name in desired_state.ENVIRONMENTS:
        assert desired_state.check_environment(name) == name
    with pytest.raises(UserError) as raised:
        desired_state.check_environment("stagin")
    assert "staging" in raised.value.problems[0].hint


def test_projects_are_found_by_either_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder's name or the endpoint's; anything else is refused with what is near."""
    made = tiny.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert projects.find(BACKEND.root, "tiny").folder == made.folder
    with pytest.raises(UserError) as raised:
        projects.find(BACKEND.root, "tinny")
    assert "tiny" in raised.value.problems[0].hint
    (made.folder / "gates.yml").unlink()
    with pytest.raises(UserError, match=r"no-such-project.*\n.*ml/projects/README.md describes"):
        projects.find(BACKEND.root, "tiny")


def test_sample_requests_are_demanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None, or one that is no JSON object, is told with its line."""
    made = tiny.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    found = projects.find(BACKEND.root, "tiny")
    assert [sample["question"] for sample in found.samples()] == ["how?", "why not?"]
    path = made.folder / "endpoint" / "requests.jsonl"
    for text in ("", '{"question": "how?"}\n[1]\n', '{"question": \n'):
        path.write_text(text)
        with pytest.raises(UserError):
            found.samples()
    path.unlink()
    with pytest.raises(UserError):
        found.samples()
