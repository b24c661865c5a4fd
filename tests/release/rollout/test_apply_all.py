"""ml.release.rollout.apply_all: a fault of one project stops no other."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ml.core.errors import UserError
from ml.release import audit
from ml.release.declaration import desired_state, projects
from ml.release.rollout.apply import Applied
from ml.release.rollout.apply_all import apply_all

FAULT = UserError.with_code("service-failed", "Azure is not available", "a response")


@pytest.mark.parametrize("at", ["read", "apply", "live"])
def test_one_project_stops_no_other(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever Azure fails; that project's result says so."""

    def fails(where: str, name: str) -> None:
        if where == at and name.startswith("first"):
            raise FAULT

    def read(backend: object, name: str, environment: str) -> Any:
        fails("read", name)
        return SimpleNamespace(model=name, version="1", decision="d")

    def apply(name: str) -> Applied | None:
        fails("apply", name)
        return None

    def live(name: str) -> Any:
        fails("live", name)
        return SimpleNamespace(deployment=SimpleNamespace(version="1", digest="sha256:1"))

    names = ("first", "second")
    listed = [SimpleNamespace(name=name) for name in names]
    monkeypatch.setattr(projects, "every", lambda root: listed)
    monkeypatch.setattr(desired_state, "projects", lambda backend: names)
    monkeypatch.setattr(desired_state, "read", read)
    endpoints = SimpleNamespace(name_of=lambda model, environment: f"{model}-dev", live=live)
    monkeypatch.setattr(audit, "history", lambda log, endpoint: fails("apply", endpoint))
    backend: Any = SimpleNamespace(root=Path(), endpoints=endpoints, audit_log=None)
    first, second = apply_all(backend, "dev", "ana", apply)
    assert (second.outcome, second.exit_code, second.serving) == ("unchanged", 0, "1")
    assert (first.outcome, first.exit_code, [*first.problems]) == ("failed", 2, [*FAULT.problems])
