"""Evictions on purpose: what survives a node that goes, what does not, and how it is told."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from ml.backends.base import Options
from ml.backends.local import distribution, files
from ml.backends.local.backend import LocalBackend
from ml.backends.local.processes import spot
from ml.backends.local.processes.reaper import processes_of
from ml.backends.local.processes.spot import Evictions, SpotProcess
from ml.backends.local.runs import records
from ml.backends.local.runs.store import LocalRuns
from ml.backends.runs import Run
from ml.cli.render.runs_text import outcome
from ml.core.errors import Place
from ml.core.home import tracking_uri
from ml.specs.plan.plans import CommandPlan, Distribution, InputPlan, OutputPlan
from tests import forks
from tests.backends.conftest import LOG, Plans, Sweeps
from tests.backends.pipelines import planned, repository, statuses
from tests.conftest import ROOT

__all__ = ["repository"]

PLACE = Place("jobs/job.yml", 9)
# Takes 2 s of steps however often it is killed; a step is done when its checkpoint is whole.
STEPS = 40
CHECKPOINTED = LOG + (
    "folder = Path(sys.argv[1]); checkpoint = folder / 'checkpoint.txt'\n"
    "step = int(checkpoint.read_text()) if checkpoint.exists() else 0\n"
    "print('from', step)\n"
    "Path('scratch.txt').touch(exist_ok=False)\n"
    f"while step < {STEPS}:\n"
    "    time.sleep(0.05); step += 1; log('step', step, step)\n"
    "    (folder / 'new').write_text(str(step)); (folder / 'new').replace(checkpoint)\n"
    "    print('saved', step)\n"
)
# In its first start the node goes after two checkpoints: it does nothing more until then.
BOOSTED = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
import lightgbm
import numpy as np
from ml.toolkit.training.boosting import Watch, boost_lightgbm
from ml.toolkit.training.segments import checkpointed
folder = Path(sys.argv[1])
is_first = not (folder / "begun").exists()
(folder / "begun").touch()
draw = np.random.default_rng(0)
rows, labels = draw.normal(size=(500, 5)), draw.integers(0, 2, 500)
parameters = dict(objective="binary", bagging_fraction=0.5, bagging_freq=1, seed=1)
parameters |= dict(deterministic=True, force_row_wise=True, num_threads=1, verbosity=-1)
def look(trees, scores, again):
    if is_first and len([*folder.glob("*/round-*")]) == 2:
        print("two checkpoints", flush=True)
        time.sleep(60)
with checkpointed(folder):
    data = lightgbm.Dataset(rows, labels)
    booster = boost_lightgbm(parameters, data, 40, segment=10, watch=Watch(rows, 1, look))
is_first = False
other = boost_lightgbm(parameters, lightgbm.Dataset(rows, labels), 40, segment=10)
print("the same:", other.model_to_string() == booster.model_to_string())
"""


def evicted(*after_s: float, notice_s: float = 0.0) -> LocalBackend:
    """A backend whose nodes are evicted so long after each start."""
    return LocalBackend(Options(evict_after=after_s, evict_notice=notice_s))


def printed(run: Run) -> str:
    """What all starts of the run printed."""
    return files.log(run.folder).read_text()


@pytest.mark.parametrize("where", ["outputs", "${{outputs.model}}"])
def test_a_script_with_checkpoints_survives(home: Path, command: Plans, where: str) -> None:
    """Three evictions: one run, metrics appended, every start goes on from the last checkpoint."""
    plan = command(CHECKPOINTED, f"python script.py {where}", {"model": "uri_folder"})
    run = evicted(0.5, 0.5, 0.5).run(plan)
    assert run.status == "Completed", run.error
    assert len(run.restarts) == 3
    assert sorted(run.restarts) == list(run.restarts)
    assert outcome(run) == "Completed (evicted, restarted 3 times)"
    begun, saved = [], 0
    for what, number in re.findall(r"(from|saved) (\d+)", printed(run)):
        if what == "from":
            assert int(number) >= saved
            begun.append(int(number))
        saved = int(number)
    # On a busy machine a start is evicted before its script has begun.
    assert 2 <= len(begun) <= 4 and saved == STEPS
    assert printed(run).count("--- evicted after 0.5 s, started again") == 3
    client = MlflowClient(tracking_uri())
    steps = [metric.step for metric in client.get_metric_history(run.id, "step")]
    assert sorted(set(steps)) == list(range(1, STEPS + 1))
    tracked = client.get_run(run.id)
    assert (tracked.info.status, tracked.data.tags["restarts"]) == ("FINISHED", "3")
    assert records.read(run.folder) == run
    assert LocalRuns().find("latest") == run


def test_what_lay_on_the_node_alone_is_lost(home: Path, command: Plans, tmp_path: Path) -> None:
    """A downloaded input is as it was, an output of mode upload empty; mounts keep what they got.

    The script fails when it finds what it must not find.
    """
    (tmp_path / "data.txt").write_text("old\n")
    data = InputPlan("d", "uri_file", PLACE, source="x", path=tmp_path / "data.txt")
    plan = command(
        command=(
            "date >> ${{outputs.mounted}}/log; [ -e ${{outputs.uploaded}}/x ] && exit 3; "
            "touch ${{outputs.uploaded}}/x; echo + >> ${{inputs.down}}; echo + >> ${{inputs.both}};"
            " cp ${{inputs.down}} ${{inputs.both}} ${{outputs.mounted}};"
            " [ $(wc -l < ${{outputs.mounted}}/log) = 2 ] || sleep 600"
        ),
        outputs={"mounted": "uri_folder"},
        inputs={
            "down": replace(data, name="down", mode="download"),
            "both": replace(data, name="both", path=_copy(tmp_path), mode="rw_mount"),
        },
    )
    uploaded = OutputPlan("uploaded", "uri_folder", PLACE, mode="upload")
    run = evicted(1.0).run(replace(plan, outputs={**plan.outputs, "uploaded": uploaded}))
    assert run.status == "Completed", run.error
    assert len(run.restarts) == 1
    kept = run.outputs["mounted"]
    assert (kept / "data.txt").read_text() == "old\n+\n"
    assert (kept / "both.txt").read_text() == "old\n+\n+\n"
    assert (tmp_path / "data.txt").read_text() == "old\n"


def _copy(folder: Path) -> Path:
    (folder / "both.txt").write_text("old\n")
    return folder / "both.txt"


def test_one_that_never_gets_on_is_told_why(home: Path, command: Plans) -> None:
    """The time limit is for all starts together; the hint is a checkpoint."""
    plan = replace(command("import time; time.sleep(60)"), timeout_s=1.5)
    run = evicted(0.4, 0.4).run(plan)
    assert (run.status, run.ended_by) == ("Canceled", "timeout")
    assert run.error is not None
    assert run.error.code == "timed-out"
    assert "it was evicted 2 times and began from the start each time" in run.error.actual
    assert "save a checkpoint" in run.error.hint
    assert processes_of(run.id) == []


def test_a_time_limit_without_evictions_says_nothing_of_them(home: Path, command: Plans) -> None:
    """The hint is for those that were evicted."""
    run = LocalBackend().run(replace(command("import time; time.sleep(60)"), timeout_s=0.3))
    assert run.error is not None
    assert "evicted" not in str(run.error) and "checkpoint" not in str(run.error)


def test_everything_on_the_node_ends(home: Path, command: Plans) -> None:
    """A child in a session of its own does not live on beside the restarted command."""
    script = (
        "import contextlib, subprocess, sys, time\n"
        "from pathlib import Path\n"
        "note = Path('outputs/child')\n"
        "if note.exists():\n"
        "    with contextlib.suppress(OSError):  # of one that has ended there is nothing to read\n"
        "        sys.exit(Path('/proc', note.read_text(), 'environ').read_bytes() != b'')\n"
        "    sys.exit()\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "note.write_text(str(child.pid)); time.sleep(600)\n"
    )
    run = evicted(1.0).run(command(script))
    assert (run.status, len(run.restarts)) == ("Completed", 1), run.error


SAVES = (
    "import signal, sys, time\n"
    "from pathlib import Path\n"
    "note = Path('outputs/note')\n"
    "if note.exists(): sys.exit(note.read_text() != 'saved')\n"
    "def save(*_): note.write_text('saved'); sys.exit(CODE)\n"
    "signal.signal(signal.SIGTERM, save); print('ready', flush=True); time.sleep(600)\n"
)


@pytest.mark.parametrize("code", ["0", "5"])
def test_a_notice_lets_a_script_save(home: Path, command: Plans, code: str) -> None:
    """SIGTERM first; whatever it then exits with, the node goes and the command starts again."""
    run = evicted(1.0, notice_s=30).run(command(SAVES.replace("CODE", code)))
    assert run.status == "Completed", run.error
    assert len(run.restarts) == 1


@pytest.mark.parametrize("command_line", ["python script.py", "true && python script.py; true"])
def test_every_rank_gets_its_notice(home: Path, command: Plans, command_line: str) -> None:
    """Each has the time to save, also where a shell with more to do is around it."""
    script = SAVES.replace("CODE", "0").replace("'outputs/note'", "'outputs/' + os.environ['RANK']")
    script = script.replace("import signal", "import os, signal").replace(
        "(*_): ", "(*_): time.sleep(1); "
    )
    plan = command(script, command_line)
    plan = replace(plan, instance_count=1, distribution=Distribution("pytorch", 2, PLACE))
    run = evicted(1.5, notice_s=30).run(plan)
    assert run.status == "Completed", printed(run)
    assert len(run.restarts) == 1


def test_a_notice_that_nobody_heeds_ends_in_sigkill(home: Path, command: Plans) -> None:
    """When its time is over."""
    script = (
        "import signal, sys, time\n"
        "from pathlib import Path\n"
        "if Path('outputs/x').exists(): sys.exit()\n"
        "Path('outputs/x').touch()\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)\n"
    )
    run = evicted(1.0, notice_s=0.3).run(command(script))
    assert run.status == "Completed", run.error
    assert len(run.restarts) == 1


def test_trials_are_evicted_each(home: Path, sweep: Sweeps) -> None:
    """Every trial of a sweep, as nodes go; scores and outputs are as without."""
    script = LOG + (
        "from pathlib import Path\n"
        "if not Path('outputs/x').exists(): Path('outputs/x').touch(); time.sleep(600)\n"
        "log('score', float(sys.argv[1]))\n"
    )
    run = evicted(1.0).run(sweep(script, max_total_trials=2))
    assert run.status == "Completed", run.error
    assert [len(trial.restarts) for trial in run.trials] == [1, 1]
    assert {trial.metrics["score"] for trial in run.trials} == {
        trial.parameters["x"] for trial in run.trials
    }


def test_trials_get_their_notice(home: Path, sweep: Sweeps) -> None:
    """Also those that a forkserver has forked: SIGTERM reaches them."""
    script = LOG + SAVES.replace("CODE", "0").replace(
        "if note.exists(): sys.exit(note.read_text() != 'saved')",
        "if note.exists():\n    log('score', float(note.read_text() == 'saved')); sys.exit()",
    )
    run = evicted(1.5, notice_s=30).run(sweep(script, max_total_trials=2))
    assert run.status == "Completed", run.error
    assert [(len(trial.restarts), trial.metrics["score"]) for trial in run.trials] == [(1, 1.0)] * 2


PIPELINE = """
jobs:
  a:
    {@, command: 'test -e outputs/x || { touch outputs/x; sleep 2; }; echo 1 > ${{outputs.out}}/f',
    outputs: {out: {type: uri_folder}}}
  b: {@, command: 'cat ${{inputs.x}}/f', inputs: {x: '${{parent.jobs.a.outputs.out}}'}}
"""


def test_steps_are_evicted_and_not_reused(home: Path, repository: Path) -> None:
    """A step that would be taken over runs all the same: a rehearsal is for what runs."""
    plan = planned(repository, PIPELINE)
    assert statuses(LocalBackend().run(plan)) == {"a": "Completed", "b": "Completed"}
    run = evicted(1.0).run(plan)
    assert statuses(run) == {"a": "Completed", "b": "Completed"}
    assert [len(step.restarts) for step in run.steps] == [1, 0]
    assert printed(run.step("b")) == "1\n"
    assert [warning.code for warning in run.step("b").warnings] == ["ended-before-eviction"]
    assert statuses(LocalBackend().run(plan)) == {"a": "reused", "b": "reused"}


def test_a_job_that_was_too_quick_says_so(home: Path, command: Plans) -> None:
    """Nothing was rehearsed: a warning, and the run completed."""
    run = evicted(0.3, 60).run(command("import time; time.sleep(1)", "python script.py"))
    assert [warning.code for warning in run.warnings] == ["ended-before-eviction"]
    assert (
        "eviction 2 of 2" in run.warnings[0].actual or "eviction 1 of 2" in run.warnings[0].actual
    )
    assert LocalBackend().run(command("")).warnings == ()


class Scripted:
    """A process that ends when it is told to, in the way that it was made for."""

    def __init__(self, code: int) -> None:
        self.code, self.ended, self.start_method, self.group = code, False, "", None

    def poll(self) -> int | None:
        return self.code if self.ended else None

    def terminate(self) -> None:
        self.ended = True

    def kill(self) -> None:
        self.ended = True


@pytest.mark.parametrize(("code", "again"), [(0, 0), (3, 0), (-signal.SIGKILL, 1)])
def test_one_that_had_just_ended_is_not_started_again(code: int, again: int) -> None:
    """Only what the eviction killed is: an exit code of its own was there before the signal."""
    told: list[float] = []
    started = [Scripted(code), Scripted(0)]
    process = SpotProcess("run", lambda: started.pop(0), told.append, Evictions((0.0,)))
    assert process.poll() is None  # evicted
    assert process.poll() == (None if again else code)
    assert len(told) == again


def test_one_that_is_stopped_is_not_started_again() -> None:
    """A time limit or a person's Ctrl-C wins over an eviction that is under way."""
    told: list[float] = []
    process = SpotProcess(
        "run", lambda: Scripted(-signal.SIGKILL), told.append, Evictions((0.0, 0.0))
    )
    assert process.poll() is None
    process.terminate()
    assert process.poll() == -signal.SIGKILL
    assert told == []


def test_full_disk_at_a_restart(
    home: Path, command: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run fails with what the disk lacks; nothing is left running."""
    plan = command("import time; time.sleep(600)")

    def full(plan: CommandPlan, folder: Path, snapshot: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ml.backends.local.processes.spot.lay_out_again", full)
    run = evicted(0.3).run(plan)
    assert run.status == "Failed"
    assert run.error is not None and run.error.code == "disk-full"
    assert processes_of(run.id) == []


@pytest.fixture
def ml(tmp_path: Path, home: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `ml …` in a small repository."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "job.yml").write_text(
        "type: command\nenvironment: azureml:e:1\nexperiment_name: tests\n"
        "command: 'test -e outputs/x || { touch outputs/x; sleep 600; }'\n"
    )

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return forks.ml(*words, cwd=tmp_path)

    return call


@pytest.mark.slow
def test_as_a_person_types_it(ml: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """`--evict-after`, what the summary and `runs show` say, and a span that is none."""
    done = ml("run", "job.yml", "--evict-after", "1s")
    assert done.returncode == 0, done.stderr
    assert "--- evicted after 1 s, started again: restart 1 ---" in done.stderr
    assert "Completed (evicted, restarted once)" in done.stderr
    shown = ml("runs", "show").stdout
    assert "Completed (evicted, restarted once)" in shown and "restart 1" in shown
    wrong = ml("run", "job.yml", "--evict-after", "soon")
    assert wrong.returncode == 2
    assert "error[bad-duration]: --evict-after soon" in wrong.stderr


def test_a_trial_that_waits_for_its_imports_is_evicted(home: Path, sweep: Sweeps) -> None:
    """Its process is not there yet: it is started again as any other."""
    run = evicted(0.05).run(
        sweep("import numpy, scipy.stats\n" + LOG + "log('score', 1.0)", max_total_trials=2)
    )
    assert run.status == "Completed"
    assert [len(trial.restarts) for trial in run.trials] == [1, 1]


def test_boosted_trees_survive(home: Path, command: Plans) -> None:
    """The node goes after two segments; the next goes on there, and the trees are the same."""
    plan = command(
        BOOSTED, "python script.py ${{outputs.checkpoints}}", {"checkpoints": "uri_folder"}
    )
    run = evicted(10.0).run(plan)
    assert run.status == "Completed", run.error
    assert len(run.restarts) == 1
    assert "the same: True" in printed(run)
    # A machine that has much else to do may not come so far before.
    assert ("two checkpoints" in printed(run)) == ("resumed after 20 rounds" in printed(run))


# A torchrun that says which node it is. Node 0 has the rendezvous, and ends when node 1 was there
# twice; node 1 leaves a process of another session behind.
AGENT = """#!/usr/bin/env python
import os, signal, socket, subprocess, sys, time
from pathlib import Path
there = Path(sys.argv[-1])
node, ends = os.environ["NODE_RANK"], time.monotonic() + 60
(there / f"{node}-{os.getpid()}").touch()
print("node", node, "with", len([*there.glob("0-*")]), flush=True)
if node == "0":
    server = socket.create_server((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
else:
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    signal.signal(signal.SIGTERM, lambda *_: (print("a notice", flush=True), sys.exit(1)))
while len([*there.glob("1-*")]) < 2 and time.monotonic() < ends:
    time.sleep(0.05)
"""
ELASTIC = "torchrun --nnodes 1:2 --rdzv-endpoint $MASTER_ADDR:$MASTER_PORT train.py "


@pytest.fixture
def elastic(tmp_path: Path, command: Plans, monkeypatch: pytest.MonkeyPatch) -> CommandPlan:
    """A job of two agents, whose nodes are away for half a second."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/torchrun").write_text(AGENT)
    (tmp_path / "bin/torchrun").chmod(0o755)
    monkeypatch.setattr(spot, "AWAY_S", 0.5)
    plan = command(
        command=f"{tmp_path}/bin/{ELASTIC}${{{{outputs.there}}}}", outputs={"there": "uri_folder"}
    )
    return replace(plan, instance_count=2, distribution=Distribution("pytorch", 1, PLACE))


@pytest.mark.parametrize("notice_s", [0.0, 3.0])
def test_one_node_of_an_elastic_job_is_evicted(
    home: Path, elastic: CommandPlan, notice_s: float
) -> None:
    """The other goes on, a new one comes, and nothing of the first is left."""
    run = evicted(2.0, notice_s=notice_s).run(elastic)
    assert run.status == "Completed", run.error
    assert len(run.restarts) == 1
    names = sorted(path.name[0] for path in run.outputs["there"].iterdir())
    assert names == ["0", "1", "1"]
    assert "--- node 1 evicted after 2 s, another comes after 0.5 s: restart 1 ---" in printed(run)
    # Node 1 waits for the rendezvous of node 0.
    logs = "".join(path.read_text() for path in run.folder.glob("logs/rank_*.txt"))
    assert "node 1 with 0" not in logs and logs.count("node 1 with 1") == 2
    assert ("a notice" in logs) is bool(notice_s)
    assert processes_of(run.id) == []


def test_an_elastic_job_loses_its_first_node(home: Path, elastic: CommandPlan) -> None:
    """The rendezvous is gone: the job fails, says whose process ended, and ends the others."""
    plan = replace(elastic, command=f"[ $NODE_RANK = 0 ] && kill -9 $$; {elastic.command}")
    run = LocalBackend().run(plan)
    assert run.status == "Failed" and run.error is not None
    assert "rank 0 was ended by SIGKILL" in run.error.actual
    assert processes_of(run.id) == []


def test_an_elastic_job_of_one_node_is_evicted_as_any_other(elastic: CommandPlan) -> None:
    """And so is a job of many nodes whose world is of one size."""
    assert distribution.elastic_node(elastic) == 1
    assert distribution.elastic_node(replace(elastic, instance_count=1)) is None
    fixed = replace(elastic, command=elastic.command.replace("1:2", "2"))
    assert distribution.elastic_node(fixed) is None
