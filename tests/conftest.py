"""What every test gets: a home of its own, so that no test sees another's runs or a person's."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import settings

from ml.backends.local.process_environment import THREADS
from ml.backends.local.tracking import tracking
from ml.core.imports import BIND
from tests.shared import once

ROOT = Path(__file__).parent.parent
# The project that comes with the template; a fork deletes it: ml/projects/README.md.
EXAMPLE = ROOT / "ml" / "projects" / "faq_matching"
# A timeout ends what hangs: a minute's commands took five on a CI machine with other work.
SLOW_TIMEOUT_SECONDS = 1200
# Threads that wait for each other spin, and other workers need the processor: a fifth of what the
# tests of AutoML take. Libraries read these when they are imported; jobs and servers get their own.
for name in THREADS:
    os.environ.setdefault(name, "1")
# An example's time is the machine's, and the first imports what it needs: no test asserts it.
settings.register_profile("usual", deadline=None)
settings.register_profile("deep", max_examples=1000, deadline=None)
settings.load_profile("usual")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Packed bytes may hold the time: a case is not named by them, so that all workers agree."""
    return argname if isinstance(val, bytes) and not val.isascii() else None


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--torture`, which is what `make torture` says."""
    parser.addoption("--torture", action="store_true", help="every round of the randomised tests")
    parser.addoption("--quick", action="store_true", help="with --torture: a tenth of the kills")


@pytest.fixture
def torture(request: pytest.FixtureRequest) -> bool:
    """Whether a test that repeats itself does so in full; else a few rounds are enough."""
    assert request.node.get_closest_marker("torture"), "`make torture` runs what has the mark"
    return bool(request.config.getoption("torture"))


def pytest_configure() -> None:
    """Tests press Ctrl-C; a shell starts what it runs in the background deaf to it. They commit to
    repositories of their own; git tells its hooks, which may start them, of the person's.
    """
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        del os.environ[name]
    gc.set_threshold(50_000, 20, 100)  # as ml.cli.app
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers() -> int | None:
    """A worker a processor and one more: together tests wait for a fifth of their time."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    allowed = getattr(os, "sched_getaffinity", None)  # Linux has it
    return (len(allowed(0)) if allowed else os.cpu_count() or 1) + 1


def deal(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """The tests in the order in which `--dist worksteal` gives each worker an equal share, in turn:
    slow ones before others in each, both in the order of the files.
    """
    slow = [item for item in items if item.get_closest_marker("slow")]
    quick = [item for item in items if not item.get_closest_marker("slow")]
    dealt: list[pytest.Item] = []
    for left in range(workers, 0, -1):
        share = (len(slow) + len(quick)) // left
        first = min(len(slow) // left, share)
        dealt += [*slow[:first], *quick[: share - first]]
        del slow[:first], quick[: share - first]
    return dealt


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where the example project was deleted, what is about it is skipped; nowhere else. Cases that
    only `make torture` runs are left out of others. Each worker begins with its share of the slow
    ones, so that none waits for another's last one. Their timeout is SLOW_TIMEOUT_SECONDS.
    """
    for item in items:
        is_long = item.get_closest_marker("slow") or item.get_closest_marker("torture")
        if is_long and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_SECONDS))
    if not config.getoption("torture"):
        rare = {
            item
            for item in items
            if any(mark.kwargs.get("only") for mark in item.iter_markers("torture"))
        }
        config.hook.pytest_deselected(items=[*rare])
        items[:] = [item for item in items if item not in rare]
    # Deselected tests are gone by now, and xdist has said how many workers there are.
    items[:] = deal(items, getattr(config, "workerinput", {}).get("workercount", 1))
    if EXAMPLE.is_dir():
        return
    for item in items:
        if item.get_closest_marker("example"):
            item.add_marker(pytest.mark.skip(reason="about ml/projects/faq_matching, now deleted"))


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`.local/` of this test alone, and no tracking variables inherited from outside."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("MLOPS_HOME", str(home))
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture(autouse=True)
def latencies_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run beside each other: to wait until the machine is idle doubles the time of a proposal
    and finds no such moment.
    """
    monkeypatch.setattr("ml.backends.local.serving.server.MEASUREMENTS", 1)


@pytest.fixture(scope="session")
def fresh_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow store without runs: making one takes seconds."""

    def fill(folder: Path) -> None:
        # In a process of its own: a running test may ask for it, and this one has its variables.
        make = f"{BIND}; from ml.backends.local.tracking.tracking import Tracking; Tracking()"
        variables = {**os.environ, "MLOPS_HOME": str(folder)}
        subprocess.run([sys.executable, "-P", "-c", make], env=variables, check=True)
        with closing(sqlite3.connect(folder / "mlflow.db")) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    return once(tmp_path_factory, "store", fill) / "mlflow.db"


@pytest.fixture(autouse=True)
def stores_are_copies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that the test's own process makes has copied tables. In other processes MLflow
    makes them.
    """

    def copy(database: Path) -> None:
        shutil.copy(request.getfixturevalue("fresh_store"), database)

    monkeypatch.setattr(tracking, "_make_tables", copy)


@pytest.fixture
def home(own_home: Path, fresh_store: Path) -> Path:
    """This test's home, its store ready."""
    shutil.copy(fresh_store, own_home / "mlflow.db")
    return own_home


@pytest.fixture(scope="session", autouse=True)
def nothing_strays() -> Iterator[None]:
    """What logs in a test has a store of its own, not MLflow's default in the repository."""
    strays = (ROOT / "mlflow.db", ROOT / "mlruns")
    before = {path for path in strays if path.exists()}
    yield
    assert {path for path in strays if path.exists()} <= before


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Note the attack that a case tries in its report, which xdist hands to the main process."""
    outcome = yield
    if mark := item.get_closest_marker("attack"):
        kind = "told" if mark.kwargs.get("told") else "held"
        outcome.get_result().user_properties.append(("attack", (mark.args[0], kind)))  # type: ignore[attr-defined]


def _show_attacks(terminalreporter: pytest.TerminalReporter) -> None:
    """The table of `make torture ARGS=attacks`: each attack, its cases, and what came of it.

    One that cannot be stopped on one machine is `told`: it is made visible.
    """
    attacks: dict[tuple[str, str], Counter[str]] = {}
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, []):
            for name, attack in getattr(report, "user_properties", []):
                if name == "attack" and (report.when == "call" or outcome == "error"):
                    attacks.setdefault(tuple(attack), Counter())[outcome] += 1
    terminalreporter.section("attacks")
    ends = Counter[str]()
    for (sentence, kind), count in sorted(attacks.items()):
        cases, passed = count.total(), count["passed"] == count.total()
        ends[kind if passed else "through"] += 1
        state = kind if passed else f"NOT HELD, {count['passed']} of {cases}"
        terminalreporter.write_line(f"{state:12} {sentence} ({cases} case{'s' * (cases != 1)})")
    tried = sum(count.total() for count in attacks.values())
    terminalreporter.write_line(
        f"attacks: {len(attacks)} tried in {tried} cases, {ends['held']} held, "
        f"{ends['told']} told, {ends['through']} got through"
    )


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say how many cases of the gates were decided as their data files say, and of the attacks."""
    if config.option.markexpr == "attack":
        _show_attacks(terminalreporter)
    kills, rehearsals = Counter[str](), Counter[str]()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            kills.update(dict(report.user_properties).get("kills", {}))
            rehearsals.update(dict(report.user_properties).get("elastic", {}))
    if rehearsals:
        counts = ", ".join(f"{count} {name}" for name, count in rehearsals.items())
        terminalreporter.write_line(f"elastic: {counts}")
    if kills:
        different = kills.pop("different")
        ways = ", ".join(f"{count} {way}" for way, count in sorted(kills.items()))
        terminalreporter.write_line(
            f"checkpoint: {kills.total()} kills ({ways}), {different} weights differ"
        )
    passed = [report.nodeid for report in terminalreporter.stats.get("passed", [])]
    kinds = {
        kind: [one for one in passed if f"test_gate_cases.py::test_a_gate_{kind}[" in one]
        for kind in ("allows", "refuses")
    }
    cases = kinds["allows"] + kinds["refuses"]
    if cases:
        gates = {case.partition("[")[2].partition(":")[0] for case in cases}
        allowed, refused = (len(of) for of in kinds.values())
        terminalreporter.write_line(
            f"gates: {len(gates)}, with {allowed} cases allowed and {refused} refused"
        )
