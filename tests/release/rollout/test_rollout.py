"""A rollout that fails, is killed, or races: something good serves all the while."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest

from ml.backends.base import AuditLog
from ml.backends.endpoints import BASELINE, SLOTS, Canary, Live, Server
from ml.backends.local.serving import endpoint, server
from ml.backends.local.serving.server import START_S, Starting
from ml.backends.model_registry import EVIDENCE_FILE
from ml.core.errors import Problem, UserError
from ml.core.home import home
from ml.release import audit, serving
from ml.release.declaration import desired_state, projects
from ml.release.promotion.propose import propose
from ml.release.rollout.apply import Applied, apply
from ml.release.rollout.invoke import ask
from ml.release.rollout.status import status
from tests.backends.serving.servers import process_of
from tests.local import BACKEND, LOG
from tests.release import tiny
from tests.release.conftest import World
from tests.release.killing import killed
from tests.release.test_commands import ml
from tests.release.test_registry import full_disk

pytestmark = pytest.mark.slow

CRASH = "raise RuntimeError('no weights')"
# What score.py is changed to, and the error.
BAD_GREENS = {
    "crashes": ("weight = float", f"{CRASH}; weight = float", "server-crashed"),
    "answers nothing": ('asked.texts["question"]', 'asked.texts["nothing"]', "smoke-failed"),
    "another digest": ("return reply(model, {", "return ({", "smoke-failed"),
}


def running() -> list[str]:
    """The slots in which a server runs."""
    every = (*SLOTS, BASELINE)
    return [one for one in every if process_of(endpoint.folder("tiny") / one)]


def assert_blue_serves(live: Live | None) -> None:
    """The first version is live, champion and answers; nothing else runs."""
    assert live is not None and endpoint.live("tiny") == live
    champion = BACKEND.registry.champion("tiny", "local")
    assert champion and champion.version == "1"
    assert ask(BACKEND, "tiny", {"question": "how?"}).version == "1"
    assert running() == [live.server.slot.name]


def declare_serving() -> None:
    """Declare the serving code as it is now, as a proposal does where its server answers."""
    entry = desired_state.read(BACKEND, "tiny", "local")
    assert entry
    now = serving.snapshot(projects.find(BACKEND.root, "tiny").deployment_spec())
    serving.store(BACKEND.registry, now)
    version = BACKEND.registry.find("tiny", entry.version)
    document = json.loads((version.evidence_folder / EVIDENCE_FILE).read_text())
    document["serving"]["deployment_digest"] = now.snapshot_digest
    evidence = tiny.resealed(version, json.dumps(document)).evidence
    BACKEND.registry.keep_evidence(version, evidence)
    declares = replace(entry, deployment_digest=now.snapshot_digest, evidence=evidence)
    desired_state.declare(BACKEND, "tiny", "local", declares)


@pytest.mark.parametrize(("old", "new", "code"), BAD_GREENS.values(), ids=BAD_GREENS)
def test_a_bad_green_is_never_switched_to(challenged: World, old: str, new: str, code: str) -> None:
    """It crashes on start, fails a smoke request, or answers for another digest than the declared:
    blue is as before, and so is the state.
    """
    blue = endpoint.live("tiny")
    path = challenged.project.folder / "endpoint" / "score.py"
    sound = path.read_text()
    path.write_text(sound.replace(old, new))
    declare_serving()
    with pytest.raises(UserError) as raised:
        apply(BACKEND, "tiny", "local", "ana")
    assert raised.value.problems[0].code == code
    assert "log ends" not in status(BACKEND, "tiny", "local")[0].verdict
    assert_blue_serves(blue)
    path.write_text(sound)
    declare_serving()
    assert apply(BACKEND, "tiny", "local", "ana").outcome == "applied"


def test_a_green_that_fails_its_canary_is_not_tried_again(
    challenged: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Blue has everything as before, status says why, and only another deployment is tried.

    An apply of every project has the figures of the canary, now and later.
    """
    blue = endpoint.live("tiny")
    path = challenged.project.folder / "endpoint" / "score.py"
    sound = path.read_text()
    begins = "served = []\n\n\ndef run(body):\n    served.append(1)\n"
    bad = begins + "    if len(served) > 4: raise RuntimeError('tired')\n"
    path.write_text(sound.replace("def run(body):\n", bad))
    declare_serving()
    every = ("release", "apply", "--approved-by", "ana", "--json")
    code, out, err = ml(capsys, *every)
    (first,) = json.loads(out)
    assert code == 3 and "error[rolled-back]" in err and "errors:" in err
    assert (first["outcome"], first["version"], first["serving"]) == ("rolled-back", "2", "1")
    assert first["canary"]["outcome"] == "rolled-back" and first["canary"]["requests"]
    assert_blue_serves(blue)
    router = endpoint.router("tiny")
    assert router and router.state()["tallies"]["blue"]["sample"]["errors"] == 0
    assert "version 2 was rolled back (errors:" in status(BACKEND, "tiny")[0].verdict
    (line,) = [one for one in audit.verify(LOG) if one["event"] == "rolled-back"]
    assert line["version"] == "2" and line["approved_by"] == "ana"
    code, out, _ = ml(capsys, *every)
    (second,) = json.loads(out)
    assert code == 3 and second["problems"][0]["code"] == "version-rejected"
    assert {**first, "problems": []} == {**second, "problems": []}
    assert_blue_serves(blue)
    path.write_text(sound)
    declare_serving()
    done = apply(BACKEND, "tiny", "local", "ana")
    assert done.outcome == "applied" and done.canary and done.canary.kind == "passed"
    assert status(BACKEND, "tiny")[0].verdict == "as declared"
    code, out, _ = ml(capsys, *every)
    assert code == 0 and json.loads(out)[0]["outcome"] == "unchanged"
    # A declaration that cannot be read is the failure of its project alone.
    other = challenged.project.folder.parent / "other"
    other.mkdir()
    (other / "gates.yml").touch()
    (home() / "release/other.yml").write_text("environments: 3\n")
    code, out, err = ml(capsys, *every)
    assert code == 2 and "missing-field" in out and "other: error[missing-field]" in err
    assert [one["outcome"] for one in json.loads(out)] == ["failed", "unchanged"]


def test_no_room_for_a_baseline_is_not_held_against_green(
    challenged: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blue serves, nothing is recorded and nothing left; the next apply tries the version."""
    blue = endpoint.live("tiny")
    answered = server.wait_until_ready

    def wait_until_ready(begun: Starting, deadline_s: float = START_S) -> Server:
        if begun.slot.name != BASELINE:
            return answered(begun, deadline_s)
        raise UserError(Problem("server-crashed", "out of memory"))

    monkeypatch.setattr(server, "wait_until_ready", wait_until_ready)
    with pytest.raises(UserError) as raised:
        apply(BACKEND, "tiny", "local", "ana")
    problem = raised.value.problems[0]
    assert problem.code == "baseline-failed" and "out of memory" in problem.actual
    assert_blue_serves(blue)
    assert not [line for line in audit.verify(LOG) if line["event"] == "rolled-back"]
    monkeypatch.setattr(server, "wait_until_ready", answered)
    assert apply(BACKEND, "tiny", "local", "ana").outcome == "applied"


def test_a_log_that_cannot_be_written_undoes_the_switch(
    challenged: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step fails for want of room: alias and state go back, green is stopped."""
    blue = endpoint.live("tiny")
    written = audit.append

    def append(log: AuditLog, event: str, details: dict[str, object]) -> str:
        if event == "applied":
            with full_disk(LOG.path.stat().st_size + 10):
                return written(log, event, details)
        return written(log, event, details)

    monkeypatch.setattr(audit, "append", append)
    with pytest.raises(UserError) as raised:
        apply(BACKEND, "tiny", "local", "ana")
    assert raised.value.problems[0].code == "disk-full"
    assert_blue_serves(blue)
    assert [line["event"] for line in audit.verify(LOG)].count("applied") == 1


def test_a_first_promotion_that_fails_leaves_nothing(world: World) -> None:
    """With no blue to go back to there is no state, no alias and no server."""
    propose(BACKEND, "tiny", world.run(0.8))
    path = world.project.folder / "endpoint" / "score.py"
    old, new, _ = BAD_GREENS["answers nothing"]
    path.write_text(path.read_text().replace(old, new))
    declare_serving()
    with pytest.raises(UserError):
        apply(BACKEND, "tiny", "local", "ana")
    assert endpoint.live("tiny") is None and BACKEND.registry.champion("tiny", "local") is None
    assert process_of(endpoint.folder("tiny") / "blue") is None


# The step, which call of it, and whether before or after. Weights are switched to 0, 0, 10, 50 and
# 100 per cent, then green is live.
KILLED = [
    *[("server.begin", call, moment) for call in (1, 2) for moment in ("before", "after")],
    *[("server.wait_until_ready", call, "after") for call in (1, 2)],
    *[("endpoint.switch", call, "after") for call in range(1, 7)],
    *[("LocalRegistry.promote", 1, moment) for moment in ("before", "after")],
    *[("audit.append", 1, moment) for moment in ("before", "after")],
    ("endpoint.drain", 1, "after"),
]
# One of each step in `make test`, where test_states.py kills a simulated apply at every effect; the
# others take minutes.
BRIEFLY = {
    ("server.begin", 2, "after"),
    ("server.wait_until_ready", 1, "after"),
    *[("endpoint.switch", call, "after") for call in (1, 4, 6)],
    ("LocalRegistry.promote", 1, "after"),
    ("audit.append", 1, "before"),
    ("endpoint.drain", 1, "after"),
}


@pytest.mark.torture
@pytest.mark.parametrize(
    ("step", "call", "moment"),
    [
        pytest.param(*case, marks=[] if case in BRIEFLY else pytest.mark.torture(only=True))
        for case in KILLED
    ],
)
@pytest.mark.attack("An apply is killed at any of its steps")
def test_an_apply_killed_at_any_step_is_finished_by_the_next(
    challenged: World, step: str, call: int, moment: str
) -> None:
    """SIGKILL before and after each step: something serves, and the next apply ends as declared."""
    holder, name = step.split(".")
    code = f"""
import os, signal
from ml.backends.local.backend import LocalBackend
from ml.release import audit, serving
from ml.release.rollout.apply import apply
from ml.backends.local.model_registry import LocalRegistry
from ml.backends.local.serving import endpoint, server
done, calls = {holder}.{name}, []
def killed(*given, **named):
    if {name!r} == "append" and given[1] != "applied":
        return done(*given, **named)
    calls.append(1)
    if len(calls) < {call}:
        return done(*given, **named)
    if {moment!r} == "after":
        done(*given, **named)
    os.kill(os.getpid(), signal.SIGKILL)
{holder}.{name} = killed
apply(LocalBackend(), "tiny", "local", "ana")
"""
    killed(code)
    assert ask(BACKEND, "tiny", {"question": "how?"}).version in ("1", "2")
    apply(BACKEND, "tiny", "local", "ana")
    live = endpoint.live("tiny")
    champion = BACKEND.registry.champion("tiny", "local")
    assert live and live.deployment.version == "2" and champion and champion.version == "2"
    assert ask(BACKEND, "tiny", {"question": "how?"}).version == "2"
    assert running() == [live.server.slot.name]
    applied = [line["version"] for line in audit.verify(LOG) if line["event"] == "applied"]
    assert set(applied) == {"1", "2"} and applied[-1] == "2"


@pytest.mark.attack("Two applies run at once")
def test_two_applies_at_once_end_as_one(challenged: World) -> None:
    """One waits for the other and finds nothing left to do; one server runs."""
    found: list[Applied] = []
    threads = [
        threading.Thread(target=lambda: found.append(apply(BACKEND, "tiny", "local", "ana")))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.outcome for one in found) == ["applied", "unchanged"]
    live = endpoint.live("tiny")
    assert live and server.is_up(live.server) and live.deployment.version == "2"
    assert [line["event"] for line in audit.verify(LOG)].count("applied") == 2


def test_after_a_reboot_the_declared_model_is_started_and_said_so(served: World) -> None:
    """Nothing runs, the state is there: asking starts it; a lost state file is applied again."""
    endpoint.stop("tiny")
    assert ask(BACKEND, "tiny", {"question": "how?"}).started
    endpoint.stop("tiny")
    (endpoint.folder("tiny") / "live.json").unlink()
    assert apply(BACKEND, "tiny", "local", "ana").outcome == "applied"
    assert ask(BACKEND, "tiny", {"question": "how?"}).version == "1"


def test_a_canary_that_a_killed_apply_left_is_told(served: World) -> None:
    """It answers its share of the requests until the next apply: status says so."""
    assert status(BACKEND, "tiny", "local")[0].beside == ""
    live = endpoint.live("tiny")
    assert live is not None
    green = endpoint.begin(live.deployment)()
    endpoint.switch("tiny", replace(live, canary=Canary(green, live.deployment, 10)))
    told = status(BACKEND, "tiny", "local")[0]
    assert told.beside.startswith("version 1 has 10 % of the requests: an apply is running or was")
    assert apply(BACKEND, "tiny", "local", "ana").outcome == "unchanged"
    assert status(BACKEND, "tiny", "local")[0].beside == ""
