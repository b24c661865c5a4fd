"""A process that kills itself at a step of its work, as a machine that goes away would."""

from __future__ import annotations

import os
import subprocess
import sys

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


def killed_at(step: str, call: int, imports: str, work: str) -> None:
    """Work in a process of its own that ends by SIGKILL at a call of a step.

    `step` is `holder.name`, where `imports` bring the holder; the process dies right after that
    call (1 is the first) returned, or before it where it is negative or nought. Asserts that it
    got so far.
    """
    count, after = max(1, abs(call)), call > 0
    code = _CODE.format(step=step, count=count, after=after, imports=imports, work=work)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, env=os.environ)
    assert ended.returncode == -9, ended.stderr.decode()
