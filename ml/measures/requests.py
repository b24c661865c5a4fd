"""requests.jsonl: rows of an evaluation as a client would send them.

A release sends them to the server that is to answer, and compares the answers with predictions.csv.
One JSON object a line: `{"split": "test", "unit": "17", "request": {…}}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

REQUESTS = "requests.jsonl"
# So many are kept.
MOST = 10_000
# Numbers are many: of a place of them the least and the greatest are shown to the server.
_LEAST, _GREATEST = "least", "greatest"


class RequestsRefused(ValueError):
    """A file of requests is not the one that an evaluation wrote."""


@dataclass(frozen=True)
class Request:
    """What a client sends to have the prediction of a unit of a split."""

    split: str
    unit: str
    request: Mapping[str, object]


def covering(requests: Sequence[Request], most: int = MOST) -> list[Request]:
    """Return up to `most` requests, ordered so that every prefix covers as much as possible.

    First come requests with each text and each missing value of every field, and with its least and
    greatest number, fields with few values first; then the others.
    """
    holders: dict[str, dict[object, int]] = {}
    extremes: dict[str, dict[str, tuple[float, int]]] = {}
    for number, request in enumerate(requests):
        for place, value in _leaves(request.request, ""):
            if isinstance(value, bool) or not isinstance(value, int | float):
                holders.setdefault(place, {}).setdefault(value, number)
                continue
            ends = extremes.setdefault(place, {_LEAST: (value, number), _GREATEST: (value, number)})
            if value < ends[_LEAST][0]:
                ends[_LEAST] = (value, number)
            if value > ends[_GREATEST][0]:
                ends[_GREATEST] = (value, number)
    for place, ends in extremes.items():
        holders.setdefault(place, {}).update({end: at for end, (_, at) in ends.items()})
    places = sorted(holders.values(), key=len)
    order = dict.fromkeys(number for place in places for number in place.values())
    order |= dict.fromkeys(range(len(requests)))
    return [requests[number] for number in order][:most]


def _leaves(value: object, place: str) -> Iterator[tuple[str, object]]:
    """Every text, number and missing value of a request, with its place."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{place}/{key}")
    elif isinstance(value, list | tuple):
        for at, inner in enumerate(value):
            yield from _leaves(inner, f"{place}/{at}")
    else:
        yield place, value


def content(requests: Sequence[Request]) -> bytes:
    """The file; ValueError for a number that JSON does not have."""
    lines = (json.dumps(asdict(row), allow_nan=False, ensure_ascii=False) for row in requests)
    return "".join(f"{line}\n" for line in lines).encode()


def read_requests(path: Path, digest: str) -> list[Request]:
    """The requests of a file with that sha256, in hex; RequestsRefused for any other file."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise RequestsRefused(f"{path.name}: {error.strerror}") from None
    if sha256(text).hexdigest() != digest:
        raise RequestsRefused(f"{path.name} is not the file whose sha256 the evidence states")
    try:
        # splitlines() would also split at the separators that a text may hold.
        requests = [Request(**json.loads(line)) for line in text.decode().split("\n") if line]
    except (ValueError, TypeError, RecursionError) as error:
        raise RequestsRefused(f"{path.name}: {error}") from None
    if not all(isinstance(request.request, dict) for request in requests):
        raise RequestsRefused(f"{path.name}: a request is not a JSON object")
    return requests
