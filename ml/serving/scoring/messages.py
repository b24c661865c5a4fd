"""Parse requests and build responses; an invalid request gets status 400 and an explanation."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ml.serving.scoring.model import ServedModel

if TYPE_CHECKING:
    from azureml_inference_server_http.api.aml_response import AMLResponse


class BadRequest(Exception):
    """A request that does not follow the schema; `field` is "" when the whole body is wrong."""

    def __init__(self, field: str, actual: str, expected: str) -> None:
        self.field = field
        self.actual = actual
        self.expected = expected
        super().__init__(f"{field or 'the body'}: {actual}, expected {expected}")


@dataclass(frozen=True)
class Text:
    """A text field of a request."""

    longest: int  # number of characters
    optional: bool = False  # the field may be absent or blank

    def read(self, name: str, value: object) -> str:
        """Return the text; raise BadRequest if it is not text, blank or too long."""
        if not isinstance(value, str):
            raise BadRequest(name, type(value).__name__, "text")
        is_blank = not value.strip()
        if is_blank and self.optional and len(value) <= self.longest:
            return ""
        if is_blank or len(value) > self.longest:
            expected = f"{0 if self.optional else 1} to {self.longest} characters"
            raise BadRequest(name, f"{len(value.strip())} characters", expected)
        return value


@dataclass(frozen=True)
class Integer:
    """An optional field of a request with a whole number from `lowest` to `highest`."""

    lowest: int
    highest: int
    default: int  # for a request without the field

    def read(self, name: str, value: object) -> int:
        """Return the number; raise BadRequest if it is not a whole number or out of range."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadRequest(name, type(value).__name__, "a whole number")
        if not self.lowest <= value <= self.highest:
            raise BadRequest(name, str(value)[:40], f"{self.lowest} to {self.highest}")
        return value


Schema = Mapping[str, Text | Integer]


@dataclass(frozen=True)
class Fields:
    """The fields of a request that follows its schema."""

    texts: Mapping[str, str]
    integers: Mapping[str, int]


def read_json(body: str | bytes) -> object:
    """Parse the JSON of a request.

    Raises BadRequest for a duplicate key, of which Azure ML's server would use the last, and
    ValueError or RecursionError for text that is not JSON.
    """
    return json.loads(body, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document: dict[str, object] = {}
    for name, value in pairs:
        if name in document:
            raise BadRequest(name[:80], "given twice", "once")
        document[name] = value
    return document


def parse(body: str, schema: Schema) -> Fields:
    """Return the fields of a JSON object; raise BadRequest at the first that breaks the schema."""
    try:
        document = read_json(body)
    except (ValueError, RecursionError):
        expected = f"an object with {_names(schema)}"
        if not body.strip():  # what curl -d sends is a form, unless a header says otherwise
            raise BadRequest(
                "", "nothing", f"{expected}, as `Content-Type: application/json`"
            ) from None
        raise BadRequest("", "not JSON", expected) from None
    if not isinstance(document, dict):
        raise BadRequest("", type(document).__name__, f"an object with {_names(schema)}")
    for name in document:
        if name not in schema:
            raise BadRequest(name[:80], "an unknown field", _names(schema))
    texts: dict[str, str] = {}
    integers: dict[str, int] = {}
    for name, field in schema.items():
        if isinstance(field, Text):
            if name not in document and not field.optional:
                raise BadRequest(name, "nothing", "text")
            texts[name] = field.read(name, document.get(name, ""))
        else:
            integers[name] = field.read(name, document.get(name, field.default))
    return Fields(texts, integers)


def reply(model: ServedModel, answer: Mapping[str, object]) -> Mapping[str, object]:
    """Return the result of `run`: the prediction and the digest of the model that made it.

    Raises ValueError for NaN and infinite numbers, which JSON does not have.
    """
    _STRICT.encode(answer)
    return with_digest(model, answer)


def with_digest(model: ServedModel, answer: Mapping[str, object]) -> Mapping[str, object]:
    """Return what `reply` does, for predictions whose numbers are known to be finite."""
    return {**answer, "model_digest": model.digest}


# A constant: creating one takes longer than encoding a small response.
_STRICT = json.JSONEncoder(allow_nan=False, default=str)


def refusal(error: BadRequest) -> AMLResponse:
    """Return the result of `run` for an invalid request: status 400 and the error as JSON.

    A managed endpoint passes it on as 424 with `ms-azureml-model-error-statuscode: 400`.
    """
    details = {"field": error.field, "actual": error.actual, "expected": error.expected}
    return _error(400, {"message": str(error), **details})


def unavailable(code: str, actual: str, expected: str) -> AMLResponse:
    """Return the result of `run` if a service that it needs is unreachable: status 503."""
    return _error(503, {"code": code, "message": f"{actual}; expected: {expected}"})


def _error(status: int, details: Mapping[str, str]) -> AMLResponse:
    # Installed wherever the inference server runs a score.py.
    from azureml_inference_server_http.api.aml_response import AMLResponse

    return AMLResponse({"error": details}, status, json_str=True)


# Matches what may be NaN, infinite or too large for a double; strings may contain it, too.
_UNUSUAL = rb"NaN|Infinity|\d[\d.]*[eE]\+?\d{2,}|\d{309,}"
_SUSPECT = re.compile(_UNUSUAL)
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+"|' + _UNUSUAL, re.DOTALL)


def is_finite(content: bytes) -> bool:
    """Return whether every number of a JSON response is valid in JSON (RFC 8259, section 6).

    A scoring script may return JSON as a string, which its server encodes again: the inner JSON is
    checked too. JSON in UTF-16 or after a byte order mark is checked, since clients parse it.
    Content of any other type counts as finite.
    """
    encoding = json.detect_encoding(content)
    if encoding != "utf-8":
        content = content.decode(encoding, "replace").lstrip("\ufeff").encode()
    if not _SUSPECT.search(content):
        return True
    content = content.strip()
    if content.startswith(b'"'):
        try:
            text = json.loads(content)
        except ValueError:
            return True
        return not isinstance(text, str) or is_finite(text.encode("utf-8", "surrogatepass"))
    if content.startswith((b"{", b"[")):
        return all(map(_is_finite, _TOKENS.findall(content)))
    return content.removeprefix(b"-") not in (b"NaN", b"Infinity")


def _is_finite(token: bytes) -> bool:
    return token.startswith(b'"') or math.isfinite(float(token))


def _names(schema: Schema) -> str:
    return ", ".join(f"`{name}`" for name in schema)
