"""ml.release.watch.limits: watch.yml, and what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ml.core.errors import UserError
from ml.release.watch.limits import Limits, read
from policies.promotion import policy

POLICY = policy.load(policy.WATCH)
BOUNDS = {**POLICY.at_most, **POLICY.at_least}


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
        "schema_version: 1\nmin_rows: 100\nmin_rows: 200",
        "schema_version: 1\nignore: top",
        "a: [",
    ],
)
def test_what_it_may_not_say(tmp_path: Path, text: str) -> None:
    """Told with the file."""
    (tmp_path / "watch.yml").write_text(text)
    with pytest.raises(UserError, match=r"watch\.yml"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["alpha", "min_rows", "distance", "psi", "missing", "loss"])
def test_a_project_may_be_as_loose_as_the_policy_and_no_looser(tmp_path: Path, name: str) -> None:
    """Each setting's allowed and refused case; the latter is told with its line."""
    bound = BOUNDS[name]
    bound = int(bound) if name == "min_rows" else bound
    beyond = bound / 2 if name == "alpha" else bound + 1
    (tmp_path / "watch.yml").write_text(f"schema_version: 1\n{name}: {bound}")
    assert getattr(read(tmp_path), name) == bound
    (tmp_path / "watch.yml").write_text(f"schema_version: 1\n# loose\n{name}: {beyond}")
    with pytest.raises(UserError, match="watch-looser-than-policy") as raised:
        read(tmp_path)
    (problem,) = raised.value.problems
    assert problem.place and problem.place.line == 3 and f"`{name}`" in problem.actual
    assert "organisation policy" in problem.expected


def test_so_many_columns_may_be_left_out(tmp_path: Path) -> None:
    """And not one more: whoever leaves all out watches nothing."""
    columns = [f"c{number}" for number in range(int(BOUNDS["ignore"]) + 1)]
    (tmp_path / "watch.yml").write_text(f"schema_version: 1\nignore: {columns[:-1]}")
    assert len(read(tmp_path).ignore) == BOUNDS["ignore"]
    (tmp_path / "watch.yml").write_text(f"schema_version: 1\nignore: {columns}")
    with pytest.raises(UserError, match="watch-looser-than-policy") as raised:
        read(tmp_path)
    (problem,) = raised.value.problems
    assert (problem.actual, problem.expected) == (
        "`ignore` is 6",
        "at most 5, the organisation policy",
    )


def test_what_holds_without_a_file_keeps_the_policy() -> None:
    """The defaults are stricter."""
    assert list(POLICY.looser({**vars(Limits()), "ignore": 0})) == []
    assert sorted(BOUNDS) == sorted(vars(Limits()))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("alpha: 0.001", "alfa: 0.001", "alfa"),
        ("psi: 0.5", "psi: 1.0e+300", "`at_most.psi` is 1e\\+300"),
        ("alpha: 0.001", "alpha: 1.0e-300", "`at_least.alpha` is 1e-300"),
        ("at_least:", "least:", "`least`"),
        ("psi: 0.5", "psi: .nan", "`at_most.psi` is nan"),
        ("psi: 0.5", "psi: -1", "`at_most.psi` is -1"),
        ("psi: 0.5", "psi: [", "unreadable-yaml"),
        ("schema_version: 1", "schema_version: 2", "schema_version"),
    ],
)
def test_a_policy_that_is_none(tmp_path: Path, old: str, new: str, said: str) -> None:
    """It cannot be used, and nothing is taken for it."""
    path = tmp_path / "watch.yml"
    path.write_text(policy.WATCH.read_text().replace(old, new))
    with pytest.raises(UserError, match=said):
        policy.load(path)
