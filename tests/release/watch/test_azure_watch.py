"""`ml watch --on azure`: what the data collectors of managed endpoints wrote, compared here."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ml.backends.azure.backend import AzureBackend
from ml.backends.endpoints import Canary, Live
from ml.backends.model_registry import EVIDENCE_FILE, Version
from ml.measures.reference import write_reference
from ml.release.declaration import projects
from ml.release.declaration.projects import Project
from ml.release.evidence.evidence import REFERENCE_FIELD, keep_reference
from ml.release.watch.requests import read_collected
from tests.backends.conftest import azure
from tests.backends.deployments import SAMPLES, released
from tests.release.test_commands import ml
from tests.stand_ins.azure.running import StandIn, provision, register_environment

__all__ = ["azure"]
QUESTIONS = [f"how do I run job {number} on a spot node" for number in range(60)]
OTHERS = [f"wo wohnt Herr Meier aus Haus {number}" for number in range(60)]


def with_reference(backend: AzureBackend, version: Version, folder: Path) -> Version:
    """Keep evidence with a reference of the questions."""
    scores = [0.01 * len(question) for question in QUESTIONS]
    write_reference(
        *(folder / "made", version.digest, {"question": ("text", QUESTIONS)}),
        *({"answers/0/score": ("numeric", scores)}, {}),
    )
    stated = json.dumps({REFERENCE_FIELD: keep_reference(folder / "made", folder)})
    (folder / EVIDENCE_FILE).write_text(stated)
    sha256 = hashlib.sha256(stated.encode()).hexdigest()
    kept = replace(version, evidence=sha256).evidence_folder
    kept.parent.mkdir(parents=True)
    folder.rename(kept)
    return backend.registry.keep_evidence(version, sha256)


@pytest.mark.slow
def test_a_model_on_azure_is_watched(
    azure: StandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No breach, then a breach, from a machine with a home that was empty.

    A release's own requests do not count, a copy of what serves records to a place of its own.
    """
    azure.enter(monkeypatch)
    backend, endpoints = AzureBackend(), AzureBackend().endpoints
    register_environment(backend.workspace.client, "ml-cpu", "1")
    name = endpoints.name_of("tiny", "dev")
    provision(backend.workspace.client, name)
    deployment = replace(released(backend, "tiny", tmp_path, collect=True), endpoint=name)
    version = backend.registry.find("tiny", "1")
    monkeypatch.setattr(projects, "find", lambda root, name: Project(name, tmp_path))
    with_reference(backend, version, tmp_path / "evaluation")
    with endpoints.locked(name):
        server = endpoints.begin(deployment)()
        endpoints.switch(name, Live(server, deployment))
    url = endpoints.start_router(name).url
    monkeypatch.setenv("MLOPS_HOME", str(tmp_path / "another"))
    words = ("watch", "tiny", "--env", "dev", "--on", "azure")
    code, out, err = ml(capsys, *words)
    assert code == 0 and "too few rows to say anything: 0" in out, err

    def ask(questions: list[str]) -> None:
        for question in questions:
            body = json.dumps({"question": question})
            assert backend.workspace.score(url, body, {})[0] == 200

    for _ in range(3):
        assert endpoints.score(server, SAMPLES[0]).status == 200
    ask(QUESTIONS)
    code, out, err = ml(capsys, *words)
    assert code == 0 and "no breach in" in out and "(60 rows)" in out, (out, err)
    ask(OTHERS)
    code, out, _ = ml(capsys, *words)
    assert code == 3 and "question: unknown words" in out

    code, _, err = ml(capsys, "watch", "tiny", "--on", "azure")
    assert code == 33 and "local-environment" in err

    live = endpoints.live(name)
    assert live and live.deployment.collect == 1.0
    with endpoints.locked(name):
        copy = endpoints.begin(live.deployment, "baseline")()
        green = Canary(copy, live.deployment, 0)
        endpoints.switch(name, replace(live, canary=green))
    assert endpoints.score(copy, SAMPLES[0]).status == 200
    folders = {
        blob.split("/")[2]
        for blob in backend.workspace.blobs.list_blob_names(name_starts_with="modelDataCollector")
    }
    assert folders == {server.slot.name, "baseline"}


@pytest.mark.slow
def test_what_collectors_leave(azure: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torn and strange lines are counted, files of hours before are not read, an answer may be in
    the next hour's file, and a request without one is none of this model.
    """
    azure.enter(monkeypatch)
    backend = AzureBackend()
    now = datetime(2026, 11, 20, 12, 30, tzinfo=UTC)

    def write(collection: str, hours: int, *lines: object) -> None:
        hour = (now + timedelta(hours=hours)).strftime("%Y/%m/%d/%H")
        name = f"modelDataCollector/tiny/blue/{collection}/{hour}/i-0.jsonl"
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        backend.workspace.blobs.upload_blob(name, text.encode())

    def event(name: str, data: object, **more: object) -> dict[str, Any]:
        return {"correlationid": name, "time": now.isoformat(), "data": data, **more}

    answer = {"model_digest": "d", "score": 1}
    write("request", -48, event("old", {}))
    write("response", -48, event("old", answer))
    write(
        *("request", 0, event("a", {"q": "a"}), event("late", {"q": "b"}), "{torn", "[]", "3"),
        *(event("lost", {}), {**event("big", 0), "data": None, "time": "soon"}),
        *(event("ours", {}, xrequestid="release-1"), {"correlationid": "referred"}),
    )
    write("response", 0, event("a", answer), event("ours", answer), event("big", answer), "{")
    write("response", 1, event("late", {**answer, "model_digest": "other"}), event("none", 1))
    since = now.timestamp() - 3600
    seen = read_collected(backend.endpoints.collected("tiny", since), "d", since)
    assert [row.request for row in seen.rows] == [{"q": "a"}]
    assert (seen.unreadable, seen.others, seen.failed, seen.earlier) == (5, 2, 0, 0)
    assert len(read_collected(backend.endpoints.collected("tiny"), "d").rows) == 2
    assert not [*backend.endpoints.collected("tin")]
