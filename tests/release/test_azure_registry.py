"""The model registry on Azure: versions that count, found by their digest, whole or not at all."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from azure.ai.ml.entities import Model
from azure.core.pipeline.transport import RequestsTransport

from ml.backends.azure import model_registry
from ml.backends.azure.backend import AzureBackend
from ml.backends.azure.workspace import REGISTRY, Workspace
from ml.backends.model_registry import model_folder
from ml.core import home
from ml.core.errors import UserError
from ml.serving.scoring.manifest import folder_digest, write_manifest
from tests.backends.conftest import azure
from tests.stand_ins.azure.running import StandIn

__all__ = ["azure"]


def model(folder: Path, text: str) -> str:
    """A model of that content on this machine; its digest."""
    folder.mkdir(parents=True)
    (folder / "model.txt").write_text(text)
    write_manifest(folder)
    digest = folder_digest(folder)
    model_folder(digest).parent.mkdir(parents=True, exist_ok=True)
    folder.rename(model_folder(digest))
    return digest


def kept(text: str) -> Path:
    """A folder of the home with that text, named by it."""
    folder = home.snapshots() / text
    folder.mkdir(parents=True)
    (folder / "code.py").write_text(text)
    return folder


def has(text: str) -> Any:
    return lambda folder: (folder / "code.py").read_text() == text


def test_versions_are_in_the_order_of_their_numbers() -> None:
    """Also beside a digit that is no number, which a person may register."""
    assert sorted(("10", "²", "9", "a"), key=model_registry._order) == ["a", "²", "9", "10"]


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("late", [True, False])
def test_machines_that_register_at_once_have_versions_of_their_own(
    shared: bool, late: bool, azure: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is lost and none is mixed up; the same content is one version, whoever is first.

    The other machine is faster right after the versions were listed, or once the files are there
    (`late`). Of a version that exists azure-ai-ml fails in a registry, and elsewhere the service.
    """
    name = azure.enter(monkeypatch)
    monkeypatch.setenv(REGISTRY, f"shared-{name}" if shared else "")
    one, two, three = (model(tmp_path / text, text) for text in ("one", "two", "three"))
    folders = [kept(text) for text in ("one", "two")]
    first, second = (AzureBackend().registry for _ in "ab")
    sent, between = RequestsTransport.send, list[Callable[[], object]]()
    pattern = re.compile(r"PUT .*/models/[^?]*" if late else r"GET .*/models/[^/]*/versions\?")

    def send(self: RequestsTransport, request: Any, **options: Any) -> Any:
        is_it = pattern.match(f"{request.method} {request.url}")
        if late and is_it and between:
            between.pop()()
        answer = sent(self, request, **options)
        if not late and is_it and between:
            between.pop()()
        return answer

    monkeypatch.setattr(RequestsTransport, "send", send)
    for mine, other, version in ((one, two, "2"), (three, three, "3")):
        between.append(partial(second.register, "tiny", "p", other, "other"))
        made = first.register("tiny", "p", mine, "run")
        assert (made.version, made.digest, between) == (version, mine, [])
    between.append(partial(second.keep_folder, "tiny", folders[1]))
    first.keep_folder("tiny", folders[0])
    assert not between
    assert [each.version for each in first.versions("tiny")] == ["1", "2", "3"]
    assert first._tagged("tiny--snapshots", "one") == ["2"]
    shutil.rmtree(home.models())
    shutil.rmtree(home.snapshots())
    for registered in second.versions("tiny"):
        second.download(registered)
        assert folder_digest(registered.folder) == registered.digest
    for folder in folders:
        second.download_folder("tiny", folder, has(folder.name))
        assert (folder / "code.py").read_text() == folder.name


@pytest.mark.slow
@pytest.mark.attack("files of a stranger in the registry, tagged with the digest of what serves")
def test_what_is_read_has_the_content_of_its_digest(
    azure: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is passed over where the true files are there too, else refused; nothing of it stays."""
    azure.enter(monkeypatch)
    registry = AzureBackend().registry
    digest = model(tmp_path / "model", "true")
    version = registry.register("tiny", "p", digest, "run")
    folder = kept("true")
    registry.keep_folder("tiny", folder)
    (model_folder(digest) / "model.txt").write_text("false")
    (folder / "code.py").write_text("false")
    for name, path in (("tiny", model_folder(digest)), ("tiny--snapshots", folder)):
        true = registry._models.get(name, "1")
        registry._models.create_or_update(
            Model(name=name, version="2", path=path, type="custom_model", tags=true.tags)
        )
    shutil.rmtree(home.models())
    shutil.rmtree(home.snapshots())
    registry.download(version)
    registry.download_folder("tiny", folder, has("true"))
    assert folder_digest(version.folder) == digest
    assert (folder / "code.py").read_text() == "true"

    shutil.rmtree(home.snapshots())
    with pytest.raises(UserError, match="registry-digest-mismatch"):
        registry.download_folder("tiny", folder, has("other"))
    assert not folder.exists() and not [*folder.parent.iterdir()]


@pytest.mark.attack("a stranger's tag in the registry names a folder of this machine")
def test_a_tag_names_no_folder() -> None:
    """What is no digest counts as none, and a version without one is not used."""
    up = "../../../../etc"
    for tags in ({}, {"digest": f"sha256:{up}", "evidence": up}, {"digest": up}, {"digest": "."}):
        version = model_registry._version(Model(name="tiny", version="7", path=".", tags=tags))
        assert (version.digest, version.evidence) == ("", "")
        with pytest.raises(UserError, match="registry-digest-mismatch"):
            model_registry.AzureRegistry(Workspace("s", "g", "w")).download(version)


@pytest.mark.slow
def test_a_model_may_have_two_dashes_in_its_name(
    azure: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is kept beside versions is no model."""
    azure.enter(monkeypatch)
    shared = AzureBackend().registry
    version = shared.register("night--shift", "p", model(tmp_path / "one", "one"), "run")
    shared.keep_folder("night--shift", kept("one"))
    shared.promote(version, "dev")
    champion = shared.champion("night--shift", "dev")
    assert champion is not None and champion.version == version.version
    assert [each.model for each in shared.versions()] == ["night--shift"]


@pytest.mark.slow
@pytest.mark.attack("another project's version in the registry has the digest of ours")
def test_a_version_of_another_project_is_not_ours(
    azure: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours has a number of its own, and is the same version when it is registered again."""
    azure.enter(monkeypatch)
    ours, digest = AzureBackend().registry, model(tmp_path / "one", "one")
    theirs = ours.register("tiny", "theirs", digest, "their run")
    mine = ours.register("tiny", "tiny", digest, "my run")
    assert (theirs.version, mine.version, mine.project) == ("1", "2", "tiny")
    assert ours.register("tiny", "tiny", digest, "another run").version == "2"


@pytest.mark.slow
@pytest.mark.attack("another team's model in the registry has the name of ours, and is champion")
def test_a_champion_of_another_repository_is_neither_taken_nor_overwritten(
    azure: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two forks with the same example, even with the same content; each has its own versions."""
    azure.enter(monkeypatch)
    theirs, ours = AzureBackend().registry, AzureBackend().registry
    theirs._repository = "other/models"
    digest = model(tmp_path / "one", "one")
    theirs.promote(theirs.register("tiny", "tiny", digest, "their run"), "dev", "code")
    assert (ours.champion("tiny", "dev"), ours.versions("tiny")) == (None, [])
    with pytest.raises(UserError, match="no-such-version"):
        ours.find("tiny", "1")
    mine = ours.register("tiny", "tiny", digest, "my run")
    assert (mine.version, mine.served) == ("2", frozenset())
    ours.promote(mine, "dev", "code")
    ours.demote("tiny", "dev")
    champion = theirs.champion("tiny", "dev")
    assert champion is not None and (champion.version, champion.run) == ("1", "their run")
    assert champion.served_in("code") == ("dev",) and ours.champion("tiny", "dev") is None
