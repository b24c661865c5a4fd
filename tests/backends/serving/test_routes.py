"""The router: which deployment gets a request, and the counters."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from ml.backends.local.serving.router import routes as routing
from ml.backends.local.serving.router.proxy import Proxy
from ml.backends.local.serving.router.routes import RoutesError, RouteTable
from ml.backends.traffic import (
    BUCKETS,
    FIRST_S,
    MAX_ANSWERS,
    PER_OCTAVE,
    Recent,
    Tally,
    bucket,
    position,
    ticket,
)

PORTS = {"green": 2, "blue": 1}


def split(green: int, mirror: int = 0) -> RouteTable:
    """Green has that share."""
    return RouteTable("blue", PORTS, {"green": green, "blue": 100 - green}, {"green": mirror})


@pytest.mark.parametrize("share", [0, 10, 50, 100])
def test_traffic_follows_the_weights(share: int) -> None:
    """Of 10,000 requests green gets its percentage, to within four standard errors."""
    draw = random.Random(0)
    got = sum(split(share).pick(None, draw) == "green" for _ in range(10_000))
    assert abs(got - 100 * share) <= 4 * (10_000 * share * (100 - share) / 10_000) ** 0.5


@given(some.text(), some.integers(0, 100), some.integers(0, 100))
def test_a_key_stays_with_green_while_its_share_grows(key: str, one: int, other: int) -> None:
    """A key that green has at one weight it has at every larger one; no draw is involved."""
    less, more = sorted((one, other))
    first = split(less).pick(key, random.Random(1))
    assert first == split(less).pick(key, random.Random(2))
    if first == "green":
        assert split(more).pick(key, random.Random(3)) == "green"


def test_keys_follow_the_weights() -> None:
    """A tenth of the keys, not of the requests of one key."""
    draw = random.Random(0)
    got = sum(split(10).pick(f"customer-{number}", draw) == "green" for number in range(10_000))
    assert 880 <= got <= 1120


def test_without_a_lease_all_traffic_goes_to_the_live_deployment() -> None:
    """Sticky keys too."""
    draw = random.Random(0)
    assert {split(100).pick(key, draw, leased=False) for key in (None, "a", "b")} == {"blue"}


def test_a_request_is_not_copied_to_the_deployment_that_answers_it() -> None:
    """Green gets its percentage when blue answers, nothing when green does."""
    draw, routes = random.Random(0), split(50, mirror=20)
    copies = sum(routes.pick_mirror("blue", draw) == "green" for _ in range(10_000))
    assert 1840 <= copies <= 2160
    assert not any(routes.pick_mirror("green", draw) for _ in range(1000))


def test_two_mirrors_share_the_copies() -> None:
    """Each gets its percentage, to within four standard errors, and no request is copied twice."""
    mirror = {"green": 30, "baseline": 30}
    routes = RouteTable("blue", {**PORTS, "baseline": 3}, {"blue": 100}, mirror)
    draw = random.Random(0)
    copies = Counter(routes.pick_mirror("blue", draw) for _ in range(10_000))
    assert all(abs(copies[name] - 3000) <= 184 for name in mirror)


def test_keys_stay_with_green_beside_a_baseline() -> None:
    """With 10 % and 50 % and an equal share for the baseline, as an endpoint writes it."""
    steps = [{"green": 10, "baseline": 10, "blue": 80}, {"green": 50, "baseline": 50, "blue": 0}]
    made = [RouteTable("blue", {**PORTS, "baseline": 3}, traffic, {}) for traffic in steps]
    draw = random.Random(0)
    for number in range(1000):
        less, more = (routes.pick(f"customer-{number}", draw) for routes in made)
        assert less != "green" or more == "green"


@pytest.mark.parametrize(
    ("traffic", "mirror", "why"),
    [
        ({"blue": 90}, {}, "add up"),
        ({"blue": 110, "green": -10}, {}, "add up"),
        ({"blue": 100}, {"green": 51}, "percent"),
        ({"blue": 100}, {"green": 50, "blue": 50, "red": 1}, "percent"),
        ({"blue": 50, "red": 50}, {}, "no port for red"),
    ],
)
def test_invalid_routes_are_refused(
    traffic: dict[str, int], mirror: dict[str, int], why: str
) -> None:
    """The error names the defect."""
    with pytest.raises(RoutesError, match=why):
        ports = {**PORTS, "red": 3} if "red" in mirror else PORTS
        RouteTable("blue", ports, traffic, mirror)


def test_a_file_of_routes_is_read_or_refused(tmp_path: Path) -> None:
    """Any other content is an error that names the file."""
    path = tmp_path / "live.json"
    sound = {"live": "blue", "ports": PORTS, "traffic": {"green": 5, "blue": 95}, "mirror": {}}
    path.write_text(json.dumps({"routes": {**sound, "timeout_ms": 100, "lease_s": 2.5}}))
    assert routing.read(path) == RouteTable("blue", PORTS, sound["traffic"], {}, 100, 2.5)  # type: ignore[arg-type]
    for text in ("", "{}", "[]", '{"routes": {}}', json.dumps({"routes": sound})):
        path.write_text(text)
        with pytest.raises(RoutesError, match=r"live\.json"):
            routing.read(path)


@given(some.floats(0, 1000))
def test_a_time_lies_within_its_bucket(seconds: float) -> None:
    """Below its upper edge and not below its lower one."""
    found = bucket(seconds)
    assert 0 <= found < BUCKETS
    if 0 < found < BUCKETS - 1:
        assert FIRST_S * 2 ** ((found - 1) / PER_OCTAVE) <= seconds * (1 + 1e-9)
        assert seconds <= FIRST_S * 2 ** (found / PER_OCTAVE) * (1 + 1e-9)


def test_answers_are_counted_by_kind() -> None:
    """5xx and the router's own answers are errors, the deployment's own 4xx are refusals."""
    tally = Tally()
    for status, own in ((200, True), (500, True), (502, False), (408, False), (400, True)):
        tally.add(status, 0.001, own)
    assert (tally.requests, tally.errors, tally.refused) == (5, 3, 1)
    assert sum(tally.latency) == 5 and tally.statuses[408] == 1


def test_recent_answers_are_bounded() -> None:
    """The oldest are dropped first; the body of a long one is not stored."""
    recent = Recent()
    recent.add("blue", "client", 200, b"x" * 100_000)
    assert recent.since(0)[0].body is None
    for _ in range(MAX_ANSWERS + 10):
        recent.add("blue", "client", 200, b"y" * 8_000)
    kept = recent.since(0)
    assert sum(len(one.body or b"") for one in kept) <= 8 * 2**20
    assert kept[-1].number == recent.last == MAX_ANSWERS + 11
    assert [one.number for one in recent.since(recent.last - 2)] == [recent.last - 1, recent.last]


def test_another_salt_gives_other_tickets() -> None:
    """The groups of two experiments are independent, and a ticket hides its key."""
    keys = [f"customer-{number}" for number in range(4000)]
    one, other = ([position(ticket(key, salt)) < 50 for key in keys] for salt in "ab")
    assert 1840 <= sum(a == b for a, b in zip(one, other, strict=True)) <= 2160
    assert ticket("customer-1", "a") != ticket("customer-1")


def test_the_ticket_determines_the_deployment() -> None:
    """With a salt, too."""
    routes = RouteTable("blue", PORTS, {"green": 30, "blue": 70}, {}, salt="s", experiment="e")
    for number in range(500):
        green = position(ticket(f"k{number}", "s")) < 30
        assert (routes.pick(f"k{number}", random.Random(0)) == "green") is green


@pytest.mark.attack("callers displace the answers to samples by many of their own")
def test_each_kind_of_recent_answer_has_its_own_room() -> None:
    """The samples stay; all are in the order in which they came."""
    recent = Recent()
    recent.add("green", "sample", 200, b"sample")
    for _ in range(MAX_ANSWERS + 10):
        recent.add("green", "client", 200, b"y" * 8_000)
    recent.add("green", "sample", 200, b"sample")
    kept = recent.since(0)
    assert [one.body for one in kept if one.kind == "sample"] == [b"sample"] * 2
    assert [one.number for one in kept] == sorted(one.number for one in kept)


@pytest.mark.attack("a caller works out from earlier answers which deployment is next")
def test_the_split_has_no_state_that_could_be_foreseen(tmp_path: Path) -> None:
    """The system's entropy decides each request; a fork draws other numbers."""

    async def draws() -> random.Random:
        proxy = Proxy(tmp_path / "live.json", "")
        await proxy.close(0)
        return proxy._random

    assert isinstance(asyncio.run(draws()), random.SystemRandom)
