"""Checkpoints: what is in them, what is refused of them, and what a failed write leaves."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from ml.toolkit.torch import checkpoints, snapshot, stored
from ml.toolkit.torch.checkpoints import CheckpointError, Checkpoints
from ml.toolkit.torch.distributed import distributed
from ml.toolkit.torch.generations import Generation
from ml.toolkit.torch.preemption import PreemptionMonitor
from tests.shared import once
from tests.toolkit.torch import ranks
from tests.toolkit.torch.training import Settings, differing, network, train, write_data

SETTINGS = Settings(epochs=1, every=4)
HALF = "step-00000012"


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of 16 steps by one process: the folder `whole`, its data, and one by two."""

    def fill(folder: Path) -> None:
        data = write_data(folder / "data")
        ranks.run(train, 1, folder / "logs", folder / "whole", data, SETTINGS)
        ranks.run(train, 2, folder / "logs-2", folder / "by-two", data, SETTINGS)

    return once(tmp_path_factory, "torch-trained", fill)


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    """A copy of the training's folder, to damage; its newest checkpoints are steps 12 and 16."""
    return Path(shutil.copytree(trained / "whole", tmp_path / "training"))


def sealed(folder: Path, **changes: Any) -> None:
    """Write the manifest anew over the files as they are now."""
    manifest = stored.read_manifest(folder)
    files = {name: stored.digest(folder / name) for name in manifest.files}
    stored.write_manifest(folder, replace(manifest, **{"files": files, **changes}))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def older(path: Path) -> None:
    sealed(path.parent, format=0)


DAMAGES: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "truncated": (cut, "__0_0.distcp", "__0_0.distcp was changed or cut short"),
    "flipped": (flip, "__0_0.distcp", "__0_0.distcp was changed or cut short"),
    "flipped metadata": (flip, ".metadata", ".metadata was changed or cut short"),
    "flipped manifest": (flip, "manifest.json", "manifest.json"),
    "empty manifest": (lambda path: path.write_text(""), "manifest.json", "cannot be read"),
    "list for a manifest": (lambda path: path.write_text("[1]"), "manifest.json", "cannot be read"),
    "missing shard": (Path.unlink, "__0_0.distcp", "__0_0.distcp is missing"),
    "missing state": (Path.unlink, "state.json", "state.json is missing"),
    "never finished": (Path.unlink, "manifest.json", "writing it was interrupted"),
    "older format": (older, "manifest.json", "it has the format 0, this code reads 1"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_said_and_the_one_before_taken(
    trained: Path, copied: Path, damage: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The training goes on from the one before, to the same weights; nothing is deleted."""
    harm, file, sentence = DAMAGES[damage]
    harm(copied / "step-00000016" / file)
    train(copied, trained / "data", SETTINGS)
    said = capfd.readouterr().err
    assert "skipped step-00000016: " in said and sentence in said, said
    assert f"resuming from {HALF}" in said
    assert differing(copied, trained / "whole") == []
    assert (copied / "step-00000016.set-aside-1").is_dir()


@pytest.mark.parametrize("name", ["os.system", "torch.load", "torch.distributed.checkpoint.sys"])
def test_a_metadata_that_would_run_code_is_not_opened(
    copied: Path, trained: Path, tmp_path: Path, name: str
) -> None:
    """Whoever forged it could forge the digests too: DCP's reader would run it."""
    module, _, function = name.rpartition(".")

    class Evil:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return getattr(__import__(module, fromlist=["x"]), function), (str(tmp_path / "ran"),)

    evil = copied / "step-00000016"
    call = f"c{module}\n{function}\n(S'touch {tmp_path}/ran'\ntR.".encode()
    (evil / ".metadata").write_bytes(call)
    sealed(evil)
    with pytest.raises(stored.Unusable, match=f"names {name}"):
        stored.Reader(evil).read_metadata()
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_of_another_model_is_refused(trained: Path, copied: Path) -> None:
    """The folder is another training's: nothing is skipped, nothing begun, nothing changed."""
    before = sorted(copied.glob("step-*/*"))
    with pytest.raises(CheckpointError, match=r"error\[checkpoint-mismatch\]") as refused:
        train(copied, trained / "data", replace(SETTINGS, width=32))
    assert "model/0.bias is [64] there and [32] here" in " ".join(
        str(refused.value).replace("'torch.float32'", "").replace(", ]", "]").split()
    ) or "model/0.bias" in str(refused.value)
    assert "use a new folder" in str(refused.value)
    assert sorted(copied.glob("step-*/*")) == before


def test_what_a_kill_left_is_swept_and_everything_damaged_begins_anew(
    trained: Path, copied: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for folder in copied.glob("step-*"):
        cut(folder / ".metadata")
    left = Generation.claim(copied).path / "step-00000099"
    left.mkdir()
    train(copied, trained / "data", SETTINGS)
    assert capfd.readouterr().err.count("skipped") == 2
    assert not left.exists()
    assert differing(copied, trained / "whole") == []


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_the_number_of_processes_may_change(
    trained: Path, tmp_path: Path, before: int, after: int
) -> None:
    """The steps have the same rows; random numbers begin anew, which is said."""
    folder = tmp_path / "training"
    shutil.copytree(trained / ("whole" if before == 1 else "by-two"), folder)
    (folder / "final.pt").unlink()
    settings = replace(SETTINGS, epochs=2)
    done = ranks.run(train, after, tmp_path / "logs", folder, trained / "data", settings)
    assert f"{before} processes wrote step-00000016, this job has {after}" in done.text(0)
    assert stored.read_manifest(folder / "step-00000032").processes == after
    losses = [
        float.fromhex(line.split()[1]) for line in done.text(0).splitlines() if line[0] in "123"
    ]
    assert len(losses) == 16 and sum(losses[-8:]) / 8 < 0.6


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 1), (1, 2)])
def test_a_sharded_model_goes_on_with_any_number(
    trained: Path, tmp_path: Path, before: int, after: int
) -> None:
    """FSDP: weights and optimiser states are cut anew; interrupted alike it is alike."""
    settings = replace(SETTINGS, strategy="fsdp")
    data = trained / "data"
    run = lambda size, folder, **changes: ranks.run(  # noqa: E731
        train,
        size,
        tmp_path / f"logs-{folder}",
        tmp_path / folder,
        data,
        replace(settings, **changes),
    )
    run(before, "a")
    first = torch.load(tmp_path / "a" / "final.pt")
    again = run(after, "a")  # nothing left to do: what is loaded is what was saved
    assert "resuming from step-00000016" in again.text(0)
    assert all(
        torch.equal(first[name], of) for name, of in torch.load(tmp_path / "a/final.pt").items()
    )
    if before == after:
        run(before, "whole", epochs=2)
        run(after, "a", epochs=2)
        assert differing(tmp_path / "a", tmp_path / "whole") == []


@pytest.mark.parametrize("size", [1, 2])
def test_a_full_disk_is_a_clear_error_and_loses_nothing(
    trained: Path, tmp_path: Path, size: int
) -> None:
    """No file may grow beyond what fits: the error names it, the one before stays, no rest."""
    folder = tmp_path / "training"
    shutil.copytree(trained / ("whole" if size == 1 else "by-two"), folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = ranks.start(on_a_full_disk, size, tmp_path / "logs", folder, trained / "data")
    assert set(done.wait()) == {1}
    assert "error[disk-full]" in done.text(0) and "free space" in done.text(0), done.text()
    assert "Traceback" not in done.text(), done.text()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def on_a_full_disk(folder: Path, data: Path) -> None:
    """Go on for another epoch where a file has at most 20 kB."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    train(folder, data, replace(SETTINGS, epochs=2))


def test_the_last_ones_stay(tmp_path: Path) -> None:
    """Two of four, also where one has no finite metric."""
    with (
        distributed() as world,
        Checkpoints(tmp_path, world, {"model": nn.Linear(2, 2)}, keep_last=2, events=None) as kept,
    ):
        for step, metric in enumerate((0.1, 0.9, float("nan"), 0.5), start=1):
            kept.save(step, metric)
    assert {int(path.name[5:]) for path in tmp_path.glob("step-*")} == {3, 4}


def test_going_back_sets_later_ones_aside(
    trained: Path, copied: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As after a divergence, so that a restart does not take it up again."""
    with (
        distributed() as world,
        Checkpoints(copied, world, {"model": network()}, events=None) as kept,
        pytest.raises(CheckpointError, match="this training saves model"),
    ):
        kept.go_back(before=16)
    assert not (copied / "step-00000016").exists()


def test_where_nothing_is_to_go_back_to_nothing_is_set_aside(copied: Path) -> None:
    """It may be all that there is."""
    with (
        distributed() as world,
        Checkpoints(copied, world, {"model": network()}, events=None) as kept,
    ):
        assert kept.go_back(before=12) is None
    assert {path.name for path in copied.glob("step-*")} == {HALF, "step-00000016"}


@pytest.mark.parametrize("kind", ["other settings", "other groups"])
def test_a_checkpoint_of_another_optimiser_is_refused(tmp_path: Path, kind: str) -> None:
    with distributed() as world:
        model = nn.Linear(2, 2)
        state: dict[str, Any] = {"model": model, "optimiser": torch.optim.Adam(model.parameters())}
        with Checkpoints(tmp_path, world, state, events=None) as kept:
            kept.save(1)
        state["optimiser"] = (
            torch.optim.SGD(model.parameters(), lr=0.1)
            if kind == "other settings"
            else torch.optim.Adam([model.weight])
        )
        with (
            Checkpoints(tmp_path, world, state, events=None) as kept,
            pytest.raises(CheckpointError, match="optimiser was saved by another optimiser than"),
        ):
            kept.restore()


def test_a_writer_that_does_not_say_why_is_asked_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch's own, whose error is `unexpected pos` where the disk is full."""
    error = RuntimeError("unexpected pos 64 vs 0")
    assert checkpoints._describe_failure(error, tmp_path)[0] == "checkpoint-failed"
    full = type(shutil.disk_usage(tmp_path))(10**9, 10**9, 0)
    monkeypatch.setattr("shutil.disk_usage", lambda _: full)
    assert checkpoints._describe_failure(error, tmp_path)[0] == "disk-full"


def test_checkpoints_leave_no_group_behind(tmp_path: Path) -> None:
    with distributed() as world:
        before = len(torch.distributed.distributed_c10d._world.pg_map)
        with Checkpoints(tmp_path, world, {"model": nn.Linear(1, 1)}, events=None) as kept:
            kept.save(1)
        assert len(torch.distributed.distributed_c10d._world.pg_map) == before


def test_a_snapshot_is_of_its_moment(tmp_path: Path) -> None:
    """A forward pass after the save changes buffers; the optimiser's step waits for the copy."""
    with distributed(seed=1) as world:
        model = nn.BatchNorm1d(3)
        optimiser = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
        with Checkpoints(
            tmp_path, world, {"model": model, "optimiser": optimiser}, every_steps=1, events=None
        ) as kept:
            kept._stager = Slow()
            for step in range(1, 4):
                model(torch.randn(8, 3)).square().sum().backward()
                optimiser.step()
                then = {name: of.clone() for name, of in model.state_dict().items()}
                kept.after_step(step)
            model(torch.randn(8, 3)).square().sum().backward()
            optimiser.step()
            kept.finish()
            other = nn.BatchNorm1d(3)
            momentum = torch.optim.SGD(other.parameters(), lr=1.0, momentum=0.9)
        with Checkpoints(
            tmp_path, world, {"model": other, "optimiser": momentum}, events=None
        ) as kept:
            assert kept.restore() == 3
        assert all(torch.equal(then[name], of) for name, of in other.state_dict().items())
        assert not torch.equal(then["weight"], model.weight)
        assert not torch.equal(then["running_mean"], model.running_mean)


class Slow(snapshot.Stager):
    """Copies late, as a large model's copy does."""

    def _rest(self, *arguments: Any) -> Any:
        threading.Event().wait(0.1)
        return super()._rest(*arguments)


def test_a_snapshot_without_an_optimiser_is_of_its_moment_too(tmp_path: Path) -> None:
    """No hook knows when weights change: it is copied before `after_step` returns."""
    with distributed(seed=1) as world:
        model = nn.Linear(300, 300)
        with Checkpoints(tmp_path, world, {"model": model}, every_steps=1, events=None) as kept:
            kept._stager = Slow()
            then = model.weight.detach().clone()
            kept.after_step(1)
            with torch.no_grad():
                model.weight.fill_(9.0)
            assert kept.restore() == 1
            assert torch.equal(model.weight, then)


def test_a_kill_between_two_names_loses_no_checkpoint(tmp_path: Path) -> None:
    """A step that is saved again with its metric has another name for a moment."""
    with distributed(seed=1, timeout_s=7) as world:
        state = {"model": nn.Linear(2, 2)}
        with Checkpoints(tmp_path, world, state, events=None, keep_last=1) as kept:
            kept.save(3, np.float32(0.5))
            backend = kept._writing._get_backend(torch.device("cpu"))
            assert backend.options._timeout.total_seconds() == 7
        killed = Generation.claim(tmp_path)
        killed.withdraw("step-00000003")
        (killed.path / "step-00000004").mkdir()
        with Checkpoints(tmp_path, world, state, events=None) as kept:
            assert kept.restore() == 3
        assert [of.name for of in tmp_path.glob("step-*")] == ["step-00000003"]


def test_a_folder_that_processes_do_not_share_is_refused(tmp_path: Path) -> None:
    """Each would write a part of a checkpoint that is whole nowhere."""
    training = ranks.start(in_separate_folders, 2, tmp_path / "logs", tmp_path)
    assert training.wait() == [1, 1]
    for rank in (0, 1):
        assert "error[folder-not-shared]: process 1 does not see" in training.text(rank)
    assert not [*(tmp_path / "0").glob("step-*")]


def in_separate_folders(folder: Path) -> None:
    with (
        distributed() as world,
        Checkpoints(folder / str(world.rank), world, {"model": nn.Linear(1, 1)}, events=None),
    ):
        pass


def test_what_cannot_be_kept_is_named(tmp_path: Path) -> None:
    class Part:
        def state_dict(self) -> dict[str, object]:
            return {"a": [1, {"f": len}]}

    with (
        distributed() as world,
        Checkpoints(tmp_path, world, {"part": Part()}, events=None) as kept,
        pytest.raises(CheckpointError, match="part/a/1/f is a builtin_function"),
    ):
        kept.save(1)


def test_any_state_survives_as_json() -> None:
    """Keys that are no texts, tuples, infinities: as they were."""
    value = {
        "a": (1, 2.5, None),
        3: [float("inf"), True],
        "$x": {"y": torch.arange(3)},
    }
    tensors: dict[str, torch.Tensor] = {}
    facts = json.loads(json.dumps(snapshot.pack(value, "v", tensors)))
    back = snapshot.unpack(facts, tensors)
    assert back["a"] == value["a"] and back[3] == value[3]
    assert torch.equal(back["$x"]["y"], torch.arange(3))
    assert sorted(snapshot.names(facts)) == sorted(tensors)


def test_sigterm_to_one_of_two_saves_in_both(trained: Path, tmp_path: Path) -> None:
    """No step is lost: both leave after the same one, with exit code 143, and go on from it."""
    settings = Settings(epochs=1, every=1000, pause_s=0.05)
    folder, data = tmp_path / "training", trained / "data"
    training = ranks.start(train, 2, tmp_path / "logs", folder, data, settings)
    ranks.wait_for(lambda: training.text(0).count("\n") >= 4)
    training.signal(signal.SIGTERM, 1)
    assert training.wait() == [143, 143], training.text()
    steps = [int(line.split()[0]) for line in training.text(0).splitlines() if line[0].isdigit()]
    assert f"step {steps[-1]}: received SIGTERM" in training.text(0)
    ranks.run(train, 2, tmp_path / "logs", folder, data, replace(settings, pause_s=0.0))
    assert differing(folder, trained / "by-two") == []


def test_an_event_of_azure_saves_and_goes_on(tmp_path: Path) -> None:
    """A stand-in at another address answers as the documentation says; Azure was not asked."""
    events: list[dict[str, str]] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.headers["Metadata"] == "true"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"DocumentIncarnation": 1, "Events": events}).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/"
    try:
        with (
            distributed() as world,
            Checkpoints(tmp_path, world, {"model": nn.Linear(1, 1)}, events=None) as kept,
        ):
            with PreemptionMonitor(url, every_s=0.02) as kept._preemption:
                kept.after_step(1)
                assert checkpoints._steps(tmp_path) == []
                events.append({"EventType": "Reboot"})
                events.append({"EventType": "Preempt"})
                ranks.wait_for(lambda: bool(kept._preemption.noticed))
                kept.after_step(2)
                kept.finish()
                assert checkpoints._steps(tmp_path) == [2]
                kept.after_step(3)
            kept.finish()
        assert checkpoints._steps(tmp_path) == [2]
    finally:
        server.shutdown()
        server.server_close()


def test_where_nobody_answers_the_events_are_not_asked_for_ever() -> None:
    with PreemptionMonitor("http://127.0.0.1:9/", every_s=0.01) as preemption:
        ranks.wait_for(lambda: all(of.name != "scheduled events" for of in threading.enumerate()))
        assert not preemption.shutting_down and not preemption.noticed


def test_a_newer_start_ends_the_older_one(tmp_path: Path) -> None:
    """Two worlds of one write the same folder: the older one saves, sets aside and forgets nothing
    any more, and what it had saved before stays.
    """
    with distributed() as world:
        older = nn.Linear(2, 2)
        with Checkpoints(tmp_path, world, {"model": older}, events=None, keep_last=1) as first:
            first.save(1)
            with Checkpoints(tmp_path, world, {"model": nn.Linear(2, 2)}, events=None) as second:
                assert second.restore() == 1
                first._begin(9, None)
                with pytest.raises(CheckpointError, match=r"error\[checkpoint-generation\]") as end:
                    first.finish()
                assert "generation 2 of the training has begun" in str(end.value)
                second.save(2)
                with pytest.raises(CheckpointError, match=r"error\[checkpoint-generation\]"):
                    first.go_back(2)
                assert {path.name for path in tmp_path.glob("step-*")} == {
                    "step-00000001",
                    "step-00000002",
                }
            with Checkpoints(tmp_path, world, {"model": older}, events=None) as third:
                assert third.restore() == 2
