"""ml.release.watch.limits: watch.yml, and what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ml.release.watch.limits import Limits, read
from ml.specs.problems import Refused


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        (None, Limits()),
        ("schema_version: 1", Limits()),
        (
            "schema_version: 1\nalpha: 0.05\nmin_rows: 100\nignore: [top]",
            Limits(alpha=0.05, min_rows=100, ignore=("top",)),
        ),
    ],
)
def test_what_a_project_says(tmp_path: Path, text: str | None, limits: Limits) -> None:
    """Or what holds without a file."""
    if text is not None:
        (tmp_path / "watch.yml").write_text(text)
    assert read(tmp_path) == limits


@pytest.mark.parametrize(
    "text",
    [
        "",
        "schema_version: 2",
        "[1]",
        "schema_version: 1\nalfa: 0.1",
        "schema_version: 1\nalpha: 0.9",
        "schema_version: 1\nalpha: .nan",
        "schema_version: 1\npsi: high",
        "schema_version: 1\npsi: true",
        "schema_version: 1\nmin_rows: 5",
        "schema_version: 1\nmin_rows: 50.5",
        "schema_version: 1\nignore: top",
        "a: [",
    ],
)
def test_what_it_may_not_say(tmp_path: Path, text: str) -> None:
    """Told with the file."""
    (tmp_path / "watch.yml").write_text(text)
    with pytest.raises(Refused, match=r"watch\.yml"):
        read(tmp_path)
