"""The registry of this machine, with the real MLflow on SQLite."""

from __future__ import annotations

import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

from ml.core import home
from ml.core.errors import UserError
from ml.release.versions import store
from ml.serving.scoring.manifest import folder_digest, verify
from tests.local import BACKEND
from tests.release.tiny import model_folder
from tests.stand_ins.memory import MemoryRegistry


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: writes fail as they do on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def full_database() -> Iterator[None]:
    """SQLite may not add a page: it answers SQLITE_FULL, as on a full disk."""

    def hold(connection: sqlite3.Connection, *_: object) -> None:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")

    def free(connection: sqlite3.Connection, *_: object) -> None:
        connection.execute("PRAGMA max_page_count = 4294967294")

    for name, listener in (("checkout", hold), ("checkin", free)):
        event.listen(Engine, name, listener)
    try:
        yield
    finally:
        for name, listener in (("checkout", hold), ("checkin", free)):
            event.remove(Engine, name, listener)


def files() -> dict[str, bytes]:
    """Every file of the model store."""
    folder = home.home() / "models"
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_model_is_stored_once_by_its_content(tmp_path: Path) -> None:
    """The same content has one place, whatever folder it comes from."""
    first = store(model_folder(tmp_path / "a"))
    before = files()
    assert store(model_folder(tmp_path / "b")) == first and files() == before
    other = store(model_folder(tmp_path / "c", skill=0.9))
    assert other != first
    version = BACKEND.registry.register("tiny", "tiny", other, "run")
    assert verify(version.folder, other) == folder_digest(tmp_path / "c")


def test_versions_compare_as_numbers(tmp_path: Path) -> None:
    """10 comes after 9, and after 2."""
    registry = BACKEND.registry
    for number in range(11):
        digest = f"sha256:{number:064}"
        registry.register("tiny", "tiny", digest, "run")
    assert [one.version for one in registry.versions("tiny")] == [str(n) for n in range(1, 12)]


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize(
    ("promoted", "left"),
    [("", ""), ("1", "1"), ("123", "123"), ("1232", "12"), ("12321", "1"), ("1213", "13")],
)
def test_going_back_takes_away_what_came_after(
    memory: bool, promoted: str, left: str, tmp_path: Path
) -> None:
    """A version that was gone back from has not served there any more; other places are apart."""
    registry = MemoryRegistry() if memory else BACKEND.registry
    versions = [registry.register("tiny", "tiny", f"sha256:{each}", "run") for each in "123"]
    registry.promote(versions[2], "dev", "code")
    for number in promoted:
        registry.promote(versions[int(number) - 1], "local", "code")
    found = registry.versions("tiny")
    assert "".join(each.version for each in found if "local" in each.served_in("code")) == left
    assert found[2].served_in("code")[0] == "dev" and not found[0].served_in("other")


def test_a_version_that_is_not_there_is_refused() -> None:
    """The error lists those that are."""
    registry = BACKEND.registry
    registry.register("tiny", "tiny", "sha256:1", "run")
    with pytest.raises(UserError) as raised:
        registry.find("tiny", "2")
    assert "one of: 1" in raised.value.problems[0].expected


@pytest.mark.parametrize("file", ["model.txt", "skill.json", "manifest.json"])
@pytest.mark.attack("A bit of a model is flipped before it is registered")
def test_a_flipped_bit_is_not_stored(file: str, tmp_path: Path) -> None:
    """A model that changed since it was written is refused before it is copied."""
    folder = model_folder(tmp_path / "model")
    content = bytearray((folder / file).read_bytes())
    content[-3] ^= 1
    (folder / file).write_bytes(bytes(content))
    with pytest.raises(UserError) as raised:
        store(folder)
    assert raised.value.problems[0].code == "model-corrupt" and not files()


def test_a_stored_model_that_was_corrupted_is_not_taken_for_the_new_one(tmp_path: Path) -> None:
    """The place is there, its content is not: refused, not served."""
    folder = model_folder(tmp_path / "model")
    digest = store(folder)
    copy = home.home() / "models" / digest.removeprefix("sha256:") / "skill.json"
    copy.write_text('{"skill": 1.0}')
    with pytest.raises(UserError) as raised:
        store(folder)
    assert raised.value.problems[0].code == "model-corrupt"


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    """And one without a manifest too."""
    with pytest.raises(UserError):
        store(tmp_path / "nowhere")
    with pytest.raises(UserError):
        store(tmp_path)


@pytest.mark.attack("The disk is full while a model is registered")
def test_a_full_disk_leaves_the_store_and_the_registry_as_they_were(tmp_path: Path) -> None:
    """Copying fails with a clear error and nothing half done; with room it works."""
    registry = BACKEND.registry
    kept = store(model_folder(tmp_path / "old", skill=0.7))
    registry.register("tiny", "tiny", kept, "run")
    before, versions = files(), registry.versions("tiny")
    folder = model_folder(tmp_path / "new")
    with full_disk(1000), pytest.raises(UserError) as raised:
        store(folder)
    problem = raised.value.problems[0]
    assert problem.code == "disk-full" and problem.hint
    assert files() == before and registry.versions("tiny") == versions
    assert not list((home.home() / "models").glob(".unfinished-*"))
    assert store(folder)


def test_a_full_disk_under_the_registry_is_told(tmp_path: Path) -> None:
    """SQLite has no room: the error is the same, and the versions are as they were."""
    registry = BACKEND.registry
    registry.register("tiny", "tiny", "sha256:1", "run")
    with closing(sqlite3.connect(home.database())) as connection:
        connection.execute("VACUUM")  # MLflow's migrations leave free pages
    with full_database(), pytest.raises(UserError) as raised:
        registry.register("tiny", "tiny", "sha256:" + "2" * 5000, "run")
    assert raised.value.problems[0].code == "disk-full", raised.value
    assert [one.digest for one in registry.versions("tiny")] == ["sha256:1"]
    assert registry.register("tiny", "tiny", "sha256:2", "run").version == "2"
