"""What a trial was given, kept beside its record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ml.backends.base import Sample
from ml.backends.local.backend import LocalBackend
from ml.backends.local.sweeps import sampled
from tests.backends.conftest import LOG, Sweeps


def test_values_come_back_with_their_types(tmp_path: Path) -> None:
    """Numbers, truth values, texts and nested choices."""
    values = {"a": 1, "b": 0.1 + 0.2, "c": True, "d": "1", "e": {"kind": "x", "depth": 3}}
    sample = Sample(7, values, {"kind": "tpe"})
    sampled.write(tmp_path / "trials" / "7", sample)
    assert sampled.read(tmp_path / "trials" / "7") == sample


@pytest.mark.parametrize("text", ["", '{"number": 1, "val', '{"number": 1}', "[]"])
def test_what_a_crash_left_unfinished_is_no_sample(tmp_path: Path, text: str) -> None:
    """A truncated file is as good as none."""
    (tmp_path / sampled.FILE).write_text(text)
    assert sampled.read(tmp_path) is None


def test_every_trial_has_its_sample_before_its_process_starts(home: Path, sweep: Sweeps) -> None:
    """The script itself can see the file, and the values in it are those that it was given."""
    script = LOG + (
        "import json\n"
        "seen = json.loads(Path('../sampling.json').read_text())\n"
        "assert str(seen['values']['x']) == sys.argv[1]\n"
        "log('score', float(sys.argv[1]))\n"
    )
    run = LocalBackend().run(sweep(script))
    assert run.status == "Completed"
    samples = [json.loads((trial.folder / sampled.FILE).read_text()) for trial in run.trials]
    assert [one["number"] for one in samples] == [0, 1, 2]
    assert {one["origin"]["kind"] for one in samples} == {"random"}
    assert [one["values"] for one in samples] == [dict(trial.parameters) for trial in run.trials]
