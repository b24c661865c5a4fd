"""A drill: a bad green on purpose, taken back while the old version serves."""

from __future__ import annotations

import json

import pytest

from ml.backends.endpoints import BASELINE, SLOTS
from ml.backends.local.serving import endpoint
from ml.cli.app import main
from ml.core.errors import UserError
from ml.release import audit
from ml.release.rollout import faulty
from ml.release.rollout.drill import drill, with_fault
from ml.release.rollout.invoke import ask
from tests.backends.serving.servers import process_of
from tests.local import BACKEND, LOG
from tests.release.conftest import World


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["errors", "slow"])
def test_the_canary_takes_it_back(served: World, fault: str) -> None:
    """No request to the old version fails, nothing of it is left, and nothing is promoted."""
    live = endpoint.live("tiny")
    done = drill(BACKEND, "tiny", fault)
    assert done.noticed and done.outcome.kind == "rolled-back" and done.failed == 0
    assert endpoint.live("tiny") == live
    running = (*SLOTS, BASELINE)
    assert [one for one in running if process_of(endpoint.folder("tiny") / one)] == [
        live.server.slot.name if live else ""
    ]
    assert ask(BACKEND, "tiny", {"question": "how?"}).version == "1"
    champion = BACKEND.registry.champion("tiny", "local")
    assert champion is not None and champion.version == "1"
    assert [line["event"] for line in audit.verify(LOG)][-1] == "drill"


@pytest.mark.slow
def test_a_fault_that_is_not_noticed(served: World, capsys: pytest.CaptureFixture[str]) -> None:
    """The tiny project says of no field that it is the prediction: a constant one passes, and the
    drill says so with exit code 1. Green is taken back all the same."""
    live = endpoint.live("tiny")
    with pytest.raises(SystemExit) as ended:
        main(["release", "drill", "tiny", "--fault", "constant", "--json"])
    assert ended.value.code == 1
    said = json.loads(capsys.readouterr().out)
    assert said["noticed"] is False and said["outcome"]["outcome"] == "passed"
    assert (
        endpoint.live("tiny") == live and ask(BACKEND, "tiny", {"question": "how?"}).version == "1"
    )


def test_what_cannot_be_drilled(world: World) -> None:
    """Another fault, and a project of which nothing serves."""
    with pytest.raises(UserError, match="no-such-fault"):
        drill(BACKEND, "tiny", "fire")
    with pytest.raises(UserError, match="no-live-deployment"):
        drill(BACKEND, "tiny", "errors")
    assert not audit.verify(LOG)


def test_the_same_model_behind_the_fault(served: World) -> None:
    """Green's deployment differs in its script and two variables, and in nothing else."""
    live = endpoint.live("tiny")
    assert live is not None
    bad = with_fault(live.deployment, "slow")
    assert (bad.digest, bad.version, bad.code) == (
        live.deployment.digest,
        live.deployment.version,
        live.deployment.code,
    )
    assert bad.scoring_script == faulty.__file__
    assert bad.environment_variables[faulty.SCRIPT].endswith("score.py")
