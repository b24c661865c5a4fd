"""What cleaning must leave of releases, and the lineage of a run to where it serves."""

from __future__ import annotations

import json
import os

import pytest

from ml.backends.local import cleaning
from ml.backends.local.runs.store import LocalRuns
from ml.backends.local.serving import endpoint
from ml.backends.model_registry import model_folder
from ml.core import home
from ml.core.errors import UserError
from ml.release.declaration import desired_state
from ml.release.rollout.apply import apply
from ml.release.versions import descendants, find_in_use, store
from tests.local import BACKEND
from tests.release.conftest import World

pytestmark = pytest.mark.slow


def test_the_index_is_the_registry(challenged: World) -> None:
    """What is read straight from the tables is what MLflow's client tells."""
    registry = BACKEND.registry
    assert list(BACKEND.registry.versions()) == list(registry.versions("tiny"))
    champion = registry.champion("tiny", "local")
    assert champion is not None
    assert BACKEND.registry.champion("tiny", "local") == champion
    # Where they were registered: this home is a copy.
    for version in BACKEND.registry.versions():
        assert version.source.rpartition("/")[2] == version.folder.name


def test_a_run_is_followed_to_where_it_serves(challenged: World) -> None:
    """Made, declared, champion, serving; a run of the same files; the evaluation; and none."""
    (first,) = descendants(BACKEND, challenged.runs[0.8])
    assert (first.version, first.relation, first.champion) == ("1", "made", ["local"])
    assert [one.endpoint for one in first.serving] == ["tiny"]
    assert first.serving[0].url and first.declared == []
    (second,) = descendants(BACKEND, challenged.runs[0.95])
    assert (second.version, second.declared, second.serving) == ("2", ["local"], [])
    assert descendants(BACKEND, challenged.runs[0.7]) == []
    again = challenged.project.train(0.8)
    assert [(one.version, one.relation) for one in descendants(BACKEND, again)] == [
        ("1", "same files")
    ]
    document = json.loads(
        (BACKEND.registry.versions()[0].evidence_folder / "evidence.json").read_text()
    )
    evaluation = [
        entry
        for entry in LocalRuns().entries()
        if entry.run.id == document["lineage"]["evaluation_run"]
    ]
    assert [one.relation for one in descendants(BACKEND, evaluation[0].run)] == ["evaluated"]
    endpoint.stop("tiny")
    assert descendants(BACKEND, challenged.runs[0.8])[0].serving[0].url is None


def test_a_release_survives_the_hardest_cleaning(challenged: World) -> None:
    """Runs that nobody registered go; the rest serves, is declared and is judged as before."""
    stray = challenged.runs[0.7]
    copy = model_folder(store(stray.outputs["model"]))
    for folder in (*home.snapshots().iterdir(), *copy.parent.iterdir()):
        os.utime(folder, (0, 0))
    found = cleaning.plan(find_in_use(BACKEND), keep=0)
    kinds = {item.name: item.kind for item in found.items}
    assert kinds[stray.name] == "run" and kinds[copy.name[:12]] == "model"
    assert challenged.runs[0.8].name in found.stay and challenged.runs[0.95].name in found.stay
    assert cleaning.remove(found, cleaning.plan(find_in_use(BACKEND), keep=0))[1] == []
    assert not stray.folder.exists() and not copy.exists()
    live = endpoint.live("tiny")
    assert live is not None and live.deployment.code.is_dir()
    endpoint.check_deployment(live.deployment)
    endpoint.stop("tiny")
    endpoint.ensure("tiny")
    assert apply(BACKEND, "tiny", "local", "ana").outcome == "applied"
    assert cleaning.plan(find_in_use(BACKEND), keep=0).items == ()


def test_nothing_is_touched_while_a_project_is_being_released(world: World) -> None:
    """A model that was stored and is not registered yet is no orphan."""
    copy = model_folder(store(world.runs[0.8].outputs["model"]))
    os.utime(copy, (0, 0))
    assert [item.kind for item in cleaning.plan(find_in_use(BACKEND)).items] == ["model"]
    with desired_state.project_lock("tiny"):
        assert cleaning.plan(find_in_use(BACKEND)).items == ()


def test_unreadable_evidence_stops_the_cleaning(challenged: World) -> None:
    """What the version needs is not known: nothing is safe to remove."""
    (BACKEND.registry.versions()[0].evidence_folder / "evidence.json").write_text("{")
    with pytest.raises(UserError) as refused:
        find_in_use(BACKEND)
    assert refused.value.problems[0].code == "evidence-unreadable"
