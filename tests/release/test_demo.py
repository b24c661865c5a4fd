"""`ml demo` from beginning to end on the tiny project: real jobs, real servers, a real canary."""

from __future__ import annotations

import pytest

from ml.cli.app import main
from ml.release import audit
from tests.local import BACKEND, LOG
from tests.release.conftest import World


@pytest.fixture
def words() -> list[str]:
    """The command, with what the tiny project's train.yml takes."""
    changes = ("--first", "inputs.skill=0.7", "--bad", "inputs.skill=0.3")
    return ["demo", "tiny", *changes, "--fault", "errors"]


@pytest.mark.slow
def test_the_whole_way_and_once_more(
    world: World, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A first model, a better one by way of a canary, a bad model and a bad green refused; the
    second time there is nothing to promote, and nothing is shown twice."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr().err
    assert ended.value.code == 0, said
    assert "[1] ml run ml/projects/tiny/jobs/train.yml --set inputs.skill=0.7" in said
    assert "] ml select " in said and "tiny 2 serves now, in place of version 1" in said
    assert "] ml invoke tiny 'how?'" in said
    assert "canary: 10 %" in said and "canary: 100 %" in said
    assert "gate quality failed: gain_at_1 on test is 0.3" in said
    assert "rolled back at 10 %" in said and "no request failed" in said
    events = [line["event"] for line in audit.verify(LOG)]
    assert events.count("applied") == 2 and events[-1] == "drill"
    champion = BACKEND.registry.champion("tiny", "local")
    assert champion is not None and champion.version == "2"
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr().err
    assert ended.value.code == 0, said
    assert "[1] ml run ml/projects/tiny/jobs/pipeline.yml" in said
    assert "this model serves already" in said and "drill" not in said
