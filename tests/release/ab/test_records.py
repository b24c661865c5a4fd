"""ml.release.ab.records: counted once, kept whole, whoever writes and whatever breaks."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ml.backends.local.serving import endpoint
from ml.cli.commands import ab
from ml.core.errors import UserError
from ml.release.ab import records
from ml.release.ab.experiment import Experiment
from tests.local import BACKEND

Begun = Callable[..., Experiment]
KEYS = [f"customer-{number}" for number in range(20)]


def test_an_outcome_counts_once_with_its_key_s_version(begun: Begun) -> None:
    """The first stands; the same again and another one are counted as what they are."""
    made = begun()
    arms = records.assign(BACKEND, made, KEYS)
    assert records.assign(BACKEND, made, KEYS) == arms
    assert records.record(BACKEND, made, [(key, 1) for key in KEYS]) == 20
    assert records.record(BACKEND, made, [(KEYS[0], 1), (KEYS[1], 0)]) == 0
    found = records.read(BACKEND, made)
    assert len(found.assigned) == len(found.outcomes) == 20
    assert (found.repeated, found.contradicting, found.unreadable) == (1, 1, 0)
    assert list(found.is_b) == [arms[key] == "B" for key in KEYS] and set(found.values) == {1.0}


def test_keys_are_not_on_the_disk(begun: Begun) -> None:
    """Only tickets, in a file of the owner's."""
    made = begun()
    records.assign(BACKEND, made, KEYS)
    path = made.folder / records.FILE
    assert "customer" not in path.read_text() and path.stat().st_mode & 0o077 == 0


def test_a_table_that_a_spreadsheet_saved(begun: Begun, tmp_path: Path) -> None:
    """The mark at its beginning is no part of the first key."""
    made = begun()
    records.assign(BACKEND, made, KEYS[:1])
    path = tmp_path / "outcomes.csv"
    path.write_text(f"{KEYS[0]},1\n", encoding="utf-8-sig")
    ab.record(made.name, file=path)
    assert len(records.read(BACKEND, made).outcomes) == 1


@pytest.mark.parametrize("value", [0.5, 2, math.nan, math.inf, -1])
def test_what_is_no_outcome_is_refused(begun: Begun, value: float) -> None:
    """Nothing of the batch is written then."""
    made = begun()
    records.assign(BACKEND, made, KEYS)
    with pytest.raises(UserError, match="bad-outcome"):
        records.record(BACKEND, made, [(KEYS[0], 1), (KEYS[1], value)])
    assert not records.read(BACKEND, made).outcomes


def test_an_unknown_key_is_refused(begun: Begun) -> None:
    """All or nothing: who was never assigned was never asked."""
    made = begun()
    records.assign(BACKEND, made, KEYS[:1])
    with pytest.raises(UserError, match=r"unknown-key.*customer-1"):
        records.record(BACKEND, made, [(KEYS[0], 1), (KEYS[1], 1)])
    assert not records.read(BACKEND, made).outcomes


def test_late_outcomes_count_when_they_come(begun: Begun) -> None:
    """In the order of coming, not of assignment."""
    made = begun(outcome="continuous", baseline=None, deviation=3.0)
    records.assign(BACKEND, made, KEYS)
    records.record(BACKEND, made, [(KEYS[3], 3.5)])
    records.record(BACKEND, made, [(KEYS[1], 1.5)])
    assert list(records.read(BACKEND, made).values) == [3.5, 1.5]


def test_whom_the_router_sent_somewhere_is_known(begun: Begun) -> None:
    """Without `ml ab assign`."""
    made = begun()
    path = endpoint.folder(made.endpoint) / "exposed" / f"{made.name}.jsonl"
    path.parent.mkdir(parents=True)
    line = {"at": 1.0, "event": "assigned", "id": made.ticket("ana"), "arm": "green"}
    path.write_text(json.dumps(line) + "\n")
    assert records.record(BACKEND, made, [("ana", 1)]) == 1


@pytest.mark.parametrize(
    "rubbish",
    [
        b'{"at": 1, "event": "outco',
        b"\xff\xfe",
        b"[]",
        b'{"id": 7}',
        b'{"id": "zzzzzzzzzzzzzzzz", "event": "assigned"}',
        b'{"id": "0000000000000000", "event": "outcome", "value": 1}',
    ],
)
def test_a_line_that_is_none_spoils_no_other(begun: Begun, rubbish: bytes) -> None:
    """A kill in the middle of a line, or anything else: counted, and the rest stands."""
    made = begun()
    records.assign(BACKEND, made, KEYS)
    records.record(BACKEND, made, [(KEYS[0], 1)])
    with (made.folder / records.FILE).open("ab") as stream:
        stream.write(rubbish)  # without an end
    records.record(BACKEND, made, [(KEYS[1], 0)])
    found = records.read(BACKEND, made)
    assert list(found.values) == [1.0, 0.0] and found.unreadable == 1


def test_a_value_that_an_edit_made_is_not_counted(begun: Begun) -> None:
    """NaN in the file compares with nothing: it is no outcome."""
    made = begun()
    records.assign(BACKEND, made, KEYS)
    for value in ("NaN", "Infinity", "true", '"1"', "0.5"):
        with (made.folder / records.FILE).open("a") as stream:
            ticket = made.ticket(KEYS[0])
            stream.write(f'{{"id": "{ticket}", "event": "outcome", "value": {value}}}\n')
    found = records.read(BACKEND, made)
    assert not found.outcomes and found.unreadable == 5


_WRITER = """
import sys
from ml.release.ab import experiment, records
from tests.local import BACKEND
made = experiment.find("wording")
for number in range(int(sys.argv[1]), int(sys.argv[2])):
    records.assign(BACKEND, made, [f"k{number}"])
    records.record(BACKEND, made, [(f"k{number}", number % 2)])
"""


@pytest.mark.slow
def test_several_write_at_once_and_one_is_killed(begun: Begun) -> None:
    """Four writers, one of them ended by SIGKILL: every line of the others is there, once."""
    made = begun()
    ranges = [(0, 40), (40, 80), (80, 120), (200, 100_000)]
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(low), str(high)])
        for low, high in ranges
    ]
    while not any(one for one in records.read(BACKEND, made).outcomes):
        time.sleep(0.01)
    for writer in writers[:3]:
        assert writer.wait() == 0
    os.kill(writers[3].pid, signal.SIGKILL)
    writers[3].wait()
    found = records.read(BACKEND, made)
    assert {made.ticket(f"k{number}") for number in range(120)} <= found.assigned.keys()
    assert found.repeated == found.contradicting == 0 and found.unreadable <= 1
    assert records.record(BACKEND, made, [("k0", 0)]) == 0  # it goes on
