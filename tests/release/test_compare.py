"""`ml compare` on real versions: what references stand for, and that comparing changes nothing."""

from __future__ import annotations

import json

import pytest

from ml.backends.base import Backend
from ml.backends.local.runs.store import LocalRuns
from ml.backends.model_registry import Version
from ml.cli.app import main
from ml.core.errors import UserError
from ml.release import audit
from ml.release.comparison import versus
from ml.release.evidence import evidence
from ml.reports.pull_requests.comparison import marker
from policies.promotion.evidence import Evidence
from tests.local import BACKEND, LOG
from tests.policies import cases
from tests.release import tiny
from tests.release.conftest import World


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What the command prints on stdout; it succeeds."""
    with pytest.raises(SystemExit) as ended:
        main(["compare", *words])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_champion_is_what_is_compared_with(declared_world: World) -> None:
    """By version, by run, and either way round; no run is made and no decision logged."""
    before = len(audit.verify(LOG)), len([*LocalRuns().all()])
    found = versus(BACKEND, "tiny:2", None, "local")
    assert found.champion.name == "tiny 1" and found.notes == ()
    first = found.metrics[0]
    assert (first.place, first.metric, first.verdict) == ("test", "gain_at_1", "better")
    assert first.difference is not None and first.difference.mean == pytest.approx(0.15)
    assert {one.place for one in found.slices} == {"side=left", "side=right"}
    assert all(one.verdict == "better" for one in found.slices)
    assert found.decision is not None and found.decision.outcome == "pending"
    assert found.decision.champion == "1"
    for words in (
        ("tiny:2", "tiny:1"),
        (declared_world.run(0.95), "champion@local"),
        ("tiny:2", declared_world.run(0.8)),
    ):
        again = versus(BACKEND, *words, "local")
        assert again.metrics == found.metrics, words
    back = versus(BACKEND, "champion@local", "tiny:2", "local")
    assert back.metrics[0].verdict == "worse"
    assert (len(audit.verify(LOG)), len([*LocalRuns().all()])) == before


def test_other_features_than_the_champions_are_noted(
    declared_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash of the feature set is another one."""
    load = evidence.load

    def other(backend: Backend, version: Version) -> Evidence:
        found = load(backend, version)
        features = ("f" if version.version == "1" else "e") * 64
        return cases.evaluated(found, feature_set_hash=features)

    monkeypatch.setattr(evidence, "load", other)
    told = "tiny 2 reads other features than tiny 1: the same names, computed differently"
    assert versus(BACKEND, "tiny:2", None, "local").notes == (told,)


def test_the_environment_is_the_champions(declared_world: World) -> None:
    """`champion@ENV` names it already; without one it is `local`."""
    assert versus(BACKEND, "tiny:2", "champion@local").environment == "local"
    with pytest.raises(UserError, match="no-such-champion"):
        versus(BACKEND, "tiny:2", "champion@prod")
    with pytest.raises(UserError, match="no-such-environment"):
        versus(BACKEND, "tiny:2", "champion@qa")
    assert versus(BACKEND, "tiny:2", "champion@local", "prod").environment == "prod"


def test_the_champion_itself(declared_world: World) -> None:
    """Nothing to compare, and said so."""
    found = versus(BACKEND, "tiny:1", None, "local")
    assert found.champion is None
    assert found.notes == ("tiny 1 is the same model as tiny 1",)
    assert found.decision is not None and found.decision.outcome == "already-champion"


@pytest.mark.slow
def test_a_champion_on_other_data_is_scored_again(declared_world: World) -> None:
    """Its numbers are then of the candidate's questions."""
    tiny.questions(declared_world.project.root, 300)
    run = declared_world.project.train(0.9)
    from ml.release.promotion.propose import propose

    propose(BACKEND, "tiny", run.name, reason="new data")
    assert BACKEND.runs.find("latest").id == run.id  # not the evaluations of the release
    found = versus(BACKEND, "tiny:3", None, "local")
    assert found.notes == ("tiny 1 was scored again on the data of tiny 3",)
    first = found.metrics[0]
    assert first.difference is not None and first.difference.count == 300


@pytest.mark.slow
def test_a_run_that_was_only_evaluated(declared_world: World) -> None:
    """The pipeline's own evaluation is compared; no gate is asked, and what is missing is named."""
    done = declared_world.project.pipeline()
    found = versus(BACKEND, done.name, None, "local")
    assert found.decision is None
    assert [note for note in found.notes if "the gates were not evaluated" in note]
    assert found.metrics[0].difference is None  # which data it saw is in no evidence yet
    assert "lineage.commit" in found.missing and "cost.training.seconds" in (found.missing)


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ("tiny:9", "no-such-version"),
        ("nobody:1", "no-such-version"),
        ("champion@prod", "no-such-champion"),
        ("champion@", "no-such-environment"),
        ("champion@qa", "no-such-environment"),
        ("no_such_run_01", "no-such-run"),
    ],
)
def test_what_is_not_there(declared_world: World, wanted: str, code: str) -> None:
    with pytest.raises(UserError) as raised:
        versus(BACKEND, wanted, None, "local")
    assert raised.value.problems[0].code == code


def test_a_model_of_which_nothing_is_known(world: World) -> None:
    """A training run alone: what to type next is said."""
    run = world.run(0.8)
    with pytest.raises(UserError, match=rf"ml release propose tiny --run {run}"):
        versus(BACKEND, run, None, "local")


def test_evidence_that_was_edited_claims_nothing(declared_world: World) -> None:
    """Neither numbers nor differences: the gates refuse it, and the comment says why."""
    papers = BACKEND.registry.find("tiny", "2").evidence_folder / "evidence.json"
    papers.write_text(papers.read_text().replace("0.95", "0.99", 1))
    found = versus(BACKEND, "tiny:2", None, "local")
    assert found.metrics == () and "differs from the file that was registered" in (found.unpaired)
    assert found.decision is not None and found.decision.outcome == "rejected"


def test_the_command_in_three_forms(
    declared_world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """A comment, a document, a table."""
    comment = said(capsys, "tiny:2", "--format", "md")
    assert comment.startswith(marker("tiny", "local") + "\n")
    assert "### tiny 2 against tiny 1 for local" in comment and "├" in comment
    assert "Missing from the evidence" not in comment
    document = json.loads(said(capsys, "tiny:2", "--format", "json"), parse_constant=pytest.fail)
    assert document["metrics"][0]["verdict"] == "better"
    assert document["decision"]["outcome"] == "pending" and document["missing"] == []
    assert document["lineage"]["run_name"] == declared_world.run(0.95)
    table = said(capsys, "tiny:2")
    assert "better" in table and "latency, p95" in table
    with pytest.raises(SystemExit) as ended:
        main(["compare", "tiny:2", "--format", "html"])
    assert ended.value.code == 2
