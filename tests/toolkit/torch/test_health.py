"""Machines that are not fit, processes that stand still, and losses that are no numbers."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from ml.toolkit.torch import health, stored
from ml.toolkit.torch.checkpoints import Checkpoints
from ml.toolkit.torch.distributed import distributed
from ml.toolkit.torch.health import Diverged, Guard, Unhealthy, Watchdog, check_machines
from ml.toolkit.torch.updates import Update, Updates
from tests.toolkit.torch import ranks


def test_a_sound_machine_passes(tmp_path: Path) -> None:
    """What is looked at, on this one; the GPU's part was never run."""
    with distributed() as world:
        findings = {of.what: of for of in check_machines(world, tmp_path)}
    assert all(of.ok for of in findings.values())
    assert findings["matrix product"].value > 0 and findings["all-reduce"].value > 0
    assert "at least 1: ok" in findings["free disk"].text()
    assert list(tmp_path.iterdir()) == []


def test_a_slow_machine_and_a_full_disk_are_named(tmp_path: Path) -> None:
    """In every process, whichever has the fault."""
    done = ranks.start(with_a_slow_rank, 3, tmp_path / "logs", tmp_path)
    assert done.wait() == [1, 1, 1]
    for rank in range(3):
        assert "error[unhealthy]: 4 machine checks failed" in done.text(rank)
        assert "process 1: matrix product relative to the median 0.5" in done.text(rank)
    assert "Traceback" not in done.text()


def with_a_slow_rank(folder: Path) -> None:
    speed = lambda world: 1.0 if world.rank == 1 else 2.0  # noqa: E731
    pytest.MonkeyPatch().setattr(health, "_product_tflops", speed)
    pytest.MonkeyPatch().setattr(health, "FREE_GIGABYTES", 1e6)
    with distributed() as world:
        check_machines(world, folder)


def test_a_wrong_product_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_all_reduce", lambda world: -1.0)
    with distributed() as world, pytest.raises(Unhealthy, match=r"all-reduce -1 GB/s.*NOT OK"):
        check_machines(world, tmp_path)


def test_the_folder_of_a_first_start_is_made(tmp_path: Path) -> None:
    with distributed() as world:
        check_machines(world, tmp_path / "job" / "output")
    assert (tmp_path / "job" / "output").is_dir()


@pytest.mark.parametrize("kind", ["sleeps", "stopped"])
def test_the_watchdog_names_who_stands_still_and_where(tmp_path: Path, kind: str) -> None:
    """Process 1 sleeps in its own code, or the whole process is stopped; 0 waits in all-reduce."""
    training = ranks.start(hang, 2, tmp_path / "logs", kind)
    training.processes[0].join(60)
    training.signal(signal.SIGCONT)
    # Whoever ends first says it; that may be the one that sleeps, and the other loses it then.
    assert Watchdog.EXIT_CODE in training.wait(), training.text()
    said = training.text()
    assert "error[stalled]: no step for 2 s" in said
    if kind == "sleeps":
        assert "process 1 is blocked at" in said and "in load: time.sleep(600)" in said
        assert "process 0 stands" not in said
        assert "in load" in training.text(1)  # its stack
    else:
        assert "process 1: no heartbeat" in said


def hang(kind: str) -> None:
    with distributed(timeout_s=60) as world, Watchdog(world, 2.0) as watchdog:
        for step in range(1000):
            if world.rank == 1 and step == 3:
                if kind == "stopped":
                    os.kill(os.getpid(), signal.SIGSTOP)
                load()
            world.barrier()
            watchdog.beat()


def load() -> None:
    time.sleep(600)


def test_a_first_process_that_is_stopped_is_named_by_the_others(tmp_path: Path) -> None:
    """It has the store in which all tell where they are, and no longer answers."""
    training = ranks.start(first_stops, 2, tmp_path / "logs")
    training.processes[1].join(60)
    assert training.processes[1].exitcode == Watchdog.EXIT_CODE, training.text()
    training.signal(signal.SIGCONT)
    training.wait()
    assert "process 0: no heartbeat" in training.text(1)


def first_stops() -> None:
    with distributed(timeout_s=60) as world, Watchdog(world, 2.0) as watchdog:
        for step in range(1000):
            if world.first and step == 3:
                os.kill(os.getpid(), signal.SIGSTOP)
            world.barrier()
            watchdog.beat()


def test_code_that_keeps_the_lock_of_the_interpreter_is_ended(tmp_path: Path) -> None:
    """No thread of Python runs then, and no handler of a signal."""
    training = ranks.start(keeps_the_lock, 1, tmp_path / "logs")
    assert training.wait(60) == [1]
    assert "Timeout (0:00:02)!" in training.text() and "in keeps_the_lock" in training.text()


def keeps_the_lock() -> None:
    with distributed() as world, Watchdog(world, 1.0):
        time.sleep(0.5)
        ctypes.PyDLL(None).sleep(600)


def test_a_watchdog_lets_a_training_that_moves_end(tmp_path: Path) -> None:
    ranks.run(moves, 2, tmp_path / "logs")


def moves() -> None:
    with distributed() as world, Watchdog(world, 1.0) as watchdog:
        for _ in range(12):
            time.sleep(0.1 * (1 + world.rank))
            world.barrier()
            watchdog.beat()


def test_a_checkpoint_that_takes_long_is_no_standstill(tmp_path: Path) -> None:
    """A slow mount, of which one process reads more: neither it nor who waits for it is ended."""
    ranks.run(on_a_slow_mount, 2, tmp_path / "logs", tmp_path / "training")


def on_a_slow_mount(folder: Path) -> None:
    digest = stored.digest
    with distributed(seed=1, timeout_s=30) as world:

        def slow(path: Path, *arguments: Any) -> str:
            for _ in range(6 if world.first else 0):
                time.sleep(0.4)
                for progress in arguments:
                    progress()
            return digest(path, *arguments)

        state = {"model": nn.Linear(2, 1)}
        with (
            Watchdog(world, 2.0) as watchdog,
            Checkpoints(folder, world, state, events=None, progress=watchdog.alive) as kept,
        ):
            kept.save(1)
            kept.finish()
            stored.digest = slow
            assert kept.restore() == 1


def test_a_rank_that_dies_is_a_sentence_in_the_others(tmp_path: Path) -> None:
    training = ranks.start(dies, 2, tmp_path / "logs")
    assert training.wait() == [1, -signal.SIGKILL]
    assert "error[rank-lost]: process 0 lost another process" in training.text(0)
    assert "Traceback" not in training.text(0)


def dies() -> None:
    with distributed(timeout_s=30) as world:
        for step in range(100):
            if world.rank == 1 and step == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            world.barrier()


def test_one_rank_that_does_not_come_is_a_sentence(tmp_path: Path) -> None:
    """The collective has a time limit, with or without a watchdog."""
    training = ranks.start(does_not_come, 2, tmp_path / "logs")
    assert training.wait()[0] == 1
    assert "error[rank-lost]: process 0 lost" in training.text(0)


def does_not_come() -> None:
    with distributed(timeout_s=2) as world:
        if world.rank == 1:
            time.sleep(5)
            os._exit(0)
        torch.distributed.all_reduce(torch.zeros(1))


def test_a_rank_with_nan_takes_no_step_and_goes_back(tmp_path: Path) -> None:
    """One bad batch changes nothing; bad weights go back to the last good checkpoint."""
    ranks.run(with_nan, 2, tmp_path / "logs", tmp_path / "training")
    said = (tmp_path / "logs" / "0.txt").read_text()
    assert "skipped step-00000020" not in said
    assert "resuming from step-00000020" in said


def with_nan(folder: Path) -> None:
    with distributed(seed=1, timeout_s=30) as world:
        bare = nn.Linear(2, 1)
        model = world.wrap(bare)
        updates = Updates(world, model, torch.optim.SGD(model.parameters(), lr=0.1))

        def step(rows: torch.Tensor) -> Update:
            with updates.micro_batch(last=True):
                updates.backward(model(rows).square().sum(), len(rows))
            return updates.step()

        with Checkpoints(folder, world, {"model": model}, every_steps=10, events=None) as kept:
            guard = Guard(kept, patience=3)
            good = torch.ones(4, 2)
            for number in range(1, 21):
                update = step(good * float("nan") if (number, world.rank) == (7, 1) else good)
                if number == 7:
                    assert not update.taken and update.not_finite_in == (1,)
                assert not guard.check(number, update)
                kept.after_step(number)
            kept.join()  # what is no step of the optimiser waits for the snapshot
            weights = bare.weight.detach().clone()
            assert weights.isfinite().all()
            with torch.no_grad():
                bare.weight.fill_(float("inf"))  # as a step too far leaves it
            assert [guard.check(number, step(good)) for number in (21, 22, 23)] == [0, 0, 1]
            assert torch.equal(bare.weight, weights)


def test_an_explosion_goes_back_and_in_the_end_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss ten times the usual one; checkpoints from within it are set aside."""
    monkeypatch.setattr(health, "RETURNS", 1)
    with distributed() as world:
        model = nn.Linear(1, 1)
        with Checkpoints(tmp_path, world, {"model": model}, events=None) as kept:
            guard = Guard(kept, patience=2)
            usual, huge = (Update(loss, 1.0, 1.0, True) for loss in (1.0, 50.0))
            kept.save(3)
            assert not any(guard.check(step, usual) for step in range(1, 5))
            assert not guard.check(5, huge)
            kept.save(5)
            assert not guard.check(6, usual)  # one alone is no explosion
            assert not guard.check(7, huge)
            kept.save(7)
            assert guard.check(8, huge)
            assert (tmp_path / "step-00000007.set-aside-1").exists()
            guard.check(9, huge)
            with pytest.raises(Diverged, match=r"error\[diverged\]: the loss is 50 since step 9"):
                guard.check(10, huge)


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("begin", [1, 40])
def test_frequent_checkpoints_leave_a_good_one(tmp_path: Path, every: int, begin: int) -> None:
    """Those of the bad steps push no good one out; of a long row of rows without numbers the
    training comes back. Where there is no good one the others stay.
    """
    with distributed() as world:
        state = {"model": nn.Linear(1, 1)}
        with Checkpoints(tmp_path, world, state, every_steps=every, events=None) as kept:
            guard = Guard(kept)
            went = []
            for step in range(1, begin + 20):
                bad = begin <= step < begin + 12
                update = Update(math.nan if bad else 1.0, 1.0, 1.0, taken=not bad)
                try:
                    went.append(guard.check(step, update))
                except Diverged:
                    assert begin == 1 and step == 10
                    assert not [*tmp_path.glob("*.set-aside-*")]
                    break
                kept.after_step(step)
            assert sum(went) == (begin == 40)
        assert len([*tmp_path.glob("step-*[0-9]/manifest.json")]) >= 2


def test_a_way_back_keeps_the_one_before_it(tmp_path: Path) -> None:
    """Where it leads to the same soon, the checkpoint before is still there."""
    with distributed() as world:
        state = {"model": nn.Linear(1, 1)}
        with Checkpoints(tmp_path, world, state, every_steps=1, events=None) as kept:
            guard, went = Guard(kept, patience=4), []
            for step in range(1, 19):
                loss = 50.0 if step in (7, 8, 9, 10, 13, 14, 15, 16) else 1.0
                if guard.check(step, Update(loss, 1.0, 1.0, True)):
                    went.append((step, kept._saved_step))
                kept.after_step(step)
            assert went == [(10, 6), (16, 5)]


def test_a_checkpoint_before_the_first_step_is_one(tmp_path: Path) -> None:
    with (
        distributed() as world,
        Checkpoints(tmp_path, world, {"model": nn.Linear(1, 1)}, events=None) as kept,
    ):
        kept.save(0)
        guard = Guard(kept, patience=2)
        bad = Update(math.nan, 1.0, 1.0, False)
        assert [guard.check(step, bad) for step in (1, 2)] == [False, True]


@pytest.mark.parametrize(
    ("usual", "explodes"),
    [
        ((0.02, -0.03, 0.01, -0.01), {5.0}),  # around 0, as of two networks against each other
        ((-6.0, -5.0, -5.5, -4.5), {100.0}),  # of a density
        ((1.0, 1.1, 0.9, 1.0), {50.0}),
        ((0.0, 0.0, 0.0, 0.0), set()),  # nothing says what is usual
    ],
)
def test_an_explosion_is_upwards_by_what_is_usual(
    tmp_path: Path, usual: tuple[float, ...], explodes: set[float]
) -> None:
    with (
        distributed() as world,
        Checkpoints(tmp_path, world, {"model": nn.Linear(1, 1)}, events=None) as kept,
    ):
        guard = Guard(kept, patience=3)
        for step, loss in enumerate(usual * 5):
            assert not guard.check(step, Update(loss, 1.0, 1.0, True))
        found = {loss for loss in (-200.0, 0.15, 5.0, 50.0, 100.0) if guard._is_explosion(loss)}
        assert -200.0 not in found and 0.15 not in found and found >= explodes
        assert bool(found) is bool(explodes)


def test_a_checkpoint_that_leads_to_the_same_is_not_gone_back_to_twice(tmp_path: Path) -> None:
    """It was saved after the step that spoilt the weights, whose own loss was a usual one."""
    with distributed() as world:
        model = nn.Linear(1, 1)
        with Checkpoints(tmp_path, world, {"model": model}, events=None) as kept:
            guard = Guard(kept, patience=2)
            usual, huge = (Update(loss, 1.0, 1.0, True) for loss in (1.0, 50.0))
            assert not any(guard.check(step, usual) for step in range(1, 5))
            for step in (3, 5):
                kept.save(step)
            assert [guard.check(step, huge) for step in (6, 7)] == [False, True]
            assert not (tmp_path / "step-00000005.set-aside-1").exists()
            assert [guard.check(step, huge) for step in (8, 9)] == [False, True]
            assert (tmp_path / "step-00000005.set-aside-1").exists()
