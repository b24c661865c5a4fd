"""Running `az` and `gh`: JSON out, what is not there told from what went wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

from ml.core.errors import Exit, Problem, Refused

# How both programs say that a thing is not there; everything else is a failure.
ABSENT = ("NotFound", "could not be found", "was not found", "does not exist", "HTTP 404")
# And what sounds like it: there is nothing to be made in what is not seen at all.
UNSEEN = "SubscriptionNotFound"
INSTALL = {
    "az": "https://learn.microsoft.com/cli/azure/install-azure-cli",
    "gh": "https://cli.github.com",
}


def run(words: tuple[str, ...], asking: bool) -> Any:
    """The JSON that a command printed; None, when `asking`, for what is not there.

    Raises Refused when the program is missing or the command failed.
    """
    program = shutil.which(words[0])
    if program is None:
        raise Refused(
            Problem(
                "no-such-program",
                f"`{words[0]}` is not on this machine",
                "the Azure CLI and GitHub's",
                INSTALL.get(words[0], ""),
            )
        )
    more = ("--output", "json", "--only-show-errors") if words[0] == "az" else ()
    done = subprocess.run(
        [program, *words[1:], *more], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode == 0:
        try:
            return json.loads(done.stdout) if done.stdout.strip() else {"done": True}
        except ValueError:
            return {"done": True}
    if asking and UNSEEN not in done.stderr and any(sign in done.stderr for sign in ABSENT):
        return None
    last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no reason")
    raise Refused(
        Problem(
            "command-failed",
            f"{' '.join(words[:4])} … ended with {done.returncode}: {last.strip()[:300]}",
            "exit 0",
            "run it by hand, then this command again: it goes on where it stopped",
        ),
        exit_code=Exit.RUN_FAILED,
    )
