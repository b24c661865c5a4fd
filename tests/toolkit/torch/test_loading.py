"""Batches: every row once, the same order for anybody, from any position, at any speed."""

from __future__ import annotations

import json
import os
import resource
import threading
import time
import weakref
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from ml.toolkit.torch.distributed import TrainingError, World
from ml.toolkit.torch.loading import Batches, Rows, Shards, write_shards

COUNT = 1003


def world(rank: int = 0, size: int = 1) -> World:
    return World(rank, size, torch.device("cpu"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Numbered rows in five uneven shards; a row in 50 is of a rare class."""
    numbers = np.arange(COUNT)
    chunks = [
        {"row": part, "label": (part % 50 == 0).astype(np.int64), "x": np.stack([part, -part], 1)}
        for part in np.split(numbers, [1, 211, 300, 900])
    ]
    assert write_shards(tmp_path / "data", chunks) == COUNT
    return tmp_path / "data"


def rows_of(steps: Any) -> list[list[int]]:
    """The rows of each step."""
    return [[int(row) for batch in step for row in batch["row"]] for step in steps]


def test_shards_hold_what_came(folder: Path) -> None:
    source = Shards(folder)
    assert len(source) == COUNT and len(list(folder.glob("row-*.npy"))) == 5
    taken = source.take(np.array([1002, 0, 211, 5]))
    assert taken["row"].tolist() == [1002, 0, 211, 5]
    assert taken["x"].tolist() == [[1002, -1002], [0, 0], [211, -211], [5, -5]]
    assert source.column("row").tolist() == [*range(COUNT)]


@pytest.mark.parametrize("block", [0, 1, 7, 64])
@pytest.mark.parametrize(("size", "micro"), [(1, 1), (3, 2)])
def test_every_row_comes_once_an_epoch(folder: Path, block: int, size: int, micro: int) -> None:
    """Also where the last step is uneven, over all processes; another epoch has another order."""
    steps: list[list[int]] = []
    for epoch in range(2):
        parts = []
        for rank in range(size):
            batches = Batches(
                Shards(folder), world(rank, size), batch=100, micro_batches=micro, block=block
            )
            batches.epoch = epoch
            parts.append(rows_of(batches))
            assert len(parts[-1]) == len(batches) == (11 if size * micro <= 3 else 10)
            assert all(parts[-1])
        steps.append([row for step in zip(*parts, strict=True) for part in step for row in part])
        assert sorted(steps[-1]) == [*range(COUNT)]
    assert (steps[0] == [*range(COUNT)]) is (block == 0)
    assert (steps[0] != steps[1]) is (block > 0)


@pytest.mark.parametrize(
    ("size", "micro", "steps"), [(1, 1, 11), (3, 1, 11), (4, 1, 10), (2, 2, 10)]
)
def test_rows_left_for_too_few_join_the_step_before(
    folder: Path, size: int, micro: int, steps: int
) -> None:
    """Three rows are left: each process has all its micro-batches, and no row is lost."""
    parts = [
        [*Batches(Shards(folder), world(of, size), batch=100, micro_batches=micro)]
        for of in range(size)
    ]
    assert [len(part) for part in parts] == [steps] * size
    assert all(len(step) == micro and all(map(len, step)) for part in parts for step in part)
    assert sorted(row for part in parts for step in rows_of(part) for row in step) == [
        *range(COUNT)
    ]


@pytest.mark.parametrize(("before", "now"), [(4, 1), (1, 4), (3, 2)])
@pytest.mark.parametrize("at", [1, 9, 10])
def test_it_goes_on_with_another_number_of_processes(
    folder: Path, before: int, now: int, at: int
) -> None:
    """No row comes twice, none but the last three is left out, and the next epoch is whole."""

    def parts(size: int) -> list[Batches]:
        return [Batches(Shards(folder), world(of, size), batch=100) for of in range(size)]

    def rows(parts: list[Batches], steps: int) -> list[int]:
        return [row for part in parts for step in rows_of(islice(part, steps)) for row in step]

    begun, others = parts(before), parts(now)
    given = rows(begun, at)
    for part in others:
        part.load_state_dict(begun[0].state_dict())
    while others[0].step < len(others[0]):
        given += rows(others, len(others[0]) - others[0].step)
    left = {1000, 1001, 1002} if (before, now, at) == (1, 4, 10) else set()
    assert len(given) == len({*given}) == COUNT - len(left)
    assert sorted(rows(others, 11)) == [*range(COUNT)] and others[0].epoch == 1


@pytest.mark.parametrize("name", ["block", "blocks", "balanced", "rows", "data"])
def test_a_position_among_other_rows_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    state = Batches(Shards(folder), world(), batch=np.int64(64)).state_dict()  # type: ignore
    assert json.dumps(state)
    source = folder
    if name == "rows":
        source = tmp_path / "fewer"
        write_shards(source, [{"row": np.arange(500)}])
    if name == "data":  # as many rows, of which one value is another
        columns = {of: Shards(folder).column(of) for of in ("row", "label", "x")}
        source = tmp_path / "others"
        write_shards(source, [{**columns, "label": 1 - columns["label"]}])
    options: dict[str, Any] = {"block": 7, "blocks": 3, "balanced": "label"}
    other = {of: options[of] for of in [name] if of in options}
    with pytest.raises(TrainingError, match=f"the checkpoint has {name} "):
        Batches(Shards(source), world(), batch=64, **other).load_state_dict(state)


def test_a_step_has_the_same_rows_for_any_number_of_processes_and_threads(folder: Path) -> None:
    one = rows_of(Batches(Shards(folder), world(), batch=64, seed=4))
    for threads in (1, 2, 5):
        parts = [
            rows_of(
                Batches(Shards(folder), world(rank, 2), batch=64, seed=4, threads=threads, ahead=7)
            )
            for rank in range(2)
        ]
        assert [a + b for a, b in zip(*parts, strict=True)] == one
    assert rows_of(Batches(Shards(folder), world(), batch=64, seed=5)) != one


@pytest.mark.parametrize("at", [1, 7, 16])
def test_it_goes_on_in_mid_epoch(folder: Path, at: int) -> None:
    """After a state that was loaded, the steps that were left; then the next epoch."""

    def batches() -> Batches:
        return Batches(Shards(folder), world(), batch=64, seed=4, threads=2, transform=noise)

    whole = batches()
    expected = [*whole, *whole]
    begun = batches()
    steps = iter(begun)
    for _ in islice(steps, at):
        pass
    state = begun.state_dict()
    steps.close()  # type: ignore[attr-defined]
    other = batches()
    other.load_state_dict(state)
    rest = [*other, *other] if at < 16 else [*other]
    for mine, wanted in zip(rest, expected[at:], strict=True):
        assert torch.equal(mine[0]["x"], wanted[0]["x"])
    with pytest.raises(TrainingError, match="the checkpoint has seed 4, this training 9"):
        Batches(Shards(folder), world(), batch=64, seed=9).load_state_dict(state)


def noise(rows: Rows, generator: np.random.Generator) -> Rows:
    """Random augmentation is by the place in the training, whoever loads it."""
    return {**rows, "x": rows["x"] + generator.normal(size=rows["x"].shape)}


def test_blocks_are_shuffled_well(folder: Path) -> None:
    """Neighbours in the file do not stay neighbours, and no step is of one part of the file."""
    order = np.concatenate(
        rows_of(Batches(Shards(folder), world(), batch=64, block=8, blocks=32, seed=1))
    )
    together = np.mean(np.abs(np.diff(order)) == 1)
    assert together < 0.02
    assert abs(np.corrcoef(order, np.arange(COUNT))[0, 1]) < 0.2


def test_balanced_classes_come_equally_often(folder: Path) -> None:
    """One row in 50 is rare: as it is in 2 % of the rows, balanced in half of them."""
    shares = {}
    for balanced in (None, "label"):
        steps = [*Batches(Shards(folder), world(), batch=100, seed=2, balanced=balanced)]
        labels = torch.cat([batch["label"] for step in steps for batch in step])
        assert len(labels) == COUNT
        shares[balanced] = float(labels.float().mean())
    assert shares[None] == pytest.approx(0.021, abs=0.001)
    assert shares["label"] == pytest.approx(0.5, abs=0.05)


def test_balancing_finds_more_of_a_rare_class(tmp_path: Path) -> None:
    """The same small model and steps: recall of a class of 2 % with and without."""
    generator = np.random.default_rng(0)
    label = (np.arange(4000) % 50 == 0).astype(np.int64)
    x = (generator.normal(size=(4000, 2)) + label[:, None] * 1.5).astype(np.float32)
    write_shards(tmp_path / "d", [{"x": x, "label": label}])
    recall = {}
    for balanced in (None, "label"):
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 2)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
        batches = Batches(Shards(tmp_path / "d"), world(), batch=200, balanced=balanced)
        for _ in range(5):
            for [batch] in batches:
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(model(batch["x"]), batch["label"]).backward()
                optimiser.step()
        hits = model(torch.from_numpy(x)).argmax(1).numpy()[label == 1]
        recall[balanced] = hits.mean()
    assert recall[None] < 0.3 and recall["label"] > 0.75


@pytest.mark.parametrize("size", [1, 3])
def test_reading_ahead_changes_no_row(folder: Path, size: int) -> None:
    """Nor where a training goes on in mid-epoch, with few shards in memory and uneven ones."""
    options: dict[str, Any] = {"batch": 64, "seed": 4, "block": 100, "blocks": 2, "threads": 2}
    for rank in range(size):
        mapped = Batches(Shards(folder), world(rank, size), **options)
        expected = rows_of([*mapped, *mapped])
        ahead = Batches(Shards(folder), world(rank, size), **options, read_ahead=5)
        assert rows_of([*ahead, *ahead]) == expected
        ahead.load_state_dict({**ahead.state_dict(), "epoch": 0, "step": 7})
        assert rows_of([*ahead, *ahead]) == expected[7:]


def test_few_shards_are_in_memory_and_each_is_read_once(tmp_path: Path) -> None:
    """A slow loop does not let the reader go further."""
    write_shards(tmp_path, ({"row": np.arange(10) + 10 * of} for of in range(30)))
    source, read, alive = Shards(tmp_path), [], [0]
    load = source.read

    def counted(number: int) -> Rows:
        read.append(number)
        rows = load(number)
        weakref.finalize(rows["row"], lambda: alive.append(alive[-1] - 1))
        alive.append(alive[-1] + 1)
        return rows

    source.read = counted  # type: ignore[method-assign]
    batches = Batches(source, world(), batch=10, block=10, blocks=2, read_ahead=5, ahead=2)
    for number, _ in enumerate(batches):
        time.sleep(0.002)
        assert len(read) <= number + 8
    assert sorted(read) == [*range(30)] and max(alive) <= 6  # one that a thread has just taken


def test_shards_that_do_not_fit_into_memory_are_refused(folder: Path) -> None:
    """Rows that are shuffled one by one are in all shards."""
    with pytest.raises(ValueError, match="2 shards in memory, expected at least"):
        list(Batches(Shards(folder), world(), batch=64, block=1, read_ahead=2))


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(b"short")])
def test_a_reader_that_fails_ends_the_loop_with_the_file(folder: Path, harm: Any) -> None:
    """In mid-epoch, with no thread left behind."""
    batches = Batches(Shards(folder), world(), batch=64, block=0, read_ahead=3, ahead=1)
    steps = iter(batches)
    next(steps)
    harm(folder / "row-00004.npy")
    with pytest.raises(OSError, match=r"row-00004\.npy"):
        list(steps)
    names = ("loading", "reading")
    assert not [of for of in threading.enumerate() if of.name.startswith(names)]


@pytest.mark.parametrize("others", [0, 300])
def test_more_shards_than_a_process_may_open_are_read(tmp_path: Path, others: int) -> None:
    """Also by a process that has opened many other files."""
    write_shards(tmp_path, ({"a": np.arange(2) + 2 * of, "b": np.ones(2)} for of in range(60)))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(others)]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = len([*Path("/proc/self/fd").iterdir()]) + 40
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        source = Shards(tmp_path)
        assert source.column("a").tolist() == [*range(120)]
        batches = Batches(source, world(), batch=120, block=1)
        assert sorted(rows for [batch] in batches for rows in batch["a"].tolist()) == [*range(120)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in opened:
            os.close(descriptor)


def test_one_thread_at_a_time_opens_a_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """np.load reads a header by `ast`, which now and then fails in two threads at once."""
    write_shards(tmp_path, ({"a": np.arange(2) + 2 * of} for of in range(60)))
    load, opening = np.load, threading.Lock()

    def alone(*words: Any, **options: Any) -> Any:
        assert opening.acquire(blocking=False)
        time.sleep(0.001)
        opening.release()
        return load(*words, **options)

    monkeypatch.setattr(np, "load", alone)
    batches = Batches(Shards(tmp_path), world(), batch=20, threads=4)
    assert sum(len(of["a"]) for [of] in batches) == 120


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(b"short")])
def test_a_shard_that_is_missing_or_cut_short_is_named(folder: Path, harm: Any) -> None:
    """Before the first step, not in the middle of an epoch."""
    harm(folder / "label-00003.npy")
    with pytest.raises(OSError, match=r"label-00003.npy has \d bytes, expected 4,928"):
        Shards(folder)


DIFFERENT = {
    "width of a number": (np.zeros(2, np.uint16), np.zeros(2, np.int64)),
    "kind": (np.zeros(2, np.int64), np.zeros(2)),
    "sign": (np.zeros(2, np.int32), np.zeros(2, np.uint32)),
    "truth": (np.zeros(2, np.int8), np.zeros(2, bool)),
    "text": (np.array(["loss"]), np.array(["lossless"])),
    "bytes": (np.array([b"loss"]), np.array([b"lossless"])),
    "text and bytes": (np.array(["a"]), np.array([b"a"])),
    "byte order": (np.zeros(2, "<i4"), np.zeros(2, ">i4")),
    "unit of a time": (np.zeros(2, "M8[s]"), np.zeros(2, "M8[ms]")),
    "fields": (np.zeros(2, [("a", "i4")]), np.zeros(2, [("b", "i4")])),
    "row": (np.zeros((2, 3)), np.zeros((2, 4))),
    "a row more": (np.zeros(2), np.zeros((2, 1))),
    "an empty chunk": (np.zeros(2, np.int64), np.array([])),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_chunks_of_other_types_are_refused(name: str, tmp_path: Path) -> None:
    """In either order, and in a folder that an earlier version wrote: numpy would cast them."""
    for first, second in (DIFFERENT[name], DIFFERENT[name][::-1]):
        with pytest.raises(ValueError, match="convert each column of all chunks to one dtype"):
            write_shards(tmp_path, [{"x": first}, {"x": second}])
        write_shards(tmp_path, [{"x": first}])
        layouts = json.loads((tmp_path / "index.json").read_text())["layouts"]
        np.save(tmp_path / "x-00001.npy", second)
        files = {path.name: path.stat().st_size for path in tmp_path.glob("*.npy")}
        index = {"columns": ["x"], "rows": [len(first), len(second)], "files": files}
        (tmp_path / "index.json").write_text(json.dumps(index))
        with pytest.raises(ValueError, match="write the shards again"):
            Shards(tmp_path)
        index["layouts"] = layouts
        (tmp_path / "index.json").write_text(json.dumps(index))
        with pytest.raises(ValueError, match="write the shards again"):
            Shards(tmp_path).column("x")


@pytest.mark.parametrize("values", [np.array(["a", 1], object), np.ma.array([1, 2], mask=[0, 1])])
def test_python_objects_and_masks_are_no_column(values: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="without objects"):
        write_shards(tmp_path, [{"x": values}])


@pytest.mark.parametrize("name", ["../z", "a/b", "/z", "a\\b", ".", ""])
def test_a_column_is_named_like_a_file_of_the_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="as a column name, expected letters"):
        write_shards(tmp_path / "data", [{name: np.zeros(2)}])
    assert [*tmp_path.iterdir()] == [tmp_path / "data"] and not [*(tmp_path / "data").iterdir()]


@pytest.mark.parametrize("values", [[1, 2], 1.5, np.float64(1), np.array(1), torch.zeros(2)])
def test_a_column_is_an_array_of_rows(values: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="as a column, expected a numpy array of rows"):
        write_shards(tmp_path, [{"x": values}])


@pytest.mark.parametrize("dtype", ["<U8", "S8", ">i4", "M8[ms]", "?", [("a", "i4"), ("b", "U3")]])
def test_values_come_back_as_they_were(dtype: Any, tmp_path: Path) -> None:
    """Of every dtype, from a folder with an empty chunk, and from one of an earlier version."""
    chunks = [np.array([], dtype), np.zeros(2, dtype), np.ones(3, dtype)]
    write_shards(tmp_path, [{"x": values} for values in chunks])
    index = json.loads((tmp_path / "index.json").read_text())
    for _ in range(2):
        taken = Shards(tmp_path).take(np.array([4, 0, 1]))["x"]
        assert taken.dtype == np.dtype(dtype)
        assert taken.tolist() == np.concatenate(chunks)[[4, 0, 1]].tolist()
        index.pop("layouts", None)
        (tmp_path / "index.json").write_text(json.dumps(index))


def test_what_is_no_data_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="chunk 1 has the columns"):
        write_shards(tmp_path / "a", [{"x": np.zeros(2)}, {"y": np.zeros(2)}])
    with pytest.raises(FileNotFoundError, match="writing it was interrupted"):
        Shards(tmp_path / "a")
    with pytest.raises(ValueError, match="at least 4"):
        Batches(Shards(folder), world(0, 2), batch=3, micro_batches=2)


def test_an_error_in_a_loading_thread_reaches_the_loop_and_no_thread_stays(folder: Path) -> None:
    def broken(rows: Rows, generator: np.random.Generator) -> Rows:
        raise KeyError("no such column")

    with pytest.raises(KeyError, match="no such column"):
        list(Batches(Shards(folder), world(), batch=64, transform=broken, threads=2))
    assert not [of for of in threading.enumerate() if of.name.startswith("loading")]


def test_rates_say_how_long_the_loop_waited(folder: Path) -> None:
    batches = Batches(Shards(folder), world(), batch=64)
    for _ in batches:
        threading.Event().wait(0.002)
    rates = batches.rates()
    assert rates["samples_per_second"] > 0 and 0 <= rates["waiting_share"] < 0.9
    assert batches.rates()["samples_per_second"] == 0
