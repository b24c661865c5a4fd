"""What a model answered, as a person reads it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from ml.cli.commands.serving import answer_texts
from ml.release.rollout.invoke import Reply
from tests.release.test_commands import ml

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
    code, _, message = ml(capsys, command[0], name, *command[1:])
    assert code == 2 and "not a valid endpoint name" in message
    assert "\x1b" not in message
    assert {path.name for path in tmp_path.rglob("*")} <= {"a", "home", "mlflow.db", ".store.lock"}


def test_a_file_is_sent_as_its_content_in_base64(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the one text of the sample; a file that is not there ends with exit code 2."""
    image, sent = tmp_path / "shelf.jpg", []
    image.write_bytes(b"\xff\xd8 a picture")

    def of_text(endpoints: object, name: str, text: str) -> dict[str, str]:
        sent.append((name, text))
        return {"image": text}

    def ask(endpoints: object, name: str, request: object) -> Reply:
        return Reply({"gaps": 2}, "7", SimpleNamespace(url="here"), started=False)  # type: ignore[arg-type]

    monkeypatch.setenv("MLOPS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("ml.release.rollout.invoke.of_text", of_text)
    monkeypatch.setattr("ml.release.rollout.invoke.ask", ask)
    code, out, _ = ml(capsys, "invoke", "shelf-gaps", "--file", str(image))
    assert code == 0 and json.loads(out) == {"gaps": 2}
    assert sent == [("shelf-gaps", base64.b64encode(image.read_bytes()).decode())]
    code, _, err = ml(capsys, "invoke", "shelf-gaps", "--file", str(tmp_path / "none.jpg"))
    assert code == 2 and "error[no-file]" in err
