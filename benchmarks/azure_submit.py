"""Compare the time from submit to running of `ml run --on azure` and of MLClient (stand-in).

Both submit new jobs of the same spec in this process, after a warm-up, and stop when the job runs.
The import of azure-ai-ml does not count.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from unittest import mock

from ml.backends.azure.backend import AzureBackend
from ml.backends.base import Options
from ml.backends.runs import Event
from ml.specs.plan import planning
from ml.specs.sdk import load

SPEC = """\
$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json
type: command
code: code
command: python wait.py ${{inputs.number}}
inputs: {number: 0}
environment: azureml:ml-cpu:1
compute: azureml:cpu-cluster
"""
POLL_S = 0.02


class _Running(BaseException):
    """Raised once the job runs, to stop following it as Ctrl-C does."""


def _wait_until_running(client: object, name: str) -> None:
    while client.jobs.get(name).status in ("NotStarted", "Queued", "Preparing"):  # type: ignore[attr-defined]
        time.sleep(POLL_S)


def _seconds(submit: Callable[[int], None], numbers: count[int]) -> float:
    start = time.perf_counter()
    submit(next(numbers))
    return time.perf_counter() - start


def main(quick: bool) -> float:
    """Print both medians; return ours divided by the client's."""
    from tests.stand_ins.azure.running import register_environment, running

    pairs = 3 if quick else 15
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        spec = folder / "job.yml"
        spec.write_text(SPEC)
        (folder / "code").mkdir()
        (folder / "code" / "wait.py").write_text("import time; time.sleep(1)")
        with (
            running(folder / "azure") as stand_in,
            mock.patch.dict(os.environ, {**stand_in.variables, "MLOPS_HOME": str(folder / "home")}),
        ):
            backend = AzureBackend(Options())
            client = backend.workspace.client
            register_environment(client, "ml-cpu", "1")

            def watch(event: Event) -> None:
                _wait_until_running(client, event.run.name)
                raise _Running

            def ours(number: int) -> None:
                plan = planning.plan(load.load(spec, {"inputs.number": str(number)}))
                try:
                    backend.run(plan, watch)
                except _Running:
                    return

            def bare(number: int) -> None:
                from azure.ai.ml import load_job

                job = load_job(spec, params_override=[{"inputs.number": number}])
                with backend.workspace.quiet():
                    name = client.jobs.create_or_update(job).name
                _wait_until_running(client, name)

            numbers = count(1)
            times: dict[Callable[[int], None], list[float]] = {ours: [], bare: []}
            for submit in (ours, bare):
                submit(next(numbers))  # warm-up
            for number in range(pairs):
                for submit in (ours, bare) if number % 2 else (bare, ours):
                    times[submit].append(_seconds(submit, numbers))
                    time.sleep(1.5)  # wait until the previous job has ended
    mine, theirs = (statistics.median(times[submit]) for submit in (ours, bare))
    print(f"ml run --on azure  {mine:.3f} s")
    print(f"bare MLClient      {theirs:.3f} s")
    return mine / theirs
