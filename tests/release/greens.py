"""Two servers behind a router, and greens that are bad in the ways that models are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ml.release import canary
from ml.release.canary import Outcome
from ml.release.strategy import Strategy
from ml.serving import endpoint, server
from ml.serving.endpoint import Live
from ml.serving.server import Launch, Server
from tests.serving.servers import launch

SAMPLES = [{"question": word} for word in ("how?", "why not?", "where to?", "who was it?")]
STRATEGY = Strategy(prediction="answers/0/entry", step_s=120)

SCRIPT = """
import os, random, signal, threading, time
from ml.serving.scoring.messages import Text, parse, reply
from ml.serving.scoring.model import open_model

hoard = []


def init():
    global master, model
    master, model = os.getppid(), open_model()


def work(share=1.0):
    began = time.perf_counter()
    while time.perf_counter() - began < 0.004 * share:
        pass


def run(body):
    asked = parse(body, {"question": Text(100)}).texts["question"]
    work()
    entry = f"entry-{len(asked) % 5}"
    BAD
    return reply(model, {"answers": [{"entry": entry, "score": len(asked) / 100}]})
"""

BAD_GREENS = {
    "errors 2 %": ("errors", "if random.random() < 0.02: raise RuntimeError('bad')"),
    "errors 10 %": ("errors", "if random.random() < 0.10: raise RuntimeError('bad')"),
    "errors 100 %": ("errors", "raise RuntimeError('bad')"),
    "twice the latency": ("latency", "work(1.25)"),
    "a constant prediction": ("predictions", "entry = 'entry-7'"),
    "a memory leak": ("memory", "hoard.append(bytearray(b'x' * 500_000))"),
    "another schema": ("answers", "return {'ranking': [entry], 'model_digest': model.digest}"),
    "it dies": ("green's process", "os.kill(master, signal.SIGKILL)"),
}


def script(bad: str = "") -> str:
    """A scoring script; sound without arguments."""
    return SCRIPT.replace("BAD", bad or "pass")


@dataclass(frozen=True)
class Pair:
    """Blue is live, green is started and has no traffic."""

    blue: Server
    green: Server
    launch: Launch

    def lead(self, strategy: Strategy = STRATEGY, **named: object) -> Outcome:
        """The canary."""
        return canary.lead("echo", self.green, self.launch, strategy, SAMPLES, **named)  # type: ignore[arg-type]


@contextmanager
def pair(folder: Path, bad: str = "") -> Iterator[Pair]:
    """Both servers and the router, as long as the block."""
    first = launch(folder, script(), version="1")
    second = launch(folder, script(bad), version="2")
    home = endpoint.folder("echo")
    try:
        blue = server.start(home / "blue", first)
        endpoint.switch("echo", Live(blue, first))
        endpoint.front("echo")
        green = server.start(home / "green", second)
        yield Pair(blue, green, second)
    finally:
        endpoint.stop("echo")
