"""What a script sees when a forkserver has forked its process: the same as after a fresh start.

`DIFFERENCES` is the whole list of what may differ.
"""

# ruff: noqa: E501

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ml.backends.local.backend import LocalBackend
from ml.backends.local.pool.pool import FORKED, SWITCH
from ml.backends.local.processes.process import ALONE, cores
from ml.backends.local.runs import records
from ml.backends.runs import Run
from tests.backends.conftest import Sweeps

# fact → why it may differ. Everything else that PROBE looks at is compared.
DIFFERENCES = {
    "parent": "the parent is the forkserver, not the executor",
    "depth": "the forkserver's frames are below the script's",
    "modules": "sys.modules holds from the start what the script and its modules import",
    "hash": "hash('x'): trials of one sweep share a seed of str hashes (PYTHONHASHSEED sets it)",
    "frozen": "gc.get_freeze_count(): what was imported before is not collected again",
    "commandline": "/proc/PID/cmdline is the forkserver's",
    "orig_argv": "sys.orig_argv is the forkserver's; sys.argv is the trial's",
    "argv": "sys.argv[0] is the absolute path of the script, as `__file__` is",
    "proc_environ": "/proc/PID/environ is the forkserver's; os.environ and the environment of "
    "every program that the script starts are the trial's",
    "run_mark": "the same",
    "loader": "__loader__ of a script is None: runpy.run_path executes it",
    "package": "__package__ of a script is the empty string",
    "main": "__main__ of a script has no __annotations__ until it annotates a variable",
}
# Beyond these: what a package registers with atexit when it is imported is called even if a trial
# does not get as far as importing it; the traceback of an uncaught KeyboardInterrupt begins with the
# forkserver's frames; sys.modules["__main__"] is the forkserver's once the script
# has ended (for threads and atexit); a process that takes a session of its own without executing a
# program ends with the sweep, not with its trial.

PROBE = """
import argparse
import json, logging, os, random, re, sys
import numpy as np
import pandas as pd
import warnings
from pathlib import Path

import decimal

def opened():
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            pass
    return found

import gc, locale, resource, signal, threading, traceback, importlib.util
home = str(Path.cwd().parent)
facts = {
    "argv": sys.argv, "orig_argv": sys.orig_argv, "name": __name__, "file": __file__,
    "main": sorted(k for k in vars(vars(sys)['modules']["__main__"]) if k.startswith("__")),
    "spec": repr(__spec__), "loader": type(__loader__).__name__, "package": repr(__package__),
    "cached": repr(globals().get("__cached__")), "doc": __doc__,
    "executable": sys.executable, "prefix": sys.prefix, "flags": repr(sys.flags),
    "path": vars(sys)["path"], "cwd": os.getcwd(), "environ": sorted(os.environ.items()),
    "proc_environ": sorted(Path("/proc/self/environ").read_text().strip("\\0").split("\\0")),
    "getenv": sorted(__import__("subprocess").run(["env"], capture_output=True, text=True).stdout.split("\\n")),
    "modules": sorted(vars(sys)['modules']), "ours": [name for name in vars(sys)['modules'] if name.split(".")[0] == "ml"],
    "run_mark": "MLFLOW_RUN_ID=" + os.environ["MLFLOW_RUN_ID"] in Path("/proc/self/environ").read_text().split("\\0"),
    "late": importlib.util.find_spec("sqlite3").origin, "none": importlib.util.find_spec("no_such_module"),
    "spec_of": [repr(pd.__spec__), pd.__name__, pd.__file__, repr(np.random.__spec__)],
    "umask": os.umask(0o22), "fds": opened(), "nice": os.nice(0),
    "session": os.getsid(0) == os.getpid() == os.getpgrp(),
    "signals": {s.name: str(signal.getsignal(s)) for s in signal.Signals},
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "wakeup": signal.set_wakeup_fd(-1),
    "limits": [resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT")],
    "locale": [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(), sys.getfilesystemencoding()],
    "streams": [(s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty(),
                 os.fstat(s.fileno()).st_rdev) for s in (sys.stdin, sys.stdout, sys.stderr)],
    "stdin": sys.stdin.read(), "stdout_is_log": os.path.samefile("/proc/self/fd/1", "/proc/self/fd/2"),
    "threads": [t.name for t in threading.enumerate()], "main_thread": threading.main_thread() is threading.current_thread(),
    "hooks": [repr(sys.excepthook), repr(sys.displayhook), repr(threading.excepthook), repr(sys.unraisablehook)],
    "warnings": [repr(w) for w in warnings.filters], "warnoptions": sys.warnoptions,
    "loggers": sorted(logging.root.manager.loggerDict), "handlers": repr(logging.root.handlers), "level": logging.root.level,
    "recursion": sys.getrecursionlimit(), "switch": sys.getswitchinterval(), "trace": repr(sys.gettrace()),
    "gc": [gc.isenabled(), gc.get_threshold()], "dont_write": sys.dont_write_bytecode,
    "decimal": repr(decimal.getcontext()), "numpy": [np.__version__, repr(np.geterr())],
    "meta_path": [getattr(f, "__name__", type(f).__name__) for f in sys.meta_path],
    "path_hooks": len(sys.path_hooks), "caps": [type(vars(sys)['modules']["__main__"]).__name__],
    "affinity": sorted(os.sched_getaffinity(0)),
    "parent": os.getppid(), "depth": len(traceback.extract_stack()), "hash": hash("x"),
    "frozen": gc.get_freeze_count(),
    "commandline": Path("/proc/self/cmdline").read_text(),
}
text = json.dumps(facts, default=str).replace(home, "HOME").replace(os.environ["MLFLOW_RUN_ID"], "RUN")
text = re.sub(rf"(?<![0-9]){os.getpid()}(?![0-9])", "0", text)
Path("outputs/facts.json").write_text(re.sub(r"0x[0-9a-f]+", "0x", text))
"""


def both(plan: object, monkeypatch: pytest.MonkeyPatch) -> tuple[Run, Run]:
    """The sweep without the pool, and with it."""
    monkeypatch.setenv(SWITCH, "off")
    plain = LocalBackend().run(plan)  # type: ignore[arg-type]
    monkeypatch.delenv(SWITCH)
    return plain, LocalBackend().run(plan)  # type: ignore[arg-type]


def start_method(run: Run) -> str:
    """How the run's process was started."""
    return str(records.lineage(run.folder)["process"])


def log(run: Run) -> str:
    """What it printed, paths of its own apart."""
    return (
        (run.folder / "logs" / "std_log.txt")
        .read_text(errors="replace")
        .replace(str(run.folder), "HOME")
    )


def facts(run: Run) -> dict[str, object]:
    """What the probe saw."""
    from mlflow.tracking import MlflowClient

    from ml.core.home import tracking_uri

    place = Path(MlflowClient(tracking_uri()).get_run(run.id).info.artifact_uri)
    found: dict[str, object] = json.loads((place / "outputs" / "facts.json").read_text())
    return found


@pytest.mark.parametrize(
    "line", ["python script.py ${{search_space.x}} 'a b'", "python -u -m pack.script --y=1"]
)
def test_a_script_sees_the_same(
    home: Path, sweep: Sweeps, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """A file and a module of a package; argv to open files, but for the list above."""
    plan = sweep(PROBE, max_total_trials=1, max_concurrent_trials=1)
    assert plan.trial.code is not None
    (plan.trial.code / "pack").mkdir()
    (plan.trial.code / "pack" / "__init__.py").write_text("")
    (plan.trial.code / "pack" / "script.py").write_text(PROBE)
    variables = {"MINE": "ünï", "LC_ALL": "C.UTF-8"}
    trial = replace(plan.trial, command=line, environment_variables=variables)
    plain, warm = both(replace(plan, trial=trial), monkeypatch)
    assert [start_method(run.trials[0]) for run in (plain, warm)] == [
        f"{ALONE}{SWITCH} turns the pool off",
        FORKED,
    ]
    seen = [facts(run.trials[0]) for run in (plain, warm)]
    same = [{fact: f[fact] for fact in f if fact not in DIFFERENCES} for f in seen]
    assert same[0] == same[1]
    assert log(plain.trials[0]) == log(warm.trials[0])


ENDINGS = {
    "completes": "import numpy\nprint('done')",
    "exit code": "import sys, numpy; sys.exit(7)",
    "negative": "import sys, numpy; sys.exit(-1)",
    "message": "import sys, numpy; print('first'); sys.exit('a message')",
    "os._exit": "import os, numpy; os._exit(9)",
    "uncaught": "import numpy\ndef f():\n    raise ValueError('x')\ntry:\n    f()\n"
    "except ValueError as e:\n    raise KeyError('y') from e",
    "syntax": "import numpy\nprint('a'\nx = = 1",
    "interrupt": "import numpy\nraise KeyboardInterrupt",
    "killed": "import os, signal, numpy\nos.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "import os, signal, numpy\nos.kill(os.getpid(), signal.SIGTERM)",
    "segfault": "import ctypes, numpy\nctypes.string_at(0)",
    "no module": "import numpy\nimport no_such_module",
    "abort": "import os, numpy\nos.abort()",
    "atexit": "import atexit, numpy\natexit.register(print, 'one')\natexit.register(print, 'two')\n"
    "@atexit.register\ndef fails(): raise ValueError('late')\nprint('main')",
    "unflushed": "import numpy, sys\nf = open('outputs/f', 'w'); f.write('x' * 10)\n"
    "import atexit\natexit.register(lambda: print(open('outputs/f').read() == ''))\n"
    "class Last:\n    def __del__(self): print('gone', flush=True)\nlast = Last()\n"
    "loop = [Last()]; loop.append(loop)\ndel loop",
    "threads": "import threading, time, numpy\n"
    "def late():\n    time.sleep(0.2); print('late')\nthreading.Thread(target=late).start()\n"
    "print('main')",
    "daemon": "import threading, time, numpy\n"
    "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\nprint('main')",
    "hook": "import sys, numpy\nsys.excepthook = lambda *a: print('hook', a[0].__name__, a[1])\n"
    "raise RuntimeError('z')",
    "warnings": "import warnings, numpy\nwarnings.warn('careful')\nwarnings.warn('late',"
    " DeprecationWarning)\nnumpy.array([1.0]) / 0",
    "logging": "import logging, numpy\nlogging.basicConfig(level=logging.INFO)\n"
    "logging.info('seen')\nlogging.getLogger('a.b').warning('w')\nlogging.debug('not seen')",
    "multiprocessing": "import multiprocessing, os, numpy\n"
    "def work(x): return x * 2\n"
    "if __name__ == '__main__':\n"
    "    for how in ('fork', 'spawn'):\n"
    "        with multiprocessing.get_context(how).Pool(2) as pool:\n"
    "            print(how, pool.map(work, range(4)))",
    "futures": "from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor\nimport numpy\n"
    "def work(x): return x + 1\n"
    "if __name__ == '__main__':\n"
    "    print(list(ProcessPoolExecutor(2).map(work, range(3))))\n"
    "    print(list(ThreadPoolExecutor(2).map(work, range(3))))",
    "subprocess": "import subprocess, sys, numpy\n"
    "print(subprocess.run([sys.executable, '-c', 'import os; print(os.environ[\"MINE\"])'],"
    " capture_output=True, text=True))",
    "pickle": "import pickle, numpy\nclass A: pass\n"
    "print(type(pickle.loads(pickle.dumps(A()))) is A, pickle.dumps(A))",
    "own modules": "import numpy\nfrom own import part\nprint(part.VALUE, part.__file__[-11:])",
    "stack": "import inspect, numpy\ndef f(): return inspect.stack()[1].function\nprint(f())",
    "exec": "import os, sys, numpy\nos.execv(sys.executable, ['python', '-c', 'print(1)'])",
    "fork": "import os, numpy\npid = os.fork()\n"
    "print('child' if pid == 0 else os.waitpid(pid, 0)[1])",
    "binary": "import sys, numpy\nsys.stdout.buffer.write(b'\\xff\\n')\nprint('ü')",
    "mlflow": "import mlflow, os\nname = os.environ['MLFLOW_RUN_ID']\n"
    "with mlflow.start_run() as run:\n"
    "    mlflow.log_params({'a': 1}); mlflow.log_metrics({'m': 2.5}, step=3)\n"
    "    print(run.info.status, mlflow.active_run().info.run_id == name)\n"
    "mlflow.set_experiment('of-' + name)\n"
    "found = mlflow.get_experiment_by_name('of-' + name)\n"
    "print(found.artifact_location.rpartition('/')[0], mlflow.get_tracking_uri())\n"
    "print(mlflow.get_run(name).data.to_dictionary()['metrics'], sorted(os.listdir()))",
    "closed": "import sys, numpy\nsys.stdout.close()",
}


@pytest.mark.slow
def test_a_script_ends_the_same(home: Path, sweep: Sweeps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit codes, tracebacks, atexit, threads, multiprocessing: one trial for each of ENDINGS."""
    from ml.specs.plan.plans import Dimension

    plan = sweep("", max_concurrent_trials=2)
    assert plan.trial.code is not None
    (plan.trial.code / "own").mkdir()
    (plan.trial.code / "own" / "part.py").write_text("import numpy\nVALUE = 3\n")
    for number, script in enumerate(ENDINGS.values()):
        (plan.trial.code / f"s{number}.py").write_text(script)
    different = {}
    for number, name in enumerate(ENDINGS):
        trial = replace(
            plan.trial,
            command=f"python s{number}.py",
            environment_variables={"MINE": "1", "PYTHONHASHSEED": "0"},
        )
        space = {"x": Dimension("x", "choice", (1,), plan.place)}
        one = replace(plan, trial=trial, search_space=space, max_total_trials=1)
        runs = [run.trials[0] for run in both(one, monkeypatch)]
        assert start_method(runs[1]) == FORKED, (name, start_method(runs[1]))
        ends = [(run.status, *_plain(run)) for run in runs]
        if name == "interrupt":  # the traceback begins with the frames of the forkserver
            ends = [(status, log[-40:], error[:35]) for status, log, error in ends]
        if ends[0] != ends[1]:
            different[name] = ends
    assert different == {}


def _plain(run: Run) -> tuple[str, str]:
    """The log and the error, without addresses and the names of the two runs."""
    found = log(run), run.error.actual if run.error else ""
    names = re.compile(
        rf"0x[0-9a-f]+|[0-9a-f]{{32}}|\d\d:\d\d:\d\d|{run.name}|{run.name.rpartition('_')[0]}|\b\d{{3,7}}\b"
    )
    return names.sub("…", found[0]), names.sub("…", found[1].replace(str(run.folder), "HOME"))


@pytest.mark.parametrize("first", ["", "print(end='')\n"], ids=["at once", "later"])
def test_random_numbers_are_each_trials_own(home: Path, sweep: Sweeps, first: str) -> None:
    """What is drawn without a seed differs from trial to trial, as after a fresh start."""
    script = (
        f"{first}import random, uuid, numpy, secrets, tempfile\n"
        "print(random.random()); print(numpy.random.rand())\n"
        "print(numpy.random.default_rng().random()); print(uuid.uuid4()); print(secrets.token_hex())"
    )
    run = LocalBackend().run(sweep(script, max_total_trials=4))
    assert [start_method(trial) for trial in run.trials] == [FORKED] * 4
    drawn = [log(trial).split() for trial in run.trials]
    assert all(len(set(column)) == 4 for column in zip(*drawn, strict=True))


def test_trials_do_not_see_each_other(home: Path, sweep: Sweeps) -> None:
    """Not a module, not a variable, not a file of its own code that an earlier trial changed."""
    script = (
        "import os, sys, numpy\nfrom pathlib import Path\nimport own\n"
        "print(os.environ.get('LEFT'), own.LIST, hasattr(numpy, 'left'), Path('own.py').read_text())\n"
        "own.LIST.append(1); numpy.left = 1\n"
        "Path('own.py').write_text('changed')\n"
    )
    plan = sweep(script, max_total_trials=3, max_concurrent_trials=1)
    assert plan.trial.code is not None
    (plan.trial.code / "own.py").write_text("LIST = []")
    run = LocalBackend().run(plan)
    assert [start_method(trial) for trial in run.trials] == [FORKED] * 3
    assert {log(trial) for trial in run.trials} == {"None [] False LIST = []\n"}


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 2])
def test_threads_have_the_same_budget(home: Path, sweep: Sweeps, at_once: int) -> None:
    """OpenMP and OpenBLAS take a trial's share of the cores, and wait without spinning."""
    script = (
        "import os, numpy, lightgbm\nfrom threadpoolctl import threadpool_info\n"
        "print({i['num_threads'] for i in threadpool_info()}, os.environ['OMP_WAIT_POLICY'])\n"
        "a = numpy.random.rand(400, 400); assert numpy.isfinite(a @ a).all()\n"
        "lightgbm.train({'verbose': -1}, lightgbm.Dataset(numpy.random.rand(99, 3),"
        " numpy.random.rand(99)), 3)\n"
    )
    run = LocalBackend().run(sweep(script, max_total_trials=2, max_concurrent_trials=at_once))
    assert [start_method(trial) for trial in run.trials] == [FORKED] * 2
    share = max(1, cores() // min(at_once, cores()))
    assert {log(trial) for trial in run.trials} == {f"{{{share}}} PASSIVE\n"}
