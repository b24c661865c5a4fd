"""What a model answered, as a person reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ml.cli.app import main
from ml.cli.commands.serving import answer_texts

ENTRY = {"rank": 1, "score": 0.5, "question": "how?", "answer": "so"}


def test_the_entries_of_a_ranking_are_shown_one_by_one() -> None:
    """Place, question and score, then the answer."""
    assert answer_texts({"answers": [ENTRY, {**ENTRY, "rank": 2, "more": 1}]}) == [
        "1. how?  [0.500]\n   so\n",
        "2. how?  [0.500]\n   so\n",
    ]


@pytest.mark.parametrize(
    "body", [{"left": 0.97}, {"answers": [{"label": "é"}]}, {"answers": ["a"]}, {"answers": 3}]
)
def test_any_other_answer_is_shown_as_it_is(body: dict[str, object]) -> None:
    """A project's answers have the form that it likes."""
    (shown,) = answer_texts(body)
    assert json.loads(shown) == body and "\\u" not in shown


@pytest.mark.attack("an endpoint's name that is a path")
@pytest.mark.parametrize("name", ["../../x", "/etc", ".", "..", "a/b", "", "\x1b[31m"])
@pytest.mark.parametrize(
    "command", [["serve"], ["serve", "--stop"], ["invoke", "text"], ["watch"]], ids=" ".join
)
def test_a_name_that_is_a_path_is_refused(
    name: str,
    command: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is read, written or run outside of the endpoints' folder."""
    monkeypatch.setenv("MLOPS_HOME", str(tmp_path / "a" / "home"))
    with pytest.raises(SystemExit) as ending:
        main([command[0], name, *command[1:]])
    message = capsys.readouterr().err
    assert ending.value.code == 2 and "cannot name an endpoint" in message
    assert "\x1b" not in message
    assert {path.name for path in tmp_path.rglob("*")} <= {"a", "home", "mlflow.db", ".store.lock"}
