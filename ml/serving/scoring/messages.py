"""Parse requests and build responses; an invalid request gets status 400 with the reason."""

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
    """A request that violates the schema; `field` is "" if the whole body is wrong."""

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
        """Return the text; raise BadRequest if it is not text, too long, or blank but required."""
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
    """An optional integer field of a request, from `lowest` to `highest`."""

    lowest: int
    highest: int
    default: int  # for a request without the field

    def read(self, name: str, value: object) -> int:
        """Return the integer; raise BadRequest for another type or a number out of range."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadRequest(name, type(value).__name__, "a whole number")
        if not self.lowest <= value <= self.highest:
            raise BadRequest(name, str(value)[:40], f"{self.lowest} to {self.highest}")
        return value


Schema = Mapping[str, Text | Integer]


@dataclass(frozen=True)
class Fields:
    """The parsed fields of a valid request."""

    texts: Mapping[str, str]
    integers: Mapping[str, int]


def read_json(body: str | bytes) -> object:
    """Parse the JSON of a request.

    Raises BadRequest for a duplicate key (`json` would use the last value), and ValueError or
    RecursionError for text that is not JSON.
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
    """Parse a JSON object with the fields of `schema`; raise BadRequest for the first error."""
    try:
        document = read_json(body)
    except (ValueError, RecursionError):
        expected = f"an object with {_names(schema)}"
        if not body.strip():  # curl -d sends a form by default, which the server does not pass on
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
    """Return the result for `run`: the answer with the digest of the model.

    Raises ValueError for NaN and infinite numbers, which are invalid in JSON.
    """
    _STRICT.encode(answer)
    return with_digest(model, answer)


def with_digest(model: ServedModel, answer: Mapping[str, object]) -> Mapping[str, object]:
    """Add the model's digest to the answer, like `reply`, without checking its numbers."""
    return {**answer, "model_digest": model.digest}


# Created once, because that takes longer than encoding a small response.
_STRICT = json.JSONEncoder(allow_nan=False, default=str)


def refusal(error: BadRequest) -> AMLResponse:
    """Return the result for `run` if the request is invalid: status 400 and the error as JSON.

    A managed endpoint converts it to 424 with `ms-azureml-model-error-statuscode: 400`.
    """
    details = {"field": error.field, "actual": error.actual, "expected": error.expected}
    return _error(400, {"message": str(error), **details})


def unavailable(code: str, actual: str, expected: str) -> AMLResponse:
    """Return the result for `run` if a required service is unreachable: status 503."""
    return _error(503, {"code": code, "message": f"{actual}; expected: {expected}"})


def _error(status: int, details: Mapping[str, str]) -> AMLResponse:
    # Import it late: it is installed only with the inference server.
    from azureml_inference_server_http.api.aml_response import AMLResponse

    return AMLResponse({"error": details}, status, json_str=True)


# Matches NaN, infinities and numbers that may exceed a double, also inside strings.
_UNUSUAL = rb"NaN|Infinity|\d[\d.]*[eE]\+?\d{2,}|\d{309,}"
_SUSPECT = re.compile(_UNUSUAL)
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+"|' + _UNUSUAL, re.DOTALL)


def is_finite(content: bytes) -> bool:
    """Return True if a response has no NaN and no infinite number (RFC 8259, section 6).

    If a scoring script returns JSON as a string, the server encodes it again; the inner JSON is
    checked, too. JSON may be in UTF-16 or begin with a BOM. Other content counts as finite.
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
