"""ml.backends.azure.traffic: the version that an answer without its digest belongs to."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from ml.backends.azure.endpoints import AzureEndpoints
from ml.backends.azure.model_registry import AzureRegistry
from ml.backends.azure.traffic import collected
from ml.core.errors import UserError
from ml.release.watch.requests import read_collected

TIME = "2026-11-20T12:30:00+00:00"


def workspace(*answers: tuple[int, str | None]) -> Any:
    """A container with the requests of `blue` and their answers, each a status and a digest."""
    requests, responses = [], []
    for number, (status, digest) in enumerate(answers):
        name = {"correlationid": str(number), "time": TIME}
        requests.append({**name, "data": {"q": 1}})
        data = {"model_digest": digest} if digest else "Traceback"
        responses.append({**name, "data": data, "statuscode": status})
    blobs = {
        f"modelDataCollector/tiny/blue/{kind}/2026/11/20/12/i-0.jsonl": "\n".join(
            json.dumps(event) for event in events
        ).encode()
        for kind, events in (("request", requests), ("response", responses))
    }
    container = SimpleNamespace(
        list_blob_names=lambda name_starts_with: [*blobs],
        download_blob=lambda name: SimpleNamespace(chunks=lambda: [blobs[name]]),
    )
    return SimpleNamespace(blobs=container)


@pytest.mark.parametrize(
    ("answers", "crashed"),
    [
        ([(200, "d"), *[(500, None)] * 9], 9),
        ([(200, "other"), *[(500, None)] * 9, (200, "d")], 0),
        ([(200, "other"), (500, None), (200, "d"), *[(500, None)] * 8], 8),
        ([(500, None)] * 9, 9),
        ([*[(500, None)] * 9, (200, "d")], 0),
    ],
)
def test_an_error_belongs_to_the_version_that_answered_before(
    answers: list[tuple[int, str | None]], crashed: int
) -> None:
    """A traceback has no `model_digest`. Without any answer, the version is what serves now."""
    lines = collected(workspace(*answers), "tiny", digests={"blue": "d"})
    seen = read_collected(lines, "d")
    assert seen.crashed == crashed and bool(seen.failing) is (crashed > 0)


def test_an_endpoint_that_somebody_changed_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only errors before any answer then belong to nobody."""
    made = workspace((500, None), (200, "d"))
    endpoints = AzureEndpoints(made, AzureRegistry(made))

    def gone(name: str, *, as_released: bool) -> None:
        raise UserError.with_code("endpoint-changed", "the deployment blue is gone", "blue")

    monkeypatch.setattr(endpoints, "live", gone)
    seen = read_collected(endpoints.collected("tiny"), "d")
    assert (seen.requests, seen.others) == (1, 1)
