"""Run a canary: start green and its baseline beside blue, and shift traffic step by step.

Blue is the live server, green that of the new version, the baseline a second server of blue's.

The signals are checked ten times a second. `ml.release.canary.verdict` decides; this module starts
servers and shifts traffic. The caller acts on the outcome.
"""

from __future__ import annotations

import http.client
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from ml.backends.endpoints import (
    BASELINE,
    CHANGED,
    Answer,
    Canary,
    Endpoints,
    Live,
    ModelDeployment,
    Router,
    Server,
)
from ml.backends.runs import QUIET_S
from ml.backends.traffic import REQUEST_KINDS
from ml.core.errors import Exit, UserError
from ml.release.canary.traffic import (
    NOTICE_S,
    WARM_REQUESTS,
    Replay,
    ResidentMemory,
    Traffic,
    TrafficComparison,
)
from ml.release.canary.verdict import Signal, Verdict, apply_client_evidence, decide
from ml.release.declaration.release_file import Strategy
from ml.release.evidence.served import ParityCheck

POLL_S = 0.1
# Requests per sample to measure green's latency: enough that the slower first ones are less than
# 5 % and do not raise the p95.
PER_SAMPLE = 25
# The timeout for the latency from Azure Monitor, which lags by some minutes.
LATENCY_S = 900.0
Samples = Sequence[Mapping[str, object]]


@dataclass(frozen=True)
class Outcome:
    """How a canary ended."""

    # "superseded": another version was declared during the canary.
    kind: Literal["passed", "rolled-back", "superseded"]
    why: str  # a sentence
    step: int  # percent of the requests that green got at the end
    signals: tuple[Signal, ...]  # of the last check
    requests: Mapping[str, int]  # by server, over the whole canary
    errors: Mapping[str, int]  # by server, over the whole canary
    replayed: int  # requests that replayed the project's samples
    seconds: float

    def to_json(self) -> Mapping[str, object]:
        """Return the outcome as JSON for the audit log, with finite numbers only."""
        signals = {
            signal.name: {
                "log_e_value": round(signal.log_e_value, 3)
                if math.isfinite(signal.log_e_value)
                else None,
                "limit": round(signal.limit, 3),
                "sentence": signal.sentence,
            }
            for signal in self.signals
        }
        return {
            "outcome": self.kind,
            "why": self.why,
            "at_percent": self.step,
            "signals": signals,
            "requests": dict(self.requests),
            "errors": dict(self.errors),
            "replayed": self.replayed,
            "seconds": round(self.seconds, 1),
        }


def run_canary(
    endpoints: Endpoints,
    name: str,
    trial: Canary,
    strategy: Strategy,
    samples: Samples,
    *,
    new_fields: Sequence[str] = (),
    superseded: Callable[[], bool] = lambda: False,
    progress: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Run green through the strategy's stages, without locking the endpoint; return the outcome.

    `trial` must have a baseline (ValueError). `new_fields` are response fields that green may add,
    unless the old version's responses have them. On "passed" green has all the traffic and blue
    still runs. Otherwise, also after an exception, blue has all of it again, while green and the
    baseline still run. Raises UserError, which is not a verdict on green: router-unresponsive,
    baseline-failed, or canary-interrupted if another command removed the canary.
    """
    state = endpoints.live(name)
    router = endpoints.router(name)
    if state is None or router is None:
        raise endpoints.nothing_served(name)
    if trial.baseline is None:
        raise ValueError("a canary is compared with a baseline")
    watch = _Watch(
        endpoints,
        name,
        blue=state.server,
        trial=trial,
        baseline=trial.baseline,
        router=router,
        strategy=strategy,
        samples=samples,
        new_fields=new_fields,
    )
    passed = False
    try:
        with watch.replay:
            outcome = watch.run(superseded, progress)
        passed = outcome.kind == "passed"
        return outcome
    finally:
        if not passed:
            set_canary(endpoints, name, None)


def set_canary(endpoints: Endpoints, name: str, canary: Canary | None) -> None:
    """Set or remove the canary of the live state, and update the router's weights."""
    with endpoints.locked(name):
        state = endpoints.live(name)
        if state is not None:
            endpoints.switch(name, replace(state, canary=canary))


class _Watch:
    """The state of one running canary."""

    def __init__(
        self,
        endpoints: Endpoints,
        name: str,
        blue: Server,
        trial: Canary,
        baseline: Server,
        router: Router,
        strategy: Strategy,
        samples: Samples,
        new_fields: Sequence[str],
    ) -> None:
        self.endpoints, self.name, self.trial, self.router = endpoints, name, trial, router
        self.green, self.baseline = trial.server, baseline
        self.strategy = strategy
        self.replay = Replay(router, samples)
        self.names = (blue.slot.name, baseline.slot.name, self.green.slot.name)
        self.samples, self.clients = (
            TrafficComparison(kind, strategy.prediction, *self.names, new_fields)
            for kind in REQUEST_KINDS
        )
        self.last = 0
        self.memory = ResidentMemory(endpoints, self.green, baseline)
        self.started = time.monotonic()

    def run(self, superseded: Callable[[], bool], progress: Callable[[str], None]) -> Outcome:
        set_canary(self.endpoints, self.name, replace(self.trial, weight=0))
        self.first = self._observe()
        traffic = Traffic(self.replay, self.first)
        time.sleep(NOTICE_S)
        traffic.observe(self._observe())
        verdict = Verdict("hold", "", ())
        for number, stage in enumerate(self.strategy.stages):
            percent = stage.percent
            set_canary(
                self.endpoints, self.name, replace(self.trial, weight=percent, mirror=stage.mirror)
            )
            since = self._observe()
            traffic.begin(since)
            for comparison in (self.samples, self.clients):
                comparison.begin(since, percent)
            began = said_at = time.monotonic()
            while True:
                if superseded():
                    return self._outcome("superseded", "another version was declared", percent)
                time.sleep(POLL_S)
                now = self._observe()
                traffic.observe(now)
                if not self.endpoints.is_up(self.baseline):
                    raise self.endpoints.failure(
                        self.baseline.slot,
                        "baseline-failed",
                        "the baseline (a second server of the live version) has exited",
                        "memory for three servers during a canary",
                        "apply again",
                    )
                verdict = self._verdict(number, now)
                if verdict.action == "roll-back":
                    return self._outcome("rolled-back", verdict.why, percent, verdict.signals)
                if verdict.action == "go-on":
                    break
                if time.monotonic() - said_at > QUIET_S:
                    said_at = time.monotonic()
                    progress(f"canary: {stage}, after {said_at - began:.0f} s: {verdict.why}")
                if time.monotonic() - began > self.strategy.step_s:
                    self.replay.check()
                    why = f"undecided after {self.strategy.step_s:g} s: {verdict.why}"
                    return self._outcome("rolled-back", why, percent, verdict.signals)
            progress(f"canary: {stage}: {verdict.why}")
        return self._outcome("passed", verdict.why, 100, verdict.signals)

    def _verdict(self, number: int, now: Mapping[str, Any]) -> Verdict:
        stage = self.strategy.stages[number]
        green, old, baseline, intervals = self.samples.observe(now)
        answered = self._counted("requests", now)[self.green.slot.name]
        memory = self.memory.observe(answered)
        alive = self.endpoints.is_up(self.green)
        verdict = decide(self.strategy, number, green, old, baseline, memory, alive, intervals)
        is_last = stage == self.strategy.stages[-1]
        if verdict.action == "go-on" and is_last and memory is None and answered >= WARM_REQUESTS:
            # A managed endpoint reports its memory minutes later.
            verdict = replace(verdict, action="hold", why="memory is not measured yet")
        patient = green.requests < stage.requests * self.strategy.patience
        green, old, baseline, intervals = self.clients.observe(now)
        return apply_client_evidence(
            verdict, self.strategy, number, green, old, baseline, patient, intervals
        )

    def _counted(self, what: str, now: Mapping[str, Any]) -> Mapping[str, int]:
        """Return each server's tally `what` ("requests" or "errors") since the canary's start."""
        return {
            name: sum(
                now[name][kind][what] - self.first[name][kind][what] for kind in REQUEST_KINDS
            )
            for name in self.names
        }

    def _observe(self) -> dict[str, Any]:
        """Return the tallies of the three servers, and count the answers since the last call."""
        state = self.router.renew()
        if gone := [name for name in self.names if name not in state["tallies"]]:
            raise UserError.with_code(
                "canary-interrupted",
                f"another command removed {' and '.join(gone)} from the router",
                "no other change of the endpoint during a canary",
                "when that command has ended: ml release apply PROJECT",
                exit_code=Exit.RUN_FAILED,
            )
        for answer in self.router.answers(self.last):
            self.last = answer["number"]
            for comparison in (self.samples, self.clients):
                comparison.add(answer)
        return {name: state["tallies"][name] for name in self.names}

    def _outcome(
        self,
        kind: Literal["passed", "rolled-back", "superseded"],
        why: str,
        percent: int,
        signals: tuple[Signal, ...] = (),
    ) -> Outcome:
        now = self._observe()
        return Outcome(
            kind,
            why,
            percent,
            signals,
            self._counted("requests", now),
            self._counted("errors", now),
            self.replay.sent,
            time.monotonic() - self.started,
        )


def start_trial(
    endpoints: Endpoints,
    name: str,
    blue: Live | None,
    deployment: ModelDeployment,
    samples: Samples,
    undo: ExitStack,
    *,
    baseline: bool,
    smoke: bool = True,
) -> Canary:
    """Start green without traffic, and with `baseline` a baseline; `undo` stops both.

    If blue serves, they are added to the endpoint's state, so that no other command removes them as
    leftovers. The caller holds the endpoint's lock. Raises UserError if green does not start,
    smoke-failed, and baseline-failed, which is not a verdict on green.
    """
    undo.callback(_stop_unused, endpoints, name)
    # The baseline loads in parallel with green.
    ready = _begin_baseline(endpoints, blue, samples) if blue is not None and baseline else None
    trial = Canary(endpoints.begin(deployment)(), deployment, 0)
    if smoke:
        smoke_test(endpoints, trial.server, deployment, samples)
    if blue is not None:
        if ready is not None:
            trial = replace(trial, baseline=ready())
        undo.callback(_drain_router, endpoints, name)  # green answers its open requests
        undo.callback(set_canary, endpoints, name, None)
        endpoints.switch(name, replace(blue, canary=trial))
    return trial


def smoke_test(
    endpoints: Endpoints, green: Server, deployment: ModelDeployment, samples: Samples
) -> None:
    """Send all sample requests; raise UserError (smoke-failed) unless the model answers each."""
    for sample in samples:
        answer = _answered(endpoints, green, sample)
        if fault := smoke_fault(answer, deployment, sample):
            raise _smoke_failed(endpoints, green, fault)


def _answered(endpoints: Endpoints, green: Server, sample: Mapping[str, object]) -> Answer:
    """Return the answer to a sample request. Raise UserError (smoke-failed) if there is none."""
    try:
        return endpoints.score(green, sample)
    except (OSError, http.client.HTTPException) as error:
        raise _smoke_failed(endpoints, green, f"no answer to {sample}: {error}") from None


def smoke_fault(answer: Answer, deployment: ModelDeployment, sample: Mapping[str, object]) -> str:
    """Return why a sample request was not answered by the deployed model; "" if it was."""
    if answer.status != 200 or not isinstance(answer.body, dict):
        return f"status {answer.status} to {sample}: {answer.excerpt}"
    if answer.body.get("model_digest") != deployment.digest:
        return f"the answer to {sample} is not the declared model's: {answer.excerpt}"
    return ""


def check_latency(
    endpoints: Endpoints,
    green: Server,
    samples: Samples,
    requests: int,
    limit_ms: float,
    progress: Callable[[str], None],
) -> float:
    """Send green at least `requests` requests; return its p95 latency at the server, in ms.

    Raise UserError: too-slow above the limit, the errors of `smoke_test`, and latency-unknown,
    which is not a verdict on green.
    """
    assert endpoints.p95_ms is not None  # else there is no limit
    began = time.time()
    for index in range(max(requests, PER_SAMPLE * len(samples))):
        _answered(endpoints, green, samples[index % len(samples)])
    ended = said_at = time.time()
    while (p95 := endpoints.p95_ms(green, began, ended)) is None:
        if time.time() - ended > LATENCY_S:
            raise endpoints.failure(
                green.slot,
                "latency-unknown",
                f"no latency metric {LATENCY_S / 60:g} minutes after {requests} requests",
                "the latency of the deployment, in the metrics of the endpoint",
                "apply again",
            )
        if time.time() - said_at > QUIET_S:
            said_at = time.time()
            progress(f"waiting for the latency metric, {said_at - ended:.0f} s so far")
        time.sleep(POLL_S)
    if p95 > limit_ms:
        raise endpoints.failure(
            green.slot,
            "too-slow",
            f"the latency's p95 is {p95:.4g} ms on the deployment",
            f"at most {limit_ms:g} ms, as the gate `latency` requires",
            "no traffic was shifted",
        )
    return p95


def run_parity_check(
    endpoints: Endpoints, green: Server, check: ParityCheck, tolerance: float
) -> int:
    """Send green the rows of the parity check; return their number.

    Raise UserError: prediction-mismatch if an answer differs from the evaluation by more than the
    tolerance; predictions-unverified if no row can be sent, which is not a verdict on green.
    """
    expected = f"the evaluated predictions, within {tolerance:g}"
    if check.reason:
        raise endpoints.failure(
            green.slot,
            "predictions-unverified",
            f"no prediction of the deployment can be compared: {check.reason}",
            "rows of the evaluation that can be sent as requests",
            "correct that and apply again; after a change of the evaluation, propose first",
        )
    answers = check.run(partial(endpoints.score, green))
    largest, example = answers["largest"], answers["example"]
    if not isinstance(largest, float) or not largest <= tolerance:
        raise endpoints.failure(
            green.slot, "prediction-mismatch", f"{example}", expected, "see score.py"
        )
    return len(check.rows)


def remove_leftovers(endpoints: Endpoints, name: str) -> None:
    """Remove the servers that a killed rollout left; a running experiment is kept."""
    with endpoints.locked(name):
        if not ((state := endpoints.live(name)) and state.canary and state.canary.experiment):
            clear_canary(endpoints, name)


def clear_canary(endpoints: Endpoints, name: str) -> Live | None:
    """Remove a leftover canary and return the live state; the caller holds the endpoint's lock."""
    state = endpoints.live(name)
    if state is not None:
        if state.canary is not None:
            state = replace(state, canary=None)
            endpoints.switch(name, state)
            _drain_router(endpoints, name)
        endpoints.stop_idle(name)
    return state


def without_canary(endpoints: Endpoints, name: str) -> Live | None:
    """Return the endpoint's state without its canary; nothing is changed."""
    state = endpoints.live(name)
    return replace(state, canary=None) if state else None


def _stop_unused(endpoints: Endpoints, name: str) -> None:
    """Stop servers that the endpoint's state does not name.

    If a full disk prevented the state from being restored, its server runs until the next apply.
    """
    with endpoints.locked(name):
        endpoints.stop_idle(name)


def _drain_router(endpoints: Endpoints, name: str) -> None:
    """Wait for open requests to servers without a route; returns at once without a router."""
    with suppress(UserError):  # a router that is gone has no open requests
        endpoints.drain(name)


def _begin_baseline(endpoints: Endpoints, blue: Live, samples: Samples) -> Callable[[], Server]:
    """Start a second server of the live version; the returned function waits until it answers."""
    with _as_baseline_failed(blue):
        endpoints.check_deployment(blue.deployment)
        starting = endpoints.begin(blue.deployment, BASELINE)

    def ready() -> Server:
        with _as_baseline_failed(blue):
            baseline = starting()
            smoke_test(endpoints, baseline, blue.deployment, samples)
        return baseline

    return ready


@contextmanager
def _as_baseline_failed(blue: Live) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        if error.problems[0].code == CHANGED:
            raise
        raise UserError.with_code(
            "baseline-failed",
            f"version {blue.deployment.version} serves, but a second server of it for the canary "
            f"fails: {error.problems[0].actual}",
            "memory for three servers during a canary",
            "free some memory and apply again; if the version can no longer be started, "
            f"stop it (`ml serve {blue.deployment.endpoint} --stop`): apply then skips the canary",
            exit_code=Exit.RUN_FAILED,
        ) from None


def _smoke_failed(endpoints: Endpoints, green: Server, why: str) -> UserError:
    return endpoints.failure(
        green.slot,
        "smoke-failed",
        why,
        "an answer from the declared model to every sample request",
        "no traffic was shifted",
    )
