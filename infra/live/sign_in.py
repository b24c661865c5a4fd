"""Runs a command of a workflow that may take longer than the workflow's sign-in.

Within an hour the tokens of `az login` end, and it cannot get new ones (Azure/login#180, #372;
Azure/azure-cli#28708): Pulumi would then lose what it did, since it writes its state to Azure
storage (pulumi/pulumi#19452). Clients of Azure that are told a file with the job's own token read
it again whenever they need one, and GitHub gives a job new ones for as long as it runs; each counts
for minutes. Outside a workflow the command runs as it is, as `az login`'s user.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from threading import Event, Thread
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from ml.core.azure import AUDIENCE
from ml.core.errors import Exit, Problem

# docs.github.com/actions/reference/security/oidc, "Methods for requesting the OIDC token".
URL, TOKEN = "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"
# A token of GitHub's counts for five minutes (hashicorp/packer-plugin-azure#331).
EVERY_S = 120.0


def main(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Return the exit code of the command; 1 if GitHub gives the job no token.

    Outside a workflow it does not return: the command takes the place of this process.
    """
    if not variables.get(URL):
        os.execvpe(command[0], [*command], variables)
    with tempfile.TemporaryDirectory() as folder:
        file, ended = Path(folder) / "token", Event()
        try:
            _renew(file, variables)
        except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
            expected = "the job's permission `id-token: write`"
            problem = Problem("not-signed-in", f"no token from GitHub: {error}", expected)
            print(problem, file=sys.stderr)
            return Exit.RUN_FAILED
        renewing = Thread(target=_keep, args=(file, variables, ended), daemon=True)
        renewing.start()
        try:
            return _run(command, _environment(file, variables))
        finally:
            ended.set()
            renewing.join()


def _run(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run the command and return its exit code.

    An interrupt is left to the command: Pulumi writes its state first.
    """
    ended = Event()
    # A terminal interrupts both; who ends this process alone means the command.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    signal.signal(signal.SIGTERM, lambda number, frame: ended.set())
    process = subprocess.Popen(command, env=variables)
    signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
    if ended.is_set():  # while it started
        process.terminate()
    return process.wait()


def _environment(file: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for azidentity's WorkloadIdentityCredential and for azure-native.

    The first signs in to the state and its key; azure-native requests tokens from GitHub itself.
    """
    return {
        **{name: text for name, text in variables.items() if name != "AZURE_KEYVAULT_AUTH_VIA_CLI"},
        "AZURE_FEDERATED_TOKEN_FILE": str(file),
        "AZURE_CLIENT_ID": variables["ARM_CLIENT_ID"],
        "AZURE_TENANT_ID": variables["ARM_TENANT_ID"],
        "ARM_OIDC_REQUEST_URL": variables[URL],
        "ARM_OIDC_REQUEST_TOKEN": variables[TOKEN],
    }


def _keep(file: Path, variables: Mapping[str, str], ended: Event) -> None:
    """Renew the token every `EVERY_S` seconds until `ended`; retry a failure the next time."""
    # Signals are for the thread that waits for the command.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    while not ended.wait(EVERY_S):
        try:
            _renew(file, variables)
        except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
            print(f"no new token of GitHub's: {error}", file=sys.stderr)


def _renew(file: Path, variables: Mapping[str, str]) -> None:
    """Write a new token to the file: atomically, and readable by this user only."""
    request = Request(f"{variables[URL]}&{urlencode({'audience': AUDIENCE})}")
    request.add_header("Authorization", f"Bearer {variables[TOKEN]}")
    with urlopen(request, timeout=30) as response:
        token = str(json.load(response)["value"])
    new = file.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_text(token)
    new.replace(file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
