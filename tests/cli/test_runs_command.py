"""`ml runs …` as a person types it: streams, JSON, exit codes; a thousand runs are quick."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ml.backends.local.runs import jobs, records
from ml.backends.runs import Filter
from ml.cli.options import moment
from ml.cli.render import runs_text
from ml.cli.render.logs import BLOCK_BYTES, tail_offset, write
from ml.core import home
from ml.core.errors import Problem, UserError
from ml.core.terminal import printable
from ml.release.versions import Descendant, Served
from tests.backends.made_runs import made, made_model, made_snapshot, made_sweep
from tests.cli.conftest import Ml
from tests.local import BACKEND


def test_the_list(ml: Ml) -> None:
    """A table on stdout, what was left out on stderr; the sweep's metric and not any metric."""
    made("old_oak_01", days_ago=3, metrics={"a": 1.0, "b": 2.0, "score": 0.25})
    made("bad_oak_02", status="Failed", error=Problem("script-failed", "it exited with 1"))
    made_sweep("sweep_oak_03", 0.5, 0.75)
    done = ml("list")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == [*runs_text.COLUMNS]
    assert [line.split()[0] for line in lines[1:]] == ["sweep_oak_03", "bad_oak_02", "old_oak_01"]
    assert lines[1].endswith("2/2 trials, score=0.75")
    assert lines[2].endswith("[script-failed]")
    assert lines[3].endswith("score=0.25") and "3 d ago" in lines[3]
    assert done.stderr == ""
    few = ml("list", "--limit", "1")
    assert len(few.stdout.splitlines()) == 2
    assert "1 of 3 runs" in few.stderr


def test_the_list_for_a_program(ml: Ml) -> None:
    """JSON alone on stdout; a diverged metric is text, as JSON has no NaN."""
    made("nan_oak_01", metrics={"loss": float("nan")})
    made("bad_oak_02", status="Failed", experiment="other")
    said = json.loads(ml("list", "--json").stdout, parse_constant=pytest.fail)
    assert {one["name"]: one["status"] for one in said} == {
        "nan_oak_01": "Completed",
        "bad_oak_02": "Failed",
    }
    filtered = ml("list", "--json", "--status", "failed", "--since", "1h", "--experiment", "other")
    assert [one["name"] for one in json.loads(filtered.stdout)] == ["bad_oak_02"]
    assert json.loads(ml("list", "--json", "--project", "none").stdout) == []


def test_what_the_author_calls_it(ml: Ml) -> None:
    """The display name in the list; description and tags too in `show` and for programs."""
    said = {"display_name": "nightly", "description": "every night", "tags": {"team": "a=b"}}
    made("one_oak_01", lineage=said)
    made("two_oak_02")
    assert ml("list").stdout.splitlines()[-1].split()[:2] == ["one_oak_01", "nightly"]
    one = json.loads(ml("list", "--json").stdout)[-1]
    assert {key: one[key] for key in said} == said
    shown = {" ".join(line.split()) for line in ml("show", "one_oak_01").stdout.splitlines()}
    assert {"job nightly", "description every night", "tag team a=b"} <= shown


def test_nothing_to_list(ml: Ml) -> None:
    """Says how to begin; a program gets an empty list."""
    done = ml("list")
    assert (done.returncode, done.stdout) == (0, "")
    assert "ml run SPEC" in done.stderr
    assert json.loads(ml("list", "--json").stdout) == []
    made("old_oak_01")
    assert ml("list", "--experiment", "other").stderr.startswith("no run passes the filters")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["list", "--status", "done"], 2, "no-such-status"),
        (["list", "--since", "yesterday"], 2, "not-a-time"),
        (["show", "no_such_run_00"], 2, "no-such-run"),
        (["logs", "no_such_run_00"], 2, "no-such-run"),
        (["cancel", "one_oak_01"], 2, "not-running"),
        (["clean", "--keep", "0"], 2, "not-confirmed"),
        (["clean", "--older-than", "soon"], 2, "not-a-time"),
    ],
)
def test_what_is_refused(ml: Ml, words: list[str], code: int, said: str) -> None:
    """Each with its exit code and a name, without a traceback; nothing is touched."""
    run = made("one_oak_01")
    done = ml(*words)
    assert done.returncode == code, done.stderr
    assert f"error[{said}]" in done.stderr
    assert "Traceback" not in done.stderr
    assert (run.folder / "job.json").exists()


def test_show_tells_the_lineage(ml: Ml) -> None:
    """Data with its digest, code, run; the best trials first; a removed snapshot is said to be."""
    made_sweep("sweep_oak_01", *(number / 100 for number in range(30)))
    done = ml("show", "sweep_oak_01")
    assert done.returncode == 0, done.stderr
    text = done.stdout
    order = [text.index(word) for word in ("data faq", "→ code", "→ run")]
    assert order == sorted(order)
    assert "azureml:faq:1 (ddddddd" in text and "cccccccccccc" in text
    assert text.index("trial 29") < text.index("trial 28") < text.index("and 20 more")
    said = json.loads(ml("show", "sweep_oak_01_3", "--json").stdout)
    assert said["part_of"] == "sweep_oak_01"
    assert said["lineage"]["data"]["faq"]["digest"] == "d" * 64
    assert said["models"] == [] and said["bytes"] > 0


def test_show_says_where_the_code_is() -> None:
    """A removed copy is said to be; a pipeline has none of its own."""

    def code(name: str, **changes: Any) -> str:
        entry = BACKEND.runs.entry(made(name, **changes))
        return dict(runs_text.run_lines(BACKEND, entry, "", []))["→ code"]

    assert code("removed_oak_01", snapshot="e" * 64).endswith("(sha256:eeeeeeeeeeee), copy removed")
    assert code("pipeline_oak_01", status="Running", ended=None) == "c" * 12


def test_show_ends_where_the_model_serves() -> None:
    """Version, release and endpoint after the run; a stopped server is said to be."""
    run = made("one_oak_01")
    came = Descendant(
        "faq",
        "3",
        "sha256:" + "a" * 64,
        "made",
        ["local"],
        ["local"],
        [Served("faq", "http://127.0.0.1:1/score"), Served("old", None)],
    )
    lines = list(runs_text.run_lines(BACKEND, BACKEND.runs.entry(run), "", [came]))
    assert lines[-5:] == [
        ("→ run", "one_oak_01"),
        ("→ model", f"faq 3 (sha256:{'a' * 12})"),
        ("  release", "declared in local, champion in local"),
        ("→ serves", "faq at http://127.0.0.1:1/score"),
        ("→ serves", "old (stopped)"),
    ]


def test_what_a_job_logged_does_not_steer_a_terminal(ml: Ml) -> None:
    """Escape sequences in values are spelt out."""
    made("odd_oak_01", parameters={"word": "\x1b[2J\nboo"})
    assert "\x1b" not in ml("show", "odd_oak_01").stdout
    assert printable("a\x1b[0m\nb") == r"a\x1b[0m\nb"


def test_logs(ml: Ml) -> None:
    """One run's as it is; each trial's after its name; the last lines."""
    run = made("one_oak_01")
    made_sweep("sweep_oak_02", 0.5, 0.75)
    assert ml("logs", run.name).stdout == "one_oak_01 says hello\n"
    assert ml("logs", "sweep_oak_02_1").stdout == "trial sweep_oak_02_1\n"
    parts = ml("logs", "sweep_oak_02").stdout
    assert "==> sweep_oak_02_0 <==\ntrial sweep_oak_02_0\n\n==> sweep_oak_02_1 <==\n" in parts
    (run.folder / "logs" / "std_log.txt").write_text("1\n2\n3\n")
    assert ml("logs", run.name, "--tail", "2").stdout == "2\n3\n"
    (run.folder / "logs" / "std_log.txt").unlink()
    silent = ml("logs", run.name)
    assert (silent.returncode, silent.stdout) == (0, "") and "nothing" in silent.stderr


def test_logs_of_one_process(ml: Ml) -> None:
    """By its number or name; one that is not there is refused with those that are."""
    run = made("many_oak_01")
    (run.folder / "logs" / "rank_1.txt").write_text("I am the other\n")
    (run.folder / "logs" / "ps_0.txt").write_text("I serve\n")
    assert ml("logs", run.name, "--rank", "0").stdout == "many_oak_01 says hello\n"
    assert ml("logs", run.name, "--rank", "1").stdout == "I am the other\n"
    assert ml("logs", run.name, "--rank", "ps_0").stdout == "I serve\n"
    wrong = ml("logs", run.name, "--rank", "2")
    assert wrong.returncode == 2
    assert "no-such-rank" in wrong.stderr and "1, ps_0" in wrong.stderr


@pytest.mark.parametrize("text", ["", "a", "a\n", "a\nb", "a\nb\n", "\n\n\n", "x" * 9 + "\n" + "y"])
@pytest.mark.parametrize("lines", [0, 1, 2, 5])
@pytest.mark.parametrize("block", [1, 3, BLOCK_BYTES])
def test_where_the_last_lines_begin(
    monkeypatch: pytest.MonkeyPatch, text: str, lines: int, block: int
) -> None:
    """As cutting the whole text into lines tells, however the file is read."""
    monkeypatch.setattr("ml.cli.render.logs.BLOCK_BYTES", block)
    wanted = "".join(text.splitlines(keepends=True)[-lines:]) if lines else ""
    assert text[tail_offset(io.BytesIO(text.encode()), lines) :] == wanted


def test_a_log_is_followed_until_its_run_has_ended(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    """What is written meanwhile appears, and the command ends with the run."""
    with jobs.new() as folder:
        folder.rmdir()
        run = made(folder.name, status="Running", ended=None)
        lineage = records.lineage(run.folder)
        follower = threading.Thread(
            target=write, args=(BACKEND.runs, BACKEND.runs.find(run.name), 1, True)
        )
        follower.start()
        with (run.folder / "logs" / "std_log.txt").open("a") as log:
            log.write("and goodbye\n")
        records.write(replace(run, status="Completed", ended=time.time()), lineage)
        follower.join(timeout=30)
        assert not follower.is_alive()
    assert capfdbinary.readouterr().out.endswith(b"and goodbye\n")


def test_clean(ml: Ml) -> None:
    """A dry run touches nothing and says the same as the real one; what stays says why."""
    gone, kept = made("gone_oak_01", days_ago=9), made("kept_oak_02")
    made_snapshot("orphan")
    dry = ml("clean", "--older-than", "7d", "--dry-run", "--json")
    assert dry.returncode == 0, dry.stderr
    planned = json.loads(dry.stdout)
    assert [one["name"] for one in planned["removed"]] == ["gone_oak_01", "orphan"]
    assert gone.folder.exists()
    said = ml("clean", "--older-than", "7d", "--dry-run")
    assert "gone_oak_01" in said.stdout and "this frees" in said.stderr
    assert gone.folder.exists()
    real = ml("clean", "--older-than", "7d", "--yes")
    assert real.returncode == 0, real.stderr
    assert "freed" in real.stderr
    assert not gone.folder.exists() and kept.folder.exists()
    assert list(home.snapshots().iterdir()) == []
    assert "nothing to remove" in ml("clean").stderr


def test_models_without_a_registry_are_not_cleaned(ml: Ml) -> None:
    """The store may have been moved aside: nobody can tell what is registered in it."""
    made_model("precious")
    done = ml("clean", "--keep", "0", "--yes")
    assert done.returncode == 1
    assert "registry-missing" in done.stderr
    assert (home.home() / "models" / "precious").exists()


def test_a_store_without_tables_is_told(ml: Ml) -> None:
    """Nothing is known of the registry then: nothing is removed, and no traceback is shown."""
    made("one_oak_01")
    (home.home() / "mlflow.db").touch()
    done = ml("clean", "--keep", "0", "--yes")
    assert done.returncode == 1
    assert "database-corrupt" in done.stderr and "Traceback" not in done.stderr
    assert (home.jobs() / "one_oak_01").exists()


def test_a_thousand_runs_are_read_at_once(own_home: Path) -> None:
    """Each record is opened once, whatever is asked of the list."""
    for number in range(1000):
        made(f"oak_oak_{number:04}", days_ago=number, metrics={"score": number / 1000})
    opened: list[str] = []
    sys.addaudithook(
        lambda event, of: (
            opened.append(str(of[0])) if event == "open" and str(own_home) in str(of[0]) else None
        )
    )
    found = Filter(project="shop_search", statuses={"Completed"}).apply(BACKEND.runs.entries())
    assert len(found) == 1000
    assert len(opened) == 1000


def test_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A span before now, or a date; anything else is refused."""
    monkeypatch.setattr(time, "time", lambda: 1_000_000.0)
    assert moment("--since", "2h") == 1_000_000 - 7200
    assert moment("--since", "1.5d") == 1_000_000 - 129_600
    assert moment("--since", "2026-11-20T14:00+00:00") == 1795183200
    for wrong in ("", "7", "7 days", "-1d", "d"):
        with pytest.raises(UserError):
            moment("--since", wrong)


def test_the_command_is_known() -> None:
    """`ml --help` names it."""
    done = subprocess.run(
        [sys.executable, "-c", "from ml.cli.app import main; main()", "--help"],
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "120"},
        capture_output=True,
        text=True,
    )
    assert "Manage runs: list, show, logs" in done.stdout


@pytest.mark.attack("escape sequences in the log of a job")
def test_a_log_does_not_steer_a_terminal(ml: Ml) -> None:
    """They are shown, in the lines that the job printed."""
    run = made("loud_oak_01")
    log = run.folder / "logs" / "std_log.txt"
    log.write_bytes(b"one\x1b[2J\x1b]0;title\x07\ncaf\xc3\xa9 \xff\n")
    output = ml("logs", run.name).stdout
    assert output.splitlines() == ["one\\x1b[2J\\x1b]0;title\\x07", "caf\u00e9 \ufffd"]
