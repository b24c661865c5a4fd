"""Collect the statistics of a canary step, and replay the project's sample requests.

Answers are counted by shape and by bin of the prediction, latency by interval; memory is measured
too. The replay draws the samples at random.
"""

from __future__ import annotations

import http.client
import json
import math
import random
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from types import TracebackType
from typing import Any

import numpy as np

from ml.backends.endpoints import Endpoints, Router, Server
from ml.backends.traffic import CLIENT, REQUEST_KINDS
from ml.core.errors import UserError
from ml.release.canary.verdict import Latencies, Memory, Stats

# The first answers define the known shapes and the bins; they are not counted.
REFERENCE = 60
BINS = 10
_CATEGORIES = 16
# Seconds of a latency interval: longer than a scheduler makes a process wait for a busy core.
INTERVAL_S = 2.0
# Requests that green answers before its memory is measured: by then it has loaded everything.
WARM_REQUESTS = 50
_TIMEOUT_S = 30.0
# The minimum duration over which the rate of client requests is measured.
NOTICE_S = 0.3
# From this rate on, samples are sent at the rate of client requests; below it, continuously.
ENOUGH_PER_S = 20.0


def shape(value: Any) -> str:
    """Return the structure of an answer without its values: `{a:[number]}`."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{shape(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + "|".join(sorted({shape(item) for item in value})) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return "no number"
    if isinstance(value, bool) or value is None:
        return json.dumps(value) if value is None else "bool"
    return "number" if isinstance(value, int | float) else "text"


def without(value: Any, field: str) -> Any:
    """Return a copy of a response without the field; a number in its path means all list items."""
    part, _, below = field.partition("/")
    if isinstance(value, list):
        return [without(item, below) for item in value] if part.isdecimal() and below else value
    if not isinstance(value, dict) or part not in value:
        return value
    if not below:
        return {key: child for key, child in value.items() if key != part}
    return {**value, part: without(value[part], below)}


def at_pointer(answer: Any, pointer: str) -> Any:
    """Return the value at a pointer; None if there is none."""
    value = answer
    for part in pointer.split("/"):
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, ValueError, TypeError):
            return None
    return value


def prediction(answer: Any, pointer: str) -> float | str | None:
    """Return the value at a pointer such as `answers/0/score`; None if not a number or text."""
    value = at_pointer(answer, pointer)
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:  # hundreds of digits
            return None
        return number if math.isfinite(number) else None
    return value if isinstance(value, str) else None


def edges(numbers: Sequence[float]) -> list[float]:
    """Return the edges of up to BINS bins around quantiles of `numbers`, and two far outside.

    Edges are half way between values: with few distinct values, a small difference does not change
    the bin.
    """
    levels = (np.arange(BINS) + 0.5) / BINS
    places: list[float] = np.quantile(numbers, levels, method="nearest").tolist()
    values = sorted(set(places))
    inner = [(low + high) / 2 for low, high in pairwise(values)]
    spread = max(values[-1] - values[0], abs(values[0]) / 2, 1e-9)
    return [values[0] - spread, *inner, values[-1] + spread]


class Answers:
    """Count answers; the first ones of the `old` deployments define the bins and shapes.

    Those first answers are not counted: data that defines the bins must not be tested with them.
    `new_fields` are ignored when shapes are compared, unless the old version's answers have them.
    """

    def __init__(
        self, pointer: str, old: Sequence[str], green: str, new_fields: Sequence[str] = ()
    ) -> None:
        self._pointer = pointer
        self._new_fields = new_fields
        self._old = old
        self._names = (*old, green)
        self._reference: list[Any] = []
        self._shapes: set[str] = set()
        self._edges: list[float] | None = None
        # Whether the pointer finds predictions: otherwise all of them would be in one bin.
        self._reads = False
        self.begin()

    def begin(self) -> None:
        """Reset the counts for a new step; shapes and bins stay."""
        self._read = dict.fromkeys(self._names, 0)
        self._unknown_shapes = dict.fromkeys(self._names, 0)
        self._bins = {name: [0] * (_CATEGORIES + 1) for name in self._names}

    def add(self, deployment: str, status: int, body: str | None) -> None:
        """Count one recorded answer; only those with status 200 are counted here.

        `body` is None if the answer was too long to be recorded. "Too long" is a shape too, so a
        version cannot avoid the check by long answers.
        """
        if status != 200 or deployment not in self._names:
            return
        try:
            answer = None if body is None else json.loads(body)
            structure = "too long" if body is None else shape(answer)
        except (ValueError, RecursionError):
            answer, structure = None, "no JSON"
        if deployment in self._old:
            self._new_fields = [
                field for field in self._new_fields if without(answer, field) == answer
            ]
        if len(self._reference) < REFERENCE:
            if deployment in self._old:
                self._reference.append(prediction(answer, self._pointer))
                self._shapes.add(structure)
                if len(self._reference) == REFERENCE:
                    self._fix()
            return
        self._read[deployment] += 1
        if structure not in self._shapes and isinstance(answer, dict | list):
            structure = shape(reduce(without, self._new_fields, answer))
        self._unknown_shapes[deployment] += structure not in self._shapes
        if self._reads and body is not None:
            self._bins[deployment][self._bin(prediction(answer, self._pointer))] += 1

    def side(
        self, since: Mapping[str, Any], now: Mapping[str, Any], deployments: Sequence[str]
    ) -> Stats:
        """Return the deployments' joint statistics, between two tallies of the router."""

        def counted(what: str) -> int:
            return sum(int(now[name][what]) - int(since[name][what]) for name in deployments)

        latency = [
            np.subtract(now[name]["latency"], since[name]["latency"]) for name in deployments
        ]
        bins = [self._bins[name] for name in deployments]
        return Stats(
            requests=counted("requests"),
            errors=counted("errors"),
            refused=counted("refused"),
            latency=np.sum(latency, axis=0).tolist(),
            answers=sum(self._read[name] for name in deployments),
            unknown_shapes=sum(self._unknown_shapes[name] for name in deployments),
            predictions=tuple(np.sum(bins, axis=0).tolist()) if self._pointer else (),
        )

    def _fix(self) -> None:
        unread = self._reference.count(None)
        self._reads = bool(self._pointer) and 2 * unread <= len(self._reference)
        numbers = [value for value in self._reference if isinstance(value, float)]
        if 2 * len(numbers) > len(self._reference):
            self._edges = edges(numbers)

    def _bin(self, value: float | str | None) -> int:
        """Return the bin: numbers by quantile, texts by hash, anything else in a bin of its own."""
        if value is None:
            return _CATEGORIES
        if self._edges is not None and isinstance(value, float):
            return int(np.searchsorted(self._edges, value, side="right"))
        return zlib.crc32(str(value).encode("utf-8", "surrogatepass")) % _CATEGORIES


class TrafficComparison:
    """Compares green with the old version during a step, by client requests or by samples."""

    def __init__(
        self,
        kind: str,
        pointer: str,
        blue: str,
        baseline: str,
        green: str,
        new_fields: Sequence[str] = (),
    ) -> None:
        self.kind = kind
        self._green, self._baseline = green, baseline
        self._old = (blue, baseline)
        self._answers = Answers(pointer, self._old, green, new_fields)
        self._since: Mapping[str, Any] = {}
        self._last: Stats | None = None

    def add(self, answer: Mapping[str, Any]) -> None:
        """Count one answer that the router recorded, if its request is of this kind."""
        if answer["kind"] == self.kind:
            self._answers.add(answer["deployment"], answer["status"], answer["body"])

    def begin(self, tallies: Mapping[str, Any], percent: int) -> None:
        """Begin a step in which green gets `percent` of the requests.

        At 100 % the old version gets none: its statistics of the previous step are used.
        """
        begun = self._of(tallies)
        self._last = self._answers.side(self._since, begun, self._old) if percent == 100 else None
        self._since = begun
        self._intervals = LatencyIntervals(self._green, self._baseline, begun)
        self._answers.begin()

    def observe(
        self, tallies: Mapping[str, Any]
    ) -> tuple[Stats, Stats, Stats, Sequence[Latencies]]:
        """Return statistics: green, old version (blue and baseline), baseline; and latencies."""
        now = self._of(tallies)
        green, old, baseline = (
            self._answers.side(self._since, now, names)
            for names in ((self._green,), self._old, (self._baseline,))
        )
        return green, self._last or old, baseline, self._intervals.observe(now)

    def _of(self, tallies: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: counters[self.kind] for name, counters in tallies.items()}


class LatencyIntervals:
    """The router's histograms of a step, split every INTERVAL_S seconds of the clock."""

    def __init__(
        self,
        green: str,
        baseline: str,
        begun: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._names = (green, baseline)
        self._clock = clock
        self._ended: list[Latencies] = []
        self._cut, self._cut_at = begun, clock()

    def observe(self, tallies: Mapping[str, Any]) -> list[Latencies]:
        """Return the histograms of green and baseline by interval; the last is still open."""
        green, baseline = (
            np.subtract(tallies[name]["latency"], self._cut[name]["latency"])
            for name in self._names
        )
        latencies = [*self._ended, (green.tolist(), baseline.tolist())]
        moment = self._clock()
        if moment - self._cut_at >= INTERVAL_S:
            self._ended, self._cut, self._cut_at = latencies, tallies, moment
        return latencies


class ResidentMemory:
    """Resident memory of green and of its baseline: when green was warm, and now."""

    def __init__(self, endpoints: Endpoints, green: Server, baseline: Server) -> None:
        self._endpoints, self._servers = endpoints, (green, baseline)
        self._warm_at = math.inf
        self._warm: dict[Server, tuple[float, float]] = {}

    def observe(self, answered: int) -> Memory | None:
        """Return the memory comparison; None until both were measured twice while green was warm.

        None, too, if one of them has ended.
        """
        if answered < WARM_REQUESTS:
            return None
        self._warm_at = min(self._warm_at, time.time())
        sizes: list[float] = []
        for server in self._servers:
            now = self._endpoints.resident(server)
            if now is None or now[0] < self._warm_at:
                return None  # the caller checks next whether they run
            then = self._warm.setdefault(server, now)
            if then[0] == now[0]:
                return None
            sizes += then[1], now[1]
        return Memory(*sizes)


class Replay:
    """Send requests to the router, one at a time, until the block ends.

    `sent` counts the responses of any kind; `refused` says why the endpoint rejected the last
    request.
    """

    def __init__(
        self, router: Router, samples: Sequence[Mapping[str, object]], seed: int = 0
    ) -> None:
        self.sent = 0
        self.refused: UserError | None = None
        self._router = router
        self._bodies = [json.dumps(sample) for sample in samples]
        self._draw = random.Random(seed)
        self._stop = threading.Event()
        self._going = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Replay:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._going.set()
        self._thread.join(_TIMEOUT_S + 1)

    def go(self, going: bool) -> None:
        """Start sending requests if `going`, else pause."""
        if going:
            self._going.set()
        else:
            self._going.clear()

    @property
    def going(self) -> bool:
        """True while requests are being sent."""
        return self._going.is_set()

    def check(self) -> None:
        """Raise UserError if the endpoint rejects the samples; this is no verdict on green."""
        if self.refused is not None:
            raise self.refused

    def _run(self) -> None:
        with self._router.sampling() as send:
            while self._going.wait() and not self._stop.is_set():
                try:
                    send(self._draw.choice(self._bodies))
                    self.sent, self.refused = self.sent + 1, None
                except (UserError, OSError, http.client.HTTPException) as error:
                    # For other errors the router is gone, which the canary reports.
                    self.refused = error if isinstance(error, UserError) else None
                    self._stop.wait(0.05)


class Traffic:
    """Paces the replay: a sample per client request, or continuously if clients send few.

    So a step has time to receive as many requests of clients as samples. Only requests that the
    router assigns at random count, so that no client can delay the samples.
    """

    def __init__(self, replay: Replay, tallies: Mapping[str, Any]) -> None:
        self._replay = replay
        self._marked = time.monotonic(), tallies
        self.begin(tallies)

    def begin(self, tallies: Mapping[str, Any]) -> None:
        """Begin a step of the canary; `tallies` are the router's at its start."""
        self._since = tallies

    def observe(self, tallies: Mapping[str, Any]) -> None:
        """Start or pause the replay, depending on the router's current tallies."""
        (then, before), moment = self._marked, time.monotonic()
        if moment - then < NOTICE_S:
            return
        few = _requests(before, tallies, CLIENT) / (moment - then) < ENOUGH_PER_S
        samples, clients = (_requests(self._since, tallies, kind) for kind in REQUEST_KINDS)
        self._replay.go(few or samples <= clients)
        self._marked = moment, tallies


def _requests(before: Mapping[str, Any], now: Mapping[str, Any], kind: str) -> int:
    """Return the number of requests of the kind between two tallies, without mirrored copies."""

    def counted(tallies: Mapping[str, Any]) -> int:
        return sum(tally[kind]["requests"] - tally[kind]["mirrored"] for tally in tallies.values())

    return counted(now) - counted(before)
