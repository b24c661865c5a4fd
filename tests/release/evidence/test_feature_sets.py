"""The feature sets that a project declared in the code of a training."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ml.core import home, trees
from ml.features.definition import read
from ml.release.evidence.feature_sets import declared
from policies.promotion.evidence import Lineage
from tests.features.conftest import SET, write_set
from tests.github.events import git

FEATURES = Path("ml/projects/tiny/features")


@pytest.fixture(name="repository")
def _repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one feature set and its entity."""
    root = tmp_path / "repository"
    write_set(root / FEATURES)
    (root / FEATURES / "account.yml").write_text("name: account\n")
    (root / "pyproject.toml").write_text("")
    monkeypatch.chdir(root)
    monkeypatch.setenv("MLOPS_HOME", str(tmp_path / "home"))
    return root


def committed(root: Path) -> Lineage:
    """The lineage of a training by a commit with all files."""
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "one")):
        git(root, *words)
    commit = trees.commit(root)
    assert commit is not None
    return Lineage(commit=commit.id, dirty=False)


def test_the_commit_of_the_training_counts(repository: Path) -> None:
    """Later changes of the work tree do not; a set is not an entity."""
    lineage = committed(repository)
    definition = read(repository / FEATURES / "account_payments.yml")
    expected = {"account_payments": ("1", definition.digest)}
    assert declared(repository, "tiny", lineage) == expected
    path = repository / FEATURES / "account_payments.yml"
    path.write_text(SET.replace('version: "1"', 'version: "2"'))
    assert declared(repository, "tiny", lineage) == expected
    assert declared(repository, "other", lineage) == {}


def test_uncommitted_code_is_that_of_the_snapshot(repository: Path) -> None:
    """Of a snapshot that is whole; without one, the work tree counts."""
    lineage = replace(committed(repository), dirty=True)
    copy = home.snapshots() / "copy"
    path = copy / FEATURES / "account_payments.yml"
    shutil.copytree(repository / FEATURES, copy / FEATURES)
    path.write_text(SET.replace('version: "1"', 'version: "2"'))
    digest = trees.digest(trees.files(copy))
    copy.rename(copy.with_name(digest.removeprefix(trees.DIGEST_PREFIX)))
    for snapshot, version in ((digest, "2"), ("sha256:0", "1"), (None, "1")):
        sets = declared(repository, "tiny", replace(lineage, code_snapshot=snapshot))
        assert sets["account_payments"][0] == version


def test_a_definition_that_cannot_be_read_has_no_version(repository: Path) -> None:
    """So no training set has it."""
    (repository / FEATURES / "account_payments/FeatureSetSpec.yaml").unlink()
    assert declared(repository, "tiny", committed(repository)) == {"account_payments": ("", "")}
