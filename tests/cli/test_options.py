"""ml.cli.options: what options say holds in a fork with environments of its own."""

from __future__ import annotations

import pytest

from ml.release.declaration.desired_state import TRACKED
from tests.release.test_commands import ml


@pytest.mark.parametrize(
    "words", [["gate"], ["release", "propose"], ["release", "apply"], ["watch"], ["ab", "start"]]
)
def test_help_says_where_environments_are_named(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Not which there are: release.yml's types say that, and a fork changes them."""
    _, out, _ = ml(capsys, *words, "--help")
    said = " ".join(out.split())
    assert "`local`, or one of release.yml" in said
    assert not any(name in said.replace(",", " ").split() for name in TRACKED)


def test_a_goal_is_one_of_two(capsys: pytest.CaptureFixture[str]) -> None:
    """Checked before a run is read."""
    code, _, err = ml(capsys, "select", "--goal", "most")
    assert code == 2 and "error[no-such-goal]: --goal most" in err
