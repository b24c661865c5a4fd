"""ml.release.desired and project: what is declared, and for whom."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ml.release import desired, project
from ml.release.desired import Declared
from ml.specs.problems import Refused
from tests.release import tiny

DECLARED = Declared("tiny", "10", "sha256:1", "e1", "d1", "because: it is 'better'\nby far")


def test_what_is_declared_is_read_back() -> None:
    """Versions stay text, and a reason may hold anything."""
    path = desired.declare("tiny", "local", DECLARED)
    assert desired.read("tiny", "local") == DECLARED
    assert yaml.safe_load(path.read_text())["environments"]["local"]["version"] == "10"
    assert desired.projects() == ["tiny"]


def test_nothing_declared_is_none() -> None:
    """No file, or no entry for the environment."""
    assert desired.read("tiny", "local") is None
    desired.declare("tiny", "local", DECLARED)
    assert desired.read("tiny", "prod") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- 1",
        "{",
        "schema_version: 1",
        "schema_version: 2\nenvironments: {local: {}}",
        "schema_version: 1\nenvironments: {local: {model: tiny}}",
    ],
)
def test_a_release_file_that_cannot_be_read_is_named(text: str) -> None:
    """The error has the file's name and the way out."""
    path = desired.declare("tiny", "local", DECLARED)
    path.write_text(text)
    with pytest.raises(Refused) as raised:
        desired.read("tiny", "local")
    problem = raised.value.problems[0]
    assert problem.code == "release-file" and str(path) in str(problem)


def test_only_known_environments() -> None:
    """`local` is, `prod` comes with the Azure backend."""
    assert desired.check_environment("local") == "local"
    with pytest.raises(Refused):
        desired.check_environment("prod")


def test_projects_are_found_by_either_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder's name or the endpoint's; anything else is refused with what is near."""
    made = tiny.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert project.find("tiny").folder == made.folder
    with pytest.raises(Refused) as raised:
        project.find("tinny")
    assert "tiny" in raised.value.problems[0].hint


def test_sample_requests_are_demanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None, or one that is no JSON object, is told with its line."""
    made = tiny.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    found = project.find("tiny")
    assert [sample["question"] for sample in found.samples()] == ["how?", "why not?"]
    path = made.folder / "endpoint" / "requests.jsonl"
    for text in ("", '{"question": "how?"}\n[1]\n', '{"question": \n'):
        path.write_text(text)
        with pytest.raises(Refused):
            found.samples()
    path.unlink()
    with pytest.raises(Refused):
        found.samples()
