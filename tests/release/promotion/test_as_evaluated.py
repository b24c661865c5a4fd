"""What is proposed answers evaluated rows as they were evaluated, by the code that is to serve."""

from __future__ import annotations

from pathlib import Path

import pytest

from ml.release.promotion.propose import propose
from tests.local import BACKEND
from tests.policies.cases import result
from tests.release.conftest import World
from tests.release.rollout.test_serving_changes import edit

pytestmark = pytest.mark.slow
# A category that score.py calls otherwise than training did.
RENAMED = ('< skill else "b"', '< skill else "c"')


def score(world: World) -> Path:
    """The scoring script."""
    return world.project.folder / "endpoint" / "score.py"


@pytest.mark.attack("A first version is served by a score.py that renames a category")
def test_a_first_version_that_answers_otherwise_is_refused(world: World) -> None:
    """The answers are counted, and one is told with what was evaluated."""
    edit(score(world), *RENAMED)
    found = result(propose(BACKEND, "tiny", world.run(0.8)).decision, "serving")
    assert found.verdict == "fail" and "of 200 predictions differ" in found.actual
    assert 'the server predicts "c", the evaluation "b"' in found.why


@pytest.mark.attack("The champion's score.py is changed after its answers were compared")
def test_other_serving_code_of_the_champion_is_asked_anew(promoted_world: World) -> None:
    """The evidence of the champion is not that of what is to serve it now."""
    edit(score(promoted_world), *RENAMED)
    refused = propose(BACKEND, "tiny", promoted_world.run(0.8))
    assert result(refused.decision, "serving").verdict == "fail" and not refused.written
    edit(score(promoted_world), *reversed(RENAMED))
    score(promoted_world).write_text(score(promoted_world).read_text() + "# Another line.\n")
    passed = propose(BACKEND, "tiny", promoted_world.run(0.8))
    assert result(passed.decision, "serving").verdict == "pass" and passed.written


def test_an_evaluation_without_requests_says_what_to_write(world: World) -> None:
    """A model that nobody can compare is refused; so is one of which nothing says what it says."""
    edit(world.project.folder / "evaluate.py", "for row in questions],\n)", "for row in []],\n)")
    edit(world.project.folder / "gates.yml", "prediction: answers/0/entry_id", "min_rows: 100")
    pointed = result(propose(BACKEND, "tiny", world.run(0.8)).decision, "serving")
    assert pointed.verdict == "fail" and "`traffic.prediction` in release.yml" in pointed.why
    edit(world.project.folder / "gates.yml", "min_rows: 100", "prediction: answers/0/entry_id")
    found = result(propose(BACKEND, "tiny", world.run(0.7)).decision, "serving")
    assert found.verdict == "fail" and "`Rows.requests`" in found.why
