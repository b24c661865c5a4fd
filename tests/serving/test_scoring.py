"""ml.serving.scoring: finding and verifying the model, and requests that break the schema."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml.serving.scoring.manifest import ManifestError, write_manifest
from ml.serving.scoring.messages import BadRequest, Integer, Schema, Text, parse, refusal, reply
from ml.serving.scoring.model import MODEL_DIGEST, MODEL_DIR, ServedModel, open_model

SCHEMA: Schema = {"question": Text(longest=10), "top": Integer(1, 5, default=3)}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An intact model folder inside AZUREML_MODEL_DIR, as Azure ML mounts it."""
    folder = tmp_path / "mounted" / "model"
    folder.mkdir(parents=True)
    (folder / "model.txt").write_text("tree\n")
    write_manifest(folder)
    monkeypatch.setenv(MODEL_DIR, str(folder.parent))
    monkeypatch.delenv(MODEL_DIGEST, raising=False)
    return folder


def test_the_model_is_found_and_verified(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mounted as a folder in AZUREML_MODEL_DIR or as that folder itself."""
    served = open_model()
    assert served.folder == model
    monkeypatch.setenv(MODEL_DIR, str(model))
    monkeypatch.setenv(MODEL_DIGEST, served.digest)
    assert open_model() == served


def test_a_changed_model_is_refused_before_anything_loads_it(model: Path) -> None:
    """One flipped bit, and there is no model."""
    content = bytearray((model / "model.txt").read_bytes())
    content[1] ^= 1
    (model / "model.txt").write_bytes(bytes(content))
    with pytest.raises(ManifestError):
        open_model()


def test_another_model_than_the_declared_is_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An intact folder with another digest is not the declared model."""
    monkeypatch.setenv(MODEL_DIGEST, "sha256:" + "0" * 64)
    with pytest.raises(ManifestError):
        open_model()


def test_no_model_and_two_models_are_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The error counts them."""
    other = model.parent / "other"
    other.mkdir()
    write_manifest(other)
    with pytest.raises(FileNotFoundError, match="2 folders"):
        open_model()
    monkeypatch.setenv(MODEL_DIR, str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match="0 folders"):
        open_model()
    monkeypatch.delenv(MODEL_DIR)
    with pytest.raises(FileNotFoundError, match="not set"):
        open_model()


def test_a_request_that_follows_the_schema_is_read() -> None:
    """Values are typed, defaults are filled in."""
    asked = parse('{"question": "how?"}', SCHEMA)
    assert (asked.texts, asked.integers) == ({"question": "how?"}, {"top": 3})
    assert parse('{"question": "how?", "top": 5}', SCHEMA).integers == {"top": 5}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ("", ""),
        ("how?", ""),
        ("[]", ""),
        ("null", ""),
        ('"text"', ""),
        ("{}", "question"),
        ('{"question": null}', "question"),
        ('{"question": "how?", "question": "who?"}', "question"),
        ('{"question": 3}', "question"),
        ('{"question": ["how?"]}', "question"),
        ('{"question": "  "}', "question"),
        ('{"question": "' + "x" * 11 + '"}', "question"),
        ('{"question": "how?", "top": 0}', "top"),
        ('{"question": "how?", "top": 6}', "top"),
        ('{"question": "how?", "top": 1.5}', "top"),
        ('{"question": "how?", "top": true}', "top"),
        ('{"question": "how?", "top": NaN}', "top"),
        ('{"question": "how?", "top": 1' + "0" * 400 + "}", "top"),
        ('{"question": "how?", "data": []}', "data"),
        ("[" * 100_000, ""),
    ],
)
def test_a_request_that_breaks_it_names_the_field(body: str, field: str) -> None:
    """With what was found and what was expected."""
    with pytest.raises(BadRequest) as raised:
        parse(body, SCHEMA)
    error = raised.value
    assert error.field == field and error.actual and error.expected
    response = refusal(error)
    assert response.status_code == 400
    told = json.loads(response.get_data())["error"]
    assert told["field"] == field and told["message"]
    # A form's body, which curl sends where no header says otherwise, comes as none.
    assert ("application/json" in error.expected) == (body == "")


@given(body=st.text(max_size=40) | st.binary(max_size=40).map(lambda b: b.decode("latin-1")))
@pytest.mark.attack("Any text is sent as a request")
def test_any_text_is_read_or_refused(body: str) -> None:
    """The parser raises nothing but BadRequest."""
    try:
        asked = parse(body, SCHEMA)
    except BadRequest:
        return
    assert set(asked.texts) == {"question"}


def test_a_reply_has_the_digest_of_its_model() -> None:
    """Beside the answer's own fields."""
    served = ServedModel(Path("x"), "sha256:1")
    assert reply(served, {"answers": []}) == {"answers": [], "model_digest": "sha256:1"}


@pytest.mark.attack("a model's score is NaN or infinite")
@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_a_reply_has_finite_numbers(model: Path, score: float) -> None:
    """On Azure too, where the server writes NaN: the script fails, and the answer is 500."""
    served = open_model()
    assert reply(served, {"scores": [1e300, None]})["scores"] == [1e300, None]
    with pytest.raises(ValueError, match="JSON"):
        reply(served, {"scores": [1.0, {"own": score}]})


@pytest.mark.parametrize("body", ["{}", '{"note": ""}', '{"note": " "}'])
def test_an_optional_text_may_be_empty(body: str) -> None:
    """Or left out; it is bounded as any other, blanks included."""
    schema: Schema = {"note": Text(longest=10, optional=True)}
    assert parse(body, schema).texts == {"note": ""}
    assert parse('{"note": "so"}', schema).texts == {"note": "so"}
    for wrong in ('{"note": 3}', '{"note": null}', '{"note": "%s"}' % (" " * 11), '{"other": ""}'):
        with pytest.raises(BadRequest):
            parse(wrong, schema)
