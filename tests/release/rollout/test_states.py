"""Applies, crashes, reboots and reverts in any order: something good serves, and status says what.

The real apply, rollout, history and endpoint state run over a machine whose processes are entries
in a table, so that thousands of sequences take seconds. A crash is a SIGKILL: from some effect on,
nothing that the dying command does has any effect, its own undoing included.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ml.backends.endpoints import BASELINE, Canary, Live, ModelDeployment, Server
from ml.backends.local.backend import LocalBackend
from ml.backends.local.serving import endpoint, processes, server
from ml.backends.local.serving.router import process
from ml.backends.model_registry import Version
from ml.core.errors import Problem, UserError
from ml.release import audit
from ml.release.canary import canary
from ml.release.canary.canary import Outcome
from ml.release.declaration import desired_state
from ml.release.declaration.release_file import ReleaseEntry
from ml.release.promotion import propose as proposing
from ml.release.promotion.gate_check import GateCheck
from ml.release.rollout import apply as applying
from ml.release.rollout import rollback, status
from tests.local import BACKEND, LOG

NAME = "tiny"
DEPLOYMENT_DIGEST = "5" * 64
BAD = {"3": "crash", "4": "canary"}  # the others are sound


class Killed(BaseException):
    """The command is gone."""


@dataclass
class Machine:
    """Processes by folder, the registry's alias, and how many effects the next command has left."""

    running: dict[Path, int] = field(default_factory=dict)
    versions: dict[int, str] = field(default_factory=dict)  # by port
    champion: str | None = None
    served: set[str] = field(default_factory=set)  # every version that was ever live
    left: int | None = None
    room_for: int | None = None  # so many effects until the disk is full
    started: int = 0
    next_port: int = 5000
    judged: int = 0
    stack: list[str] = field(default_factory=list)  # what a rollback may return to
    room: bool = True  # for a baseline
    meanwhile: Callable[[], None] | None = None  # happens once while green is on trial

    def effect(self, writes: bool = False) -> None:
        """Something is about to change: not any more, if the command was killed, or it `writes` to
        a disk that is full.
        """
        if self.room_for is not None:
            self.room_for -= 1
            if writes and self.room_for < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
        if self.left is None:
            return
        if self.left <= 0:
            raise Killed
        self.left -= 1


@dataclass
class Router:
    """Follows the state file at once; it has the one port."""

    folder: Path
    machine: Machine
    port: int = 4000
    url: str = "http://127.0.0.1:4000/score"

    def refresh(self) -> dict[str, Any]:
        return {"draining": [], "routes": None}

    state = refresh

    def renew(self) -> dict[str, Any]:
        return {"tallies": {}}


def install(patch: pytest.MonkeyPatch, machine: Machine) -> None:
    """Put the machine under the real code."""

    def begin(slot: Path, deployment: ModelDeployment, port: int | None = None) -> Server:
        machine.effect(writes=True)
        machine.started += 1
        machine.next_port += 1
        slot.mkdir(parents=True, exist_ok=True)
        machine.running[slot] = machine.next_port
        machine.versions[machine.next_port] = deployment.version
        return Server(slot, machine.next_port, machine.next_port)

    def wait_until_ready(begun: Server) -> Server:
        found = ""
        if begun.slot.name == BASELINE and not machine.room:
            found = "out of memory"
        elif BAD.get(machine.versions[begun.port]) == "crash":
            found = "no weights"
        if found:
            del machine.running[begun.slot]
            raise UserError(Problem("server-crashed", found))
        return begun

    def start(slot: Path, deployment: ModelDeployment, port: int | None = None) -> Server:
        return wait_until_ready(begin(slot, deployment, port))

    def stop(slot: Path, patience_s: float = 0) -> bool:
        if slot in machine.running:
            machine.effect()
        return machine.running.pop(slot, None) is not None

    def start_router(folder: Path, routes: Path, port: int) -> Router:
        machine.effect(writes=True)
        folder.mkdir(parents=True, exist_ok=True)
        machine.running[folder] = 4000
        return Router(folder, machine)

    def run_canary(_: Any, name: str, trial: Canary, *__: Any, **named: Any) -> Outcome:
        deployment, passed = trial.deployment, False
        try:
            for weight in (0, 10, 50, 100):
                canary.set_canary(endpoint, name, replace(trial, weight=weight))
                machine.effect()
                happens, machine.meanwhile = machine.meanwhile, None
                if happens is not None:
                    happens()
                if named["superseded"]():
                    return Outcome("superseded", "", weight, (), {}, {}, 0, 0.0)
                if weight == 50 and BAD.get(deployment.version) == "canary":
                    return Outcome("rolled-back", "errors: many", 50, (), {}, {}, 0, 0.0)
            passed = True
            return Outcome("passed", "", 100, (), {}, {}, 0, 0.0)
        finally:
            if not passed:
                canary.set_canary(endpoint, name, None)

    change_routes = endpoint.switch

    def switch(name: str, to: Live | None) -> None:
        machine.effect(writes=to is not None)  # nothing to serve: a file is removed
        change_routes(name, to)
        if to is not None:
            machine.served.add(to.deployment.version)

    def wrapped(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            machine.effect(writes=True)
            return real(*given)

        return call

    for half in (begin, wait_until_ready, start):
        patch.setattr(server, half.__name__, half)
    patch.setattr(server, "is_up", lambda one: machine.running.get(one.slot) == one.port)
    patch.setattr(processes, "stop", stop)
    patch.setattr(process, "start", start_router)
    patch.setattr(
        process, "find", lambda at: Router(at, machine) if at in machine.running else None
    )
    patch.setattr(endpoint, "switch", switch)
    patch.setattr(endpoint, "check_deployment", lambda deployment: None)
    patch.setattr(proposing, "check_deployment", lambda deployment: None)
    patch.setattr(audit, "append", wrapped(audit.append))
    patch.setattr(canary, "run_canary", run_canary)
    patch.setattr(canary, "smoke_test", lambda *_: machine.effect())

    class Registry:
        """The alias, and what served."""

        shared = None

        def keep_evidence(self, what: Version, sha256: str) -> Version:
            return what

        def champion(self, model: str, environment: str) -> Version | None:
            return version(machine.champion) if machine.champion else None

        def find(self, model: str, number: str) -> Version:
            return version(number)

        def promote(self, what: Version, environment: str, deployment_digest: str = "") -> None:
            machine.effect(writes=True)
            machine.champion = what.version
            if what.version in machine.stack:  # a way back
                del machine.stack[machine.stack.index(what.version) :]
            machine.stack.append(what.version)

        def demote(self, model: str, environment: str) -> None:
            machine.effect(writes=True)
            machine.champion = None

    def served(number: str) -> Version:
        """The version as the registry has it."""
        marks = {("local", DEPLOYMENT_DIGEST, datetime.now(UTC))} if number in machine.stack else ()
        return replace(version(number), served=frozenset(marks))

    def check_gates(backend: Any, _: Any, what: Version, request: Any, **named: Any) -> Any:
        """Where a `step` is not named it is "propose": then a higher number is better."""
        machine.effect()
        champion = named.get("pending_version") or backend.registry.champion(NAME, "local")
        outcome = "approved"
        if champion is not None and request.step == "propose" and champion.version > what.version:
            outcome = "rejected"
        if request.step == "apply" and not request.approved_by:
            outcome = "rejected"
        if champion is not None and champion.digest == what.digest:
            outcome = "already-champion"
        decision: Any = SimpleNamespace(
            outcome=outcome, allowed=outcome == "approved", request=request
        )
        evidence: Any = None
        machine.judged += 1
        return GateCheck(decision, what, champion, evidence, f"{machine.judged:064x}")

    spec = SimpleNamespace(snapshot_digest=DEPLOYMENT_DIGEST, endpoint_name=NAME)
    found = SimpleNamespace(
        name=NAME,
        folder=Path("nowhere"),
        model=lambda: NAME,
        endpoint=lambda: NAME,
        deployment_spec=lambda: spec,
        samples=lambda: [{}],
        gates=None,
    )
    patch.setattr(LocalBackend, "registry", Registry())
    for module in (applying, proposing, status, rollback):
        patch.setattr(module.projects, "find", lambda root, name: found)
    for module in (applying, proposing):
        patch.setattr(module, "check_gates", check_gates)
    patch.setattr(proposing, "load_gates", lambda project: None)
    patch.setattr(
        proposing, "choose", lambda _, __, run: SimpleNamespace(name=run, outputs={"model": run})
    )
    patch.setattr(proposing, "store", digest)
    patch.setattr(proposing, "_measure", lambda *given, is_judged: [version(given[2][-1])])
    collect = "ml.release.evidence.evidence.collect"
    patch.setattr(collect, lambda _, registered, *options: registered)
    patch.setattr(applying, "_declared_version", lambda *given: served(given[-1].version))
    patch.setattr(audit.History, "has_decided", lambda *_: True)
    patch.setattr(applying, "_declared_spec", lambda *_: spec)
    patch.setattr("ml.release.serving.snapshot", lambda unchanged: unchanged)
    patch.setattr(
        "ml.release.serving.model_deployment", lambda _, what, __: deployment(what.version)
    )
    patch.setattr("ml.release.serving.store", lambda *_: None)


def digest(number: str) -> str:
    return f"sha256:{number * 64}"


def declaration(number: str, proposal: int = 0) -> ReleaseEntry:
    return ReleaseEntry(
        NAME,
        number,
        digest(number),
        "e" * 64,
        f"{proposal:064x}",
        deployment_digest=DEPLOYMENT_DIGEST,
    )


def version(number: str) -> Version:
    return Version(NAME, number, digest(number), NAME, "run", "e" * 64)


def deployment(number: str) -> ModelDeployment:
    return ModelDeployment(
        *(Path("/code/one"), "score.py", {}),
        **{"endpoint": NAME, "model": NAME, "version": number, "digest": digest(number)},
        model_folder=Path("/m"),
        deployment_digest=DEPLOYMENT_DIGEST,
    )


class Releases(RuleBasedStateMachine):
    """What people and machines do to an endpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.home = tempfile.TemporaryDirectory()
        self.machine = Machine()
        self.proposals = 0
        self.applied: list[str] = []  # what was ever said to be live
        self.starved = False  # the last apply found no room for a baseline

    @initialize()
    def begin(self) -> None:
        self.patch.setenv("MLOPS_HOME", self.home.name)
        install(self.patch, self.machine)
        self.propose("1")  # the first version has nothing to be compared with
        self.conclude()

    def teardown(self) -> None:
        self.patch.undo()
        self.home.cleanup()

    @rule(number=some.sampled_from("12345"))
    def propose(self, number: str) -> None:
        self.proposals += 1
        entry = declaration(number, self.proposals)
        desired_state.declare(BACKEND, NAME, "local", entry)

    def declared(self) -> ReleaseEntry:
        found = desired_state.read(BACKEND, NAME, "local")
        assert found is not None
        return found

    @rule()
    def apply(self) -> None:
        self.conclude()

    @rule()
    def rolled_back_by_a_person(self) -> None:
        """What served before is declared again; where nothing did, the person is told."""
        try:
            done = rollback.roll_back(BACKEND, NAME)
        except UserError as error:
            assert error.problems[0].code == "no-earlier-version"
            return
        assert done.declared.version in self.machine.served
        self.conclude()

    @rule(one=some.sampled_from("2345"), other=some.sampled_from("12345"))
    def another_is_proposed_while_one_is_on_trial(self, one: str, other: str) -> None:
        """The trial ends; what is declared by then is brought about once it is approved."""
        self.propose(one)
        self.machine.meanwhile = lambda: self.propose(other)
        try:
            self.conclude(also=other)
        finally:
            self.machine.meanwhile = None

    @rule()
    def apply_without_room_for_a_baseline(self) -> None:
        """That is no fault of the version's: it is not recorded, and the next apply tries it."""
        before, refusals = self.live(), self.refusals()
        self.machine.room = False
        try:
            self.conclude()
        finally:
            self.machine.room = True
        if self.starved:
            assert self.live() == before and self.refusals() == refusals
            self.conclude()

    @rule(effects=some.integers(0, 28))
    def apply_is_killed(self, effects: int) -> None:
        """Nothing that served stops serving, wherever it is killed."""
        self.machine.left = effects
        before = self.live()
        try:
            applying.apply(BACKEND, NAME, "local", "ana")
        except (Killed, UserError):
            pass
        finally:
            self.machine.left = None
        now = self.live()
        if before is not None:
            assert now is not None

    @rule(effects=some.integers(0, 28))
    def apply_is_killed_and_done_again(self, effects: int) -> None:
        """The next apply resumes or undoes whatever the killed one left."""
        self.apply_is_killed(effects)
        self.conclude()

    @rule(effects=some.integers(0, 28))
    def apply_on_a_full_disk(self, effects: int) -> None:
        """Nothing can be written from some effect on, to undo what was done neither: whatever has a
        share of the traffic runs, and with room the next apply ends it.
        """
        before = self.live()
        self.machine.room_for = effects
        try:
            with suppress(UserError, OSError):
                applying.apply(BACKEND, NAME, "local", "ana")
            if before is not None:
                assert self.live() is not None
            self.something_good_serves()
        finally:
            self.machine.room_for = None
        self.conclude()

    @rule()
    def reboot(self) -> None:
        """Every process ends; the next request starts what is live."""
        self.machine.running.clear()
        if endpoint.live(NAME) is not None:
            endpoint.ensure(NAME)

    def conclude(self, also: str | None = None) -> None:
        before, serving = self.machine.started, self.live()
        self.starved = False
        try:
            done = applying.apply(BACKEND, NAME, "local", "ana")
        except UserError as error:
            assert not {path.name for path in self.machine.running} - self.needed()
            self.starved = error.problems[0].code == "baseline-failed"
            assert not (self.starved and self.machine.room)
            assert serving and self.live() == serving  # the last good one, behind its router
            if not self.starved:
                began = self.machine.started - before if also is None else 0
                self.refused(self.declared(), error.problems[0].code, began)
            return
        entry = self.declared()
        if done.outcome == "rejected":  # the approval was of what was declared before
            assert also == entry.version and self.live() == serving
            self.conclude(also=also)
            return
        assert done.outcome in ("applied", "unchanged")
        assert done.version.digest == entry.digest and entry.version not in BAD
        state = endpoint.live(NAME)
        assert state and state.deployment.digest == entry.digest and state.canary is None
        assert self.machine.champion == entry.version
        assert {path.name for path in self.machine.running} == self.needed()
        lines = [line for line in audit.verify(LOG) if line["event"] == "applied"]
        assert lines[-1]["digest"] == entry.digest
        if not self.applied or self.applied[-1] != entry.version:
            self.applied.append(entry.version)

    def refused(self, entry: ReleaseEntry, code: str, started: int) -> None:
        assert entry.version in BAD
        assert code in ("server-crashed", "rolled-back", "version-rejected")
        if code == "version-rejected":
            assert started == 0
        told = status.status(BACKEND, NAME)[0].verdict
        assert f"version {entry.version} was rolled back" in told
        with pytest.raises(UserError) as raised:
            applying.apply(BACKEND, NAME, "local", "ana")
        assert raised.value.problems[0].code == "version-rejected"

    def needed(self) -> set[str]:
        """What runs once an apply has ended, by folder."""
        state = endpoint.live(NAME)
        assert state
        return {endpoint.ROUTER, state.server.slot.name}

    def refusals(self) -> int:
        """How many were ever recorded."""
        return sum(line["event"] == "rolled-back" for line in audit.verify(LOG))

    def live(self) -> str | None:
        """The version that requests reach now; None when no router runs."""
        state = endpoint.live(NAME)
        if state is None or endpoint.ROUTER not in {one.name for one in self.machine.running}:
            return None
        assert server.is_up(state.server)
        return state.deployment.version

    @invariant()
    def something_good_serves(self) -> None:
        state = endpoint.live(NAME)
        if self.applied:
            assert state is not None
        if state is None:
            return
        assert state.deployment.version not in BAD
        for one in (state.server, *state.canary_servers):
            if endpoint.ROUTER in {path.name for path in self.machine.running}:
                assert server.is_up(one), "a deployment with a share of traffic is down"
        audit.verify(LOG)


# `make torture` runs with `--hypothesis-profile deep`.
EXAMPLES = 600 if settings.default.max_examples > 100 else 20
EFFECTS = 29  # as many as an apply has
Releases.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestReleases = pytest.mark.timeout(15 * EXAMPLES)(
    pytest.mark.slow(pytest.mark.torture(Releases.TestCase))
)


@contextmanager
def begun(number: str) -> Iterator[Releases]:
    """The first version serves and that one is proposed; nothing stays patched, however it ends."""
    releases = Releases()
    try:
        releases.begin()
        releases.propose(number=number)
        yield releases
    finally:
        releases.teardown()


def test_a_set_up_that_fails_leaves_nothing_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests after it run on the real machine."""
    real = (server.start, endpoint.switch, LocalBackend.registry, os.environ.get("MLOPS_HOME"))
    monkeypatch.setattr(Releases, "conclude", lambda _: pytest.fail("no room"))
    with pytest.raises(pytest.fail.Exception, match="no room"), begun("2"):
        pass
    now = (server.start, endpoint.switch, LocalBackend.registry, os.environ.get("MLOPS_HOME"))
    assert now == real


@pytest.mark.slow
@pytest.mark.parametrize("number", "234")
@pytest.mark.attack("An apply is killed after any of its effects")
def test_an_apply_killed_at_any_effect_leaves_nothing_to_the_next(number: str) -> None:
    """One that is killed after its verdict, and before green was stopped, too."""
    for effects in range(EFFECTS):
        with begun(number) as releases:
            releases.apply_is_killed_and_done_again(effects=effects)


@pytest.mark.slow
@pytest.mark.parametrize("number", "1234")
@pytest.mark.attack("The disk is full from any effect of an apply on")
def test_a_disk_that_is_full_from_any_effect_on_stops_nothing(number: str) -> None:
    """Not what could be undone no more: the state that was written last is what runs."""
    for effects in range(EFFECTS):
        with begun(number) as releases:
            releases.apply_on_a_full_disk(effects=effects)


def test_the_history_is_what_status_reads() -> None:
    """An applied version is not said to be rolled back although it once was."""
    entry = declaration("1")
    for event in ("rolled-back", "applied"):
        what = {
            "endpoint": NAME,
            "digest": entry.digest,
            "decision": entry.decision,
            "why": "errors",
        }
        audit.append(LOG, event, what)
        line = audit.history(LOG, NAME).refusal(entry)
        assert (line and line["why"]) == ("errors" if event == "rolled-back" else None)
