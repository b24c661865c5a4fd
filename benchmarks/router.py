"""Measure the traffic router's overhead: added latency, requests per second, rollouts.

The server is azureml-inference-server-http with one worker and a scoring script that echoes. The
ratio is the requests per second with the router divided by those without it.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from benchmarks.load import Crowd, closed_loop, latencies, share
from ml.backends.endpoints import Canary, Live
from ml.backends.local.serving import endpoint, server
from ml.release.canary import canary

BODY = b'{"question": "how?"}'
ROUNDS = 5
PER_SECOND = 200.0


def main(quick: bool) -> float:
    from tests.backends.serving.servers import deployment

    seconds, requests = (1.0, 200) if quick else (4.0, 1000)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MLOPS_HOME"] = f"{folder}/home"
        made = deployment(Path(folder))
        try:
            started = server.start(endpoint.folder("echo") / "blue", made)
            endpoint.switch("echo", Live(started, made))
            router = endpoint.start_router("echo")
            added = []
            for _ in range(ROUNDS):  # alternate, so that both have the same load on the machine
                alone = latencies(started.port, BODY, requests, PER_SECOND)
                through = latencies(router.port, BODY, requests, PER_SECOND)
                added.append((share(through, 0.5) - share(alone, 0.5), alone, through))
            added.sort(key=lambda entry: entry[0])
            difference, alone, through = added[ROUNDS // 2]
            print(f"at {PER_SECOND:.0f} requests a second, one caller:")
            for name, found in (("alone", alone), ("router", through)):
                print(f"  {name:7} p50 {share(found, 0.5):.2f} ms, p99 {share(found, 0.99):.2f} ms")
            print(f"  p50 added: {difference:.2f} ms (median of {ROUNDS} rounds; goal under 2)")
            for callers in (1, 4):
                ratios = []
                for _ in range(ROUNDS):
                    rate = closed_loop(started.port, BODY, seconds, callers)
                    routed = closed_loop(router.port, BODY, seconds, callers)
                    ratios.append((routed / rate, rate, routed))
                ratio, rate, routed = sorted(ratios)[ROUNDS // 2]
                print(
                    f"{callers} callers: alone {rate:.0f}/s, router {routed:.0f}/s, x {ratio:.2f}"
                )
            rollouts(router.port, Path(folder), *((3000, 3) if quick else (100_000, 20)))
            return ratio
        finally:
            endpoint.stop("echo")


def rollouts(port: int, folder: Path, requests: int, count: int) -> None:
    """Send requests by four callers during `count` rollouts; print how many fail."""
    from tests.backends.serving.servers import deployment

    crowd = Crowd(port, BODY, 4)
    begun = time.perf_counter()
    for number in range(count):
        made = deployment(folder, version=str(number + 2))
        green = endpoint.begin(made)()
        for weight in (10, 50, 100):
            canary.set_canary(endpoint, "echo", Canary(green, made, weight))
            time.sleep(0.1)
        with endpoint.locked("echo"):
            endpoint.switch("echo", Live(green, made))
            endpoint.drain("echo")
            endpoint.stop_idle("echo")
        while crowd.answered < requests * (number + 1) / count:
            time.sleep(0.01)
    crowd.stop()
    seconds = time.perf_counter() - begun
    failed = {status: found for status, found in crowd.found.items() if status != "200"}
    print(f"{crowd.answered} requests during {count} rollouts in {seconds:.0f} s, failed: {failed}")
