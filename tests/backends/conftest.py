"""Plans of small jobs."""

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
# A failed assertion of the contract says what it compared; pytest does so for test_*.py alone.
pytest.register_assert_rewrite("tests.backends.contract")


Plans = Callable[..., CommandPlan]
Sweeps = Callable[..., SweepPlan]


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    """The stand-in for Azure, one a session; tests enter a workspace of their own in it.

    azure-ai-ml searches the whole stack for each experimental object that it makes, also once the
    warning was printed: 45 ms in a worker of pytest-xdist, 714 times in one test.
    """
    searches = "azure.ai.ml._utils._experimental._should_skip_warning"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searches, lambda: True)
        with running(tmp_path_factory.mktemp("azure")) as stand_in:
            yield stand_in


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Plans]:
    """Makes the plan of a command job around a script: `command("print(1)", lr=0.1)`."""
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
    """Makes the plan of a sweep over `x`, uniform in [0, 1], that maximises `score`."""

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


# `log("score", 0.5)` for scripts of quick tests: a row in MLflow's tables, without the two seconds
# of `import mlflow`. The slow tests use MLflow itself.
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
    """A small command job."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "say.py").write_text(SAY)
    (tmp_path / "job.yml").write_text(JOB)
    return tmp_path / "job.yml"


@pytest.fixture
def deployments(own_home: Path) -> Iterator[Path]:
    """The home; servers of its endpoints are stopped when the test ends."""
    yield own_home
    for name in endpoint.names():
        endpoint.stop(name)


@pytest.fixture
def idle(azure: StandIn, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """A workspace that starts no job."""
    azure.enter(monkeypatch, "idle")
    return azure


@pytest.fixture
def workspace(azure: StandIn, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """A workspace of this test's own, with the environment that the job names."""
    azure.enter(monkeypatch)
    register_environment(configured().client, "ml-cpu", "1")
    azure.requests()
    return azure
