"""Generations: a writer that was superseded changes nothing, wherever it was stopped."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from ml.toolkit.torch.generations import FOLDER, Generation, Superseded
from tests import forks


def prepared(generation: Generation, name: str, text: str) -> Path:
    """A folder with one file, ready to be published."""
    path = generation.path / name
    path.mkdir(parents=True)
    (path / "file").write_text(text)
    return path


def published(folder: Path) -> dict[str, str]:
    """Name and text of all that readers of the folder see."""
    return {path.name: (path / "file").read_text() for path in folder.glob("step-*")}


def test_numbers_rise(tmp_path: Path) -> None:
    """Each claim is newer than all before it, and only the newest has a folder."""
    claims = [Generation.claim(tmp_path).number for _ in range(12)]
    assert claims == list(range(1, 13))
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == ["00000012"]


def test_the_only_writer_publishes_replaces_and_removes(tmp_path: Path) -> None:
    writer = Generation.claim(tmp_path)
    writer.publish(prepared(writer, "step-1", "old"), "step-1")
    writer.publish(prepared(writer, "step-1", "new"), "step-1")
    writer.publish(prepared(writer, "step-2", "next"), "step-2")
    writer.remove("step-2")
    assert published(tmp_path) == {"step-1": "new"}
    assert [*writer.path.iterdir()] == []


CHANGES: dict[str, Callable[[Generation, Path], Any]] = {
    "publish": lambda of, ready: of.publish(ready, "step-2"),
    "replace": lambda of, ready: of.publish(ready, "step-1"),
    "withdraw": lambda of, _: of.withdraw("step-1"),
    "remove": lambda of, _: of.remove("step-1"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("writes_again", [False, True])
def test_an_older_writer_is_rejected(tmp_path: Path, change: str, writes_again: bool) -> None:
    """Whatever it had prepared, and also where a write makes its folder again."""
    older = Generation.claim(tmp_path)
    older.publish(prepared(older, "step-1", "kept"), "step-1")
    ready = prepared(older, "ready", "late")
    newer = Generation.claim(tmp_path)
    if writes_again:
        ready = prepared(older, "again", "late")
    with pytest.raises(Superseded, match=r"generation 2 .* this process is of generation 1"):
        CHANGES[change](older, ready)
    newer.publish(prepared(newer, "step-3", "mine"), "step-3")
    assert published(tmp_path) == {"step-1": "kept", "step-3": "mine"}


def test_a_writer_that_was_stopped_between_its_check_and_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer generation begins after the older one found itself the newest."""
    older = Generation.claim(tmp_path)
    older.publish(prepared(older, "step-1", "kept"), "step-1")
    ready, demand = prepared(older, "ready", "late"), Generation.demand

    def stopped(self: Generation) -> None:
        demand(self)
        if self.newest == 1:
            Generation.claim(tmp_path)

    monkeypatch.setattr(Generation, "demand", stopped)
    with pytest.raises(Superseded):
        older.publish(ready, "step-1")
    assert published(tmp_path) == {"step-1": "kept"}


def test_two_claims_have_two_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process makes the folder of a number between the listing and the mkdir."""
    mkdir, others = Path.mkdir, list[Generation]()

    def slow(self: Path, *args: Any, **options: Any) -> None:
        if self.name == "00000001" and not others:
            others.append(Generation(tmp_path, 1))
            mkdir(self)
        mkdir(self, *args, **options)

    monkeypatch.setattr(Path, "mkdir", slow)
    mine = Generation.claim(tmp_path)
    assert (others[0].number, mine.number) == (1, 2)
    with pytest.raises(Superseded):
        others[0].demand()


@pytest.mark.parametrize("change", range(1, 9))
def test_a_kill_before_any_change_loses_nothing(tmp_path: Path, change: int) -> None:
    """A writer that replaces a checkpoint, or begins, is killed before its n-th change: the next
    one finds the old or the new text, and nothing half.
    """
    writer = Generation.claim(tmp_path)
    writer.publish(prepared(writer, "step-1", "old"), "step-1")
    process: ForkServerProcess = forks.start(_replace, tmp_path, change)
    process.join(60)
    assert process.exitcode in (0, -signal.SIGKILL)
    next_one = Generation.claim(tmp_path)
    next_one.demand()
    assert published(tmp_path) in ({"step-1": "old"}, {"step-1": "new"})
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == [next_one.path.name]
    assert [*next_one.path.iterdir()] == []


def _replace(folder: Path, change: int) -> None:
    left = [change]

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir"):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    writer = Generation.claim(folder)
    writer.publish(prepared(writer, "step-1", "new"), "step-1")
