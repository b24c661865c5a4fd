"""`ml release drift`: what serves beside what is declared, and requests beside the evaluation."""

from __future__ import annotations

import json
import re

import pytest

from ml.backends.local.serving import endpoint
from ml.backends.local.serving.endpoint import ask as ask_endpoint
from ml.release.rollout.apply import apply
from tests.local import BACKEND
from tests.release.conftest import World
from tests.release.test_commands import ml
from tests.release.watch.test_report import OTHERS, QUESTIONS, collect, with_reference


@pytest.mark.slow
def test_the_drift_of_an_environment(challenged: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Declared and not applied; applied; requests of another kind; stopped. Nothing is changed."""
    code, out, _ = ml(capsys, "release", "drift", "--json")
    release, model = json.loads(out)
    assert code == 3 and (release["about"], release["project"]) == ("release", "tiny")
    assert [(row["what"], row["expected"], row["actual"]) for row in release["differences"]] == [
        ("serving version", "2", "1"),
        ("champion", "2", "1"),
    ]
    assert "declared, not applied" in release["words"]
    assert model["about"] == "model" and model["unknown"] and not model["differences"]

    assert apply(BACKEND, "tiny", "local", "ana").outcome == "applied"
    # Version 2 fails after its canary, and nobody collects requests: the router counts them.
    for _ in range(30):
        assert ask_endpoint("tiny", {"question": "0 is no number"}).status == 500
    _, out, _ = ml(capsys, "release", "status", "tiny")
    assert re.search(r"of version 2, 30 of \d+ requests failed .*ml release rollback tiny", out)
    code, out, _ = ml(capsys, "release", "drift", "--json")
    _, model = json.loads(out)
    assert code == 3 and [row["what"] for row in model["differences"]] == ["responses"]
    version = with_reference(BACKEND.registry.find("tiny", "2"))
    collect(version, QUESTIONS)
    code, out, _ = ml(capsys, "release", "drift")
    assert code == 0 and out.count("✔ tiny") == 2
    # Version 2 passed its canary and fails now; the first line went on where the log was torn.
    collect(version, QUESTIONS[:30], status=500)
    code, out, _ = ml(capsys, "release", "drift", "--json")
    _, model = json.loads(out)
    assert code == 3 and model["differences"][-1]["what"] == "responses"
    _, out, _ = ml(capsys, "release", "status", "tiny")
    assert "of version 2, 29 of 329 requests failed" in out and "ml release rollback tiny" in out
    collect(version, OTHERS * 3)
    code, out, _ = ml(capsys, "release", "drift", "--since", "1h", "--json")
    release, model = json.loads(out)
    assert code == 3 and not release["differences"]
    assert {row["what"].partition(":")[0] for row in model["differences"]} == {"question"}
    endpoint.stop("tiny")
    code, out, _ = ml(capsys, "release", "drift")
    assert code == 3 and "serving version: nothing serves, expected 2" in out
