"""A trial's sample, kept beside its record."""

from __future__ import annotations

from pathlib import Path

import pytest

from ml.backends.local.runs import records
from ml.specs.plan.plans import Sample


def test_values_come_back_with_their_types(tmp_path: Path) -> None:
    """Numbers, booleans, text and nested choices."""
    values = {"a": 1, "b": 0.1 + 0.2, "c": True, "d": "1", "e": {"kind": "x", "depth": 3}}
    sample = Sample(7, values, {"kind": "tpe"})
    records.write_sample(tmp_path / "trials" / "7", sample)
    assert records.read_sample(tmp_path / "trials" / "7") == sample


@pytest.mark.parametrize("text", ["", '{"number": 1, "val', '{"number": 1}', "[]"])
def test_a_file_that_a_crash_left_incomplete_is_ignored(tmp_path: Path, text: str) -> None:
    """A truncated file counts as missing."""
    (tmp_path / records.SAMPLE).write_text(text)
    assert records.read_sample(tmp_path) is None
