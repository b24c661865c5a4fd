"""A process that kills itself at a step of its work, as a machine that goes away would."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ml.backends.local.serving import server
from policies.promotion import policy as organisation_policy
from tests import forks

_CODE = """
import os, signal
{imports}
_done, _calls = {step}, []
def _killed(*given, **named):
    _calls.append(1)
    if len(_calls) < {count}:
        return _done(*given, **named)
    if {after}:
        _done(*given, **named)
    os.kill(os.getpid(), signal.SIGKILL)
{step} = _killed
{work}
"""
# Its children start with what takes seconds to import.
forks.preload(
    *("mlflow.tracking", "ml.release.promotion.propose", "ml.release.rollout.apply"),
    *("ml.release.rollout.rollback", "scipy.stats"),
)


def killed_at(step: str, call: int, imports: str, work: str) -> None:
    """Work in a process of its own that ends by SIGKILL at a call of a step.

    `step` is `holder.name`, where `imports` bring the holder; the process dies right after that
    call (1 is the first) returned, or before it where it is negative or nought. Asserts that it
    got so far.
    """
    count, after = max(1, abs(call)), call > 0
    killed(_CODE.format(step=step, count=count, after=after, imports=imports, work=work))


def killed(code: str) -> None:
    """Run code in a process of its own, in this folder and environment; asserts that SIGKILL ends
    it.
    """
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        process = forks.start(
            _run, code, Path.cwd(), {**os.environ}, log, organisation_policy.CANARY, server.begin
        )
        process.join()
        assert process.exitcode == -9, log.read_text() if log.exists() else process.exitcode


def _run(
    code: str,
    folder: Path,
    environment: dict[str, str],
    log: Path,
    policy: Path,
    begin: Callable[..., Any],
) -> None:
    organisation_policy.CANARY, server.begin = policy, begin
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    try:
        exec(code, {"__name__": "killed"})
    except BaseException:
        log.write_text(traceback.format_exc())
        raise
