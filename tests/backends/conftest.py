"""Fixtures: plans of small jobs, and workspaces of the Azure stand-in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ml.backends.azure.workspace import configured
from ml.backends.local.serving import endpoint
from ml.core.errors import Place
from ml.specs.plan.plans import (
    CommandPlan,
    Dimension,
    Environment,
    InputPlan,
    OutputPlan,
    SweepPlan,
    Value,
)
from tests.stand_ins.azure.running import StandIn, register_environment, running

SPEC = "jobs/job.yml"
# Show the compared values of failed assertions, as pytest does by default only for test_*.py.
pytest.register_assert_rewrite("tests.backends.contract")


Plans = Callable[..., CommandPlan]
Sweeps = Callable[..., SweepPlan]


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    """Yield the session's stand-in for Azure; each test uses a workspace of its own in it.

    Also disables azure-ai-ml's warnings about experimental objects. Each one inspects the stack,
    which takes 45 ms in a pytest-xdist worker, 714 times in one test.
    """
    searches = "azure.ai.ml._utils._experimental._should_skip_warning"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searches, lambda: True)
        with running(tmp_path_factory.mktemp("azure")) as stand_in:
            yield stand_in


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Plans]:
    """Yield a function that plans a command job of a script: `command("print(1)", lr=0.1)`."""
    code = tmp_path / "code"
    code.mkdir()

    def make(
        script: str = "",
        command: str = "python script.py",
        outputs: dict[str, str] | None = None,
        inputs: dict[str, InputPlan] | None = None,
        **literals: Value,
    ) -> CommandPlan:
        (code / "script.py").write_text(script)
        place = Place(SPEC, 3)
        given = {k: InputPlan(k, "string", place, value=v) for k, v in literals.items()}
        return CommandPlan(
            place,
            "a job",
            "tests",
            command,
            code,
            Environment("azureml:ml-cpu:1"),
            "azureml:cpu-cluster",
            inputs=given | (inputs or {}),
            outputs={k: OutputPlan(k, kind, place) for k, kind in (outputs or {}).items()},
            places={"command": Place(SPEC, 7)},
        )

    yield make


@pytest.fixture
def sweep(command: Plans) -> Iterator[Sweeps]:
    """Return a function that plans a sweep over `x`, uniform in [0, 1], to maximise `score`."""

    def make(script: str, outputs: dict[str, str] | None = None, **changes: object) -> SweepPlan:
        place = Place(SPEC, 3)
        trial = command(script, "python script.py ${{search_space.x}}", outputs)
        plan = SweepPlan(
            place,
            "a sweep",
            "tests",
            trial,
            {"x": Dimension("x", "uniform", (0.0, 1.0), place)},
            "random",
            "maximize",
            "score",
            seed=1,
            max_total_trials=3,
            max_concurrent_trials=2,
            places={"objective": Place(SPEC, 20)},
        )
        return replace(plan, **changes)

    yield make


# Code for scripts of quick tests: `log("score", 0.5)` writes to MLflow's tables without `import
# mlflow`, which takes two seconds. Slow tests use MLflow itself.
LOG = """
import math, os, sqlite3, sys, time
from pathlib import Path
store = os.environ["MLFLOW_TRACKING_URI"].removeprefix("sqlite:///")
def log(key, value, step=0):
    nan = math.isnan(value)
    kept = 0.0 if nan else max(-1.7976931348623157e308, min(1.7976931348623157e308, value))
    row = (key, kept, int(time.time() * 1000), os.environ["MLFLOW_RUN_ID"], step, int(nan))
    with sqlite3.connect(store, timeout=20) as connection:
        connection.execute(
            "INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan)"
            " VALUES (?, ?, ?, ?, ?, ?)", row)
        connection.execute(
            "INSERT OR REPLACE INTO latest_metrics (key, value, timestamp, run_uuid, step, is_nan)"
            " VALUES (?, ?, ?, ?, ?, ?)", row)
    connection.close()
"""


JOB = """\
$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json
type: command
display_name: say a word
experiment_name: words
code: code
command: python say.py ${{inputs.word}} ${{outputs.model}}
inputs:
  word: hello
outputs:
  model: {type: custom_model}
environment: azureml:ml-cpu:1
compute: azureml:cpu-cluster
"""
SAY = """\
import sys
from pathlib import Path
print("the word is", sys.argv[1])
Path(sys.argv[2], "model.txt").write_text(sys.argv[1])
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """Write the spec of a small command job; return its path."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "say.py").write_text(SAY)
    (tmp_path / "job.yml").write_text(JOB)
    return tmp_path / "job.yml"


@pytest.fixture
def deployments(own_home: Path) -> Iterator[Path]:
    """Yield the test's home, and stop the servers of its endpoints at the end."""
    yield own_home
    for name in endpoint.names():
        endpoint.stop(name)


@pytest.fixture
def idle(azure: StandIn, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Return the stand-in with a new workspace in which jobs stay queued."""
    azure.enter(monkeypatch, "idle")
    return azure


@pytest.fixture
def workspace(azure: StandIn, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Return the stand-in with a new workspace that has the environment of the job."""
    azure.enter(monkeypatch)
    register_environment(configured().client, "ml-cpu", "1")
    azure.requests()
    return azure
