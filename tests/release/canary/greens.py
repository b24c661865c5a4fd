"""Two servers behind a router, and greens that are bad in the ways that models are."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ml.backends.endpoints import BASELINE, Canary, Live, ModelDeployment, Server
from ml.backends.local.serving import endpoint, server
from ml.release.canary import canary
from ml.release.canary.canary import Outcome
from ml.release.declaration.release_file import Strategy, Tolerances
from tests.backends.serving.servers import deployment

SAMPLES = [{"question": word} for word in ("how?", "why not?", "where to?", "who was it?")]
# Its greens are slow in terms of milliseconds.
STRATEGY = Strategy(prediction="answers/0/entry", step_s=120, tolerances=Tolerances(latency_ms=0.0))

SCRIPT = """
import os, random, signal, threading, time
from ml.serving.scoring.messages import BadRequest, Text, parse, refusal, reply
from ml.serving.scoring.model import open_model

hoard = []


def init():
    global master, model
    master, model = os.getsid(0), open_model()


def work(share=1.0):
    began = time.perf_counter()
    while time.perf_counter() - began < 0.004 * share:
        pass


def run(body):
    began = time.perf_counter()
    try:
        asked = parse(body, {"question": Text(100)}).texts["question"]
    except BadRequest as error:
        return refusal(error)
    work()
    WAKE
    entry = f"entry-{len(asked) % 5}"
    BAD
    return reply(model, {"answers": [{"entry": entry, "score": len(asked) / 100}]})
"""

# It takes the longer the less often it is asked, as caches and schedulers have it; and twice that.
IDLE = """
    global last
    time.sleep(min(0.3 * (began - globals().get("last", began)), 0.05))
    last = time.perf_counter()
""".strip()
TWICE = "time.sleep(time.perf_counter() - began)"
# Slow for one second, as when another process has its core.
BURST = """
    global calls, late_until
    calls = globals().get("calls", 0) + 1
    late_until = began + 1.0 if calls == 60 else globals().get("late_until", 0.0)
    if began < late_until: time.sleep(0.03)
""".strip()
# Of valid requests.
REFUSES = "if random.random() < 0.27: return refusal(BadRequest('question', asked, 'another'))"
BAD_GREENS = {
    "errors 2 %": ("errors", "if random.random() < 0.02: raise RuntimeError('bad')"),
    "errors 10 %": ("errors", "if random.random() < 0.10: raise RuntimeError('bad')"),
    "errors 100 %": ("errors", "raise RuntimeError('bad')"),
    "twice the latency": ("latency", "work(1.25)"),
    "a constant prediction": ("predictions", "entry = 'entry-7'"),
    "a memory leak": ("memory", "hoard.append(bytearray(b'x' * 500_000))"),
    "another schema": ("answers", "return {'ranking': [entry], 'model_digest': model.digest}"),
    # The first process of a namespace cannot be killed from inside.
    "it dies": (
        "green's process",
        "os._exit(1) if os.getpid() == 1 else os.kill(master, signal.SIGKILL)",
    ),
}


def script(bad: str = "", wake: str = "pass") -> str:
    """A scoring script; sound without arguments."""
    return SCRIPT.replace("BAD", bad or "pass").replace("WAKE", wake)


@dataclass(frozen=True)
class Pair:
    """Blue is live; green and a baseline are started and have no traffic."""

    blue: Server
    trial: Canary

    @property
    def green(self) -> Server:
        """The server on trial."""
        return self.trial.server

    def run_canary(self, strategy: Strategy = STRATEGY, **named: object) -> Outcome:
        """The canary."""
        return canary.run_canary(endpoint, "echo", self.trial, strategy, SAMPLES, **named)  # type: ignore[arg-type]


class Servers:
    """Blue, green and a baseline behind a router, in one home.

    They go on from one canary to the next where they run the same scripts. A baseline is as old as
    green, as in a rollout.
    """

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self._folder = folder
        self._running: dict[str, tuple[Server, ModelDeployment]] = {}

    def pair(self, bad: str = "", wake: str = "pass") -> Pair:
        """The servers for these scripts; blue is live and has all the traffic."""
        blue_deployment = self._model_deployment("1", script(wake=wake))
        green_deployment = self._model_deployment("2", script(bad, wake))
        wanted = {"blue": blue_deployment, "green": green_deployment, BASELINE: blue_deployment}
        missing = {slot for slot, deployment in wanted.items() if not self._runs(slot, deployment)}
        if missing & {"green", BASELINE}:
            missing |= {"green", BASELINE}
        folder = endpoint.folder("echo")
        starting = {slot: server.begin(folder / slot, wanted[slot]) for slot in missing}
        for slot, process in starting.items():
            self._running[slot] = server.wait_until_ready(process), wanted[slot]
        blue, green, baseline = (self._running[slot][0] for slot in wanted)
        endpoint.switch("echo", Live(blue, blue_deployment))
        endpoint.start_router("echo")
        return Pair(blue, Canary(green, green_deployment, 0, baseline=baseline))

    def _model_deployment(self, version: str, text: str) -> ModelDeployment:
        return deployment(self._folder / f"{zlib.crc32(text.encode()):08x}", text, version=version)

    def _runs(self, slot: str, deployment: ModelDeployment) -> bool:
        running = self._running.get(slot)
        return running is not None and running[1] == deployment and server.is_up(running[0])


@contextmanager
def pair(folder: Path, bad: str = "", wake: str = "pass") -> Iterator[Pair]:
    """The servers and the router, as long as the block."""
    try:
        yield Servers(folder).pair(bad, wake)
    finally:
        endpoint.stop("echo")
