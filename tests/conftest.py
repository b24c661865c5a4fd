"""Fixtures of every test, such as a temporary home that isolates its runs; pytest's hooks."""

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
# The template's example project, which a fork may delete (ml/projects/README.md).
EXAMPLE = ROOT / "ml" / "projects" / "faq_matching"
# Timeout of slow tests, which only has to end hangs: a busy CI machine takes five times as long.
SLOW_TIMEOUT_SECONDS = 1200
# One thread per library: waiting threads spin and slow down other workers (a fifth of the AutoML
# tests' time). Set before the libraries are imported; jobs and servers set their own.
for name in THREADS:
    os.environ.setdefault(name, "1")
# No deadline for Hypothesis examples: their time depends on the machine, and the first one imports.
settings.register_profile("usual", deadline=None)
settings.register_profile("deep", max_examples=1000, deadline=None)
settings.load_profile("usual")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name cases with binary bytes by the argument: the bytes may differ between workers."""
    return argname if isinstance(val, bytes) and not val.isascii() else None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options `--torture`, which `make torture` passes, and `--quick`."""
    parser.addoption("--torture", action="store_true", help="every round of the randomised tests")
    parser.addoption("--quick", action="store_true", help="with --torture: a tenth of the kills")


@pytest.fixture
def torture(request: pytest.FixtureRequest) -> bool:
    """Return whether a repetitive test must run all rounds (`--torture`), not only a few."""
    assert request.node.get_closest_marker("torture"), "`make torture` runs what has the mark"
    return bool(request.config.getoption("torture"))


def pytest_configure() -> None:
    """Restore Ctrl-C, which shells disable for background processes, and unset GIT_* variables.

    Git sets these variables for hooks, but tests use repositories of their own.
    """
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        del os.environ[name]
    gc.set_threshold(50_000, 20, 100)  # as in ml.cli.app
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers() -> int | None:
    """Return one worker more than there are processors: tests wait for a fifth of their time."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    allowed = getattr(os, "sched_getaffinity", None)  # Linux only
    return (len(allowed(0)) if allowed else os.cpu_count() or 1) + 1


def deal(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Order the tests so that each worker gets an equal share that begins with its slow tests.

    `--dist worksteal` gives consecutive shares to the workers. Otherwise the order is unchanged.
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
    """Set timeouts of slow tests, deselect torture-only cases, and order the tests (`deal`).

    If a fork deleted the example project, tests with the mark `example` are skipped.
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
    # Order last, when tests are deselected and xdist's number of workers is known.
    items[:] = deal(items, getattr(config, "workerinput", {}).get("workercount", 1))
    if EXAMPLE.is_dir():
        return
    for item in items:
        if item.get_closest_marker("example"):
            item.add_marker(pytest.mark.skip(reason="about ml/projects/faq_matching, now deleted"))


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home (`.local/`) for this test only, without inherited MLflow variables."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("MLOPS_HOME", str(home))
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture(autouse=True)
def latencies_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure latencies once instead of waiting for an idle machine.

    Parallel tests keep the machine busy; waiting would double the time of a proposal.
    """
    monkeypatch.setattr("ml.backends.local.serving.server.MEASUREMENTS", 1)


@pytest.fixture(scope="session")
def fresh_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the database of an empty MLflow store, created once since that takes seconds."""

    def fill(folder: Path) -> None:
        # Create it in another process, since this one may have a test's environment variables.
        make = f"{BIND}; from ml.backends.local.tracking.tracking import Tracking; Tracking()"
        variables = {**os.environ, "MLOPS_HOME": str(folder)}
        subprocess.run([sys.executable, "-P", "-c", make], env=variables, check=True)
        with closing(sqlite3.connect(folder / "mlflow.db")) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    return once(tmp_path_factory, "store", fill) / "mlflow.db"


@pytest.fixture(autouse=True)
def stores_are_copies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create stores in the test's process by copying `fresh_store`; other processes use MLflow."""

    def copy(database: Path) -> None:
        shutil.copy(request.getfixturevalue("fresh_store"), database)

    monkeypatch.setattr(tracking, "_make_tables", copy)


@pytest.fixture
def home(own_home: Path, fresh_store: Path) -> Path:
    """Return this test's home, with a tracking store."""
    shutil.copy(fresh_store, own_home / "mlflow.db")
    return own_home


@pytest.fixture(scope="session", autouse=True)
def nothing_strays() -> Iterator[None]:
    """Fail the session if tests create MLflow's default store in the repository."""
    strays = (ROOT / "mlflow.db", ROOT / "mlruns")
    before = {path for path in strays if path.exists()}
    yield
    assert {path for path in strays if path.exists()} <= before


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add a test's mark `attack` to its report, which xdist sends to the main process."""
    outcome = yield
    if mark := item.get_closest_marker("attack"):
        kind = "told" if mark.kwargs.get("told") else "held"
        outcome.get_result().user_properties.append(("attack", (mark.args[0], kind)))  # type: ignore[attr-defined]


def _show_attacks(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table of `make torture ARGS=attacks`: each attack, its cases, and the outcome.

    The outcome `told` means that the attack is not prevented but detected and reported.
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
    """Print how many gate cases were decided as their data files state, and the attacks."""
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
