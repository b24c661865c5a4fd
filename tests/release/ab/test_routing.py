"""`ml ab` from start to stop on a real endpoint: who is assigned B is answered by B."""

from __future__ import annotations

import errno
import http.client
import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ml.backends.base import AuditLog
from ml.backends.endpoints import idle_slot
from ml.backends.local.serving import endpoint, processes, server
from ml.core import files
from ml.core.errors import UserError
from ml.release import audit
from ml.release.ab import experiment, routing
from ml.release.declaration import desired_state, projects
from ml.release.declaration.release_file import ReleaseEntry
from ml.release.rollout.apply import apply, plan_rollout, record
from tests.backends.serving.servers import process_of
from tests.local import BACKEND, LOG
from tests.release.conftest import Template, World
from tests.release.test_commands import ml

KEYS = [f"customer-{number}" for number in range(16)]
START = ("ab", "start", "wording", "tiny", "--b", "2", "--baseline", "0.4", "--effect", "0.1")


def ask(key: str) -> tuple[str, str]:
    """The digest of the model that answered a key, and the slot that it is in."""
    router = endpoint.router("tiny")
    assert router is not None
    connection = http.client.HTTPConnection(processes.HOST, router.port, timeout=20)
    connection.request("POST", "/score", b'{"question": "how?"}', {"x-routing-key": key})
    response = connection.getresponse()
    body = json.loads(response.read())
    connection.close()
    return body["model_digest"], response.headers["azureml-model-deployment"]


@pytest.mark.slow
def test_an_experiment_from_start_to_stop(
    challenged: World, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Declared, allowed, served, recorded, reported, stopped."""
    code, _, err = ml(capsys, *START, "--b", "1")
    assert code == 2 and "ab-same" in err
    code, _, err = ml(capsys, *START, "--a", "7")
    assert code == 2 and "no-such-version" in err
    code, out, _ = ml(capsys, *START, "--json")
    assert code == 0 and json.loads(out)["planned"] > json.loads(out)["fixed_sample_size"]
    assert "salt" not in out
    code, _, err = ml(capsys, "ab", "serve", "wording")
    assert (
        code == 3
        and "--approved-by" in err
        and not routing.is_served(BACKEND, experiment.find("wording"))
    )
    code, _, err = ml(capsys, "ab", "serve", "wording", "--approved-by", "ana")
    assert code == 0 and "50 % of the keys" in err
    code, out, _ = ml(capsys, "release", "status", "tiny", "--env", "local")
    assert "version 2 has 50 % of the requests, for the experiment wording" in out
    made = experiment.find("wording")
    digests = {"A": made.a.digest, "B": made.b.digest}
    arms = {key: made.arm(made.ticket(key)) for key in KEYS}
    assert set(arms.values()) == {"A", "B"}
    for key, arm in arms.items():
        assert ask(key)[0] == digests[arm]

    code, _, err = ml(capsys, "ab", "record", "wording", "nobody", "1")
    assert code == 2 and "unknown-key" in err
    lines = tmp_path / "outcomes.csv"
    lines.write_text("".join(f"{key},1\n" for key in KEYS))
    code, _, err = ml(capsys, "ab", "record", "wording", "--from", str(lines))
    assert code == 0 and "16 recorded" in err
    code, _, err = ml(capsys, "ab", "record", "wording", KEYS[0], "0")
    assert code == 0 and "1 ignored: the key had an outcome already" in err
    code, out, _ = ml(capsys, "ab", "report", "wording")
    assert code == 0 and "too few outcomes" in out
    code, out, _ = ml(capsys, "ab", "report", "wording", "--json")
    told = json.loads(out)
    assert (told["kind"], told["served"], told["a"]["outcomes"] + told["b"]["outcomes"]) == (
        *("undecided", True),
        16,
    )
    assert told["records"]["contradicting"] == 1

    code, _, err = ml(capsys, "ab", "stop", "wording")
    assert code == 0 and "stopped" in err and {ask(key)[0] for key in KEYS} == {digests["A"]}
    code, out, err = ml(capsys, "ab", "list")
    assert code == 0 and out.startswith("wording: tiny 1 against 2: undecided")


@pytest.mark.slow
def test_b_is_started_again_and_an_apply_leaves_it_alone(
    challenged: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """B's server is killed; then what is declared is applied, which is what is live."""
    assert ml(capsys, *START)[0] == 0
    made = experiment.find("wording")
    assert routing.serve(BACKEND, made, "ana")[1] is not None
    digests = {"A": made.a.digest, "B": made.b.digest}
    expected = [digests[made.arm(made.ticket(key))] for key in KEYS]
    live = endpoint.live("tiny")
    assert live is not None and live.canary is not None
    os.kill(live.canary.server.pid, signal.SIGKILL)
    while server.is_up(live.canary.server):
        pass
    _, started = endpoint.ensure("tiny")
    assert started and [ask(key)[0] for key in KEYS] == expected

    # An apply that has nothing to do leaves it alone.
    one = BACKEND.registry.find("tiny", "1")
    (decision, *_) = [
        str(line["decision"]) for line in audit.verify(LOG) if line["event"] == "applied"
    ]
    desired_state.declare(
        BACKEND,
        "tiny",
        "local",
        ReleaseEntry(one.model, one.version, one.digest, one.evidence, decision),
    )
    assert apply(BACKEND, "tiny", "local", "ana").outcome == "unchanged" and routing.is_served(
        BACKEND, made
    )


@pytest.mark.slow
def test_a_full_disk_sends_no_key_to_a_b_that_is_stopped(
    challenged: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log cannot be written, and then the state not either: every key is answered, by A."""
    assert ml(capsys, *START)[0] == 0
    made = experiment.find("wording")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    written = audit.append
    with pytest.MonkeyPatch.context() as patch:

        def append(log: AuditLog, event: str, details: Mapping[str, object]) -> str:
            if event == "ab-served":
                patch.setattr(files, "replace", full)
                full()
            return written(log, event, details)

        patch.setattr(audit, "append", append)
        code, _, err = ml(capsys, "ab", "serve", "wording", "--approved-by", "ana")
    assert code == 1 and "error[disk-full]" in err
    assert not routing.is_served(BACKEND, made) and {ask(key)[0] for key in KEYS} == {made.a.digest}
    assert process_of(endpoint.folder("tiny") / idle_slot(endpoint.live("tiny"))) is None
    assert routing.serve(BACKEND, made, "ana")[1] is not None


@pytest.mark.slow
def test_b_is_not_served_beside_another_than_a(challenged: World) -> None:
    """What is live is not the version that the experiment calls A."""
    registry = BACKEND.registry
    one, two = registry.find("tiny", "1"), registry.find("tiny", "2")
    made = experiment.declare(
        BACKEND,
        *("upside-down", two, one),
        environment="local",
        outcome="binary",
        effect=0.1,
        baseline=0.4,
    )
    with pytest.raises(UserError, match="ab-not-live"):
        routing.serve(BACKEND, made, "ana")
    assert not routing.is_served(BACKEND, made)


def test_a_b_that_its_canary_took_back_is_not_served(
    declared: Template,
    copied: Callable[[Template], World],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It passed the gates; what its canary saw counts all the same, and no server is started."""
    copied(declared)
    code, _, err = ml(capsys, *START)
    assert code == 0 and "no key is sent to B yet" in err and "without a canary" in err
    change = plan_rollout(BACKEND, projects.find(BACKEND.root, "tiny"), "local")
    assert change is not None
    record(change, "rolled-back", None, why="latency: too slow")
    code, _, err = ml(capsys, "ab", "serve", "wording", "--approved-by", "ana")
    assert code == 3 and "error[version-rejected]" in err and "latency: too slow" in err
    assert "propose it again: ml release propose tiny --run " in err
    assert not routing.is_served(BACKEND, experiment.find("wording"))


def test_a_name_is_not_asked_for_where_another_gate_says_no(
    declared: Template,
    copied: Callable[[Template], World],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """To approve what is refused all the same would be no next step."""
    world = copied(declared)
    assert ml(capsys, *START)[0] == 0
    gates = world.project.folder / "gates.yml"
    gates.write_text(gates.read_text().replace("gain_at_1: 0.6", "gain_at_1: 0.99"))
    code, _, err = ml(capsys, "ab", "serve", "wording")
    assert code == 3 and "gates that failed: quality, sign-off" in err
    assert "--approved-by" not in err
