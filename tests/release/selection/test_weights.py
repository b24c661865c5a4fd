"""select.yml: what it may say, and where it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from ml.core.errors import UserError
from ml.release.selection.weights import Cost, Latency, Stability, Term, Weights, read

SOUND = """schema_version: 1
quality: {weight: 1, reference: 0.01}
latency: {weight: 0.5, reference: 10, metric: p95}
cost: {weight: 0.1, reference: 60, predictions: 1000, training: fit, prediction: score_ms}
stability: {weight: 0, reference: 1, metric: folds}
"""


def test_a_whole_file(tmp_path: Path):
    """Every field is read; what is not stated keeps its default."""
    (tmp_path / "select.yml").write_text(SOUND)
    made = read(tmp_path)
    assert made.quality == Term(1.0, 0.01)
    assert made.latency == Latency(0.5, 10.0, "p95")
    assert made.cost == Cost(0.1, 60.0, "fit", "score_ms", 1000.0)
    assert made.stability == Stability(0.0, 1.0, "folds")
    assert made.source.endswith("select.yml")


def test_without_a_file_quality_alone_weighs(tmp_path: Path):
    assert read(tmp_path) == read(None) == Weights()
    assert Weights().quality.weight == 1 and not Weights().latency.weight


@pytest.mark.parametrize(
    ("was", "now", "line", "said"),
    [
        ("schema_version: 1", "schema_version: 2", 1, "`schema_version` is 2"),
        ("schema_version: 1\n", "", 1, "no `schema_version`"),
        ("weight: 0.5", "weight: -0.5", 3, "`latency.weight` is -0.5"),
        ("weight: 0.5", "weight: .nan", 3, "`latency.weight` is nan"),
        ("weight: 0.5", "weight: .inf", 3, "`latency.weight` is inf"),
        ("weight: 0.5", "weight: yes", 3, "`latency.weight` is true"),
        ("weight: 0.5", 'weight: "0.5"', 3, "a number"),
        ("reference: 10", "reference: 0", 3, "more than 0"),
        ("weight: 0.5, ", "", 3, "no `latency.weight`"),
        ("weight: 0.5, reference: 10, ", "", 3, "no `latency.reference`"),
        ("weight: 1,", "weight: 0,", 2, "`quality.weight` is 0"),
        ("metric: p95", "metric: 7", 3, "a text"),
        ("latency:", "latancy:", 3, "did you mean `latency`?"),
        ("metric: p95", "metrics: p95", 3, "did you mean `metric`?"),
        ("latency:", "quality:", 3, "duplicate-key"),
        ("{weight: 0.5, reference: 10, metric: p95}", "fast", 3, "a mapping"),
        ("{weight: 0.5,", "{weight: 0.5", 3, "unreadable-yaml"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(
    tmp_path: Path, was: str, now: str, line: int, said: str
):
    """Never a traceback, never a default in place of a mistake."""
    assert was in SOUND
    (tmp_path / "select.yml").write_text(SOUND.replace(was, now, 1))
    with pytest.raises(UserError) as raised:
        read(tmp_path)
    place = raised.value.problems[0].place
    assert said in str(raised.value) and place is not None and place.line == line


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"- 1\n", b"a: b: c\n"])
def test_a_file_that_is_none(tmp_path: Path, content: bytes):
    (tmp_path / "select.yml").write_bytes(content)
    with pytest.raises(UserError, match=r"select\.yml"):
        read(tmp_path)
