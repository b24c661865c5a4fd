"""Runs a command of a workflow that may outlive the workflow's sign-in to Azure.

In a workflow the tokens of `az login` expire within an hour and cannot be refreshed
(Azure/login#180, #372; Azure/azure-cli#28708). Pulumi could then not write its state to Azure
Storage (pulumi/pulumi#19452). The command therefore signs in with the job's OIDC token from a file
(AZURE_FEDERATED_TOKEN_FILE). This module renews the file, since a token is valid for minutes.
Outside a workflow the command runs unchanged, as the user of `az login`.
"""

from __future__ import annotations

import json
import os
import shutil
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

from infra.live.steps import INSTALL
from ml.core.azure import AUDIENCE
from ml.core.errors import Exit, Problem

# docs.github.com/actions/reference/security/oidc, "Methods for requesting the OIDC token".
URL, TOKEN = "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"
# Seconds between renewals; GitHub's tokens are valid for 5 min (hashicorp/packer-plugin-azure#331).
EVERY_S = 120.0


def main(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run the command and return its exit code; 1 if GitHub gives the job no token, 2 if the
    program is not installed.

    Outside a workflow it does not return: the command replaces this process (exec).
    """
    name = command[0]
    if shutil.which(name, path=variables.get("PATH")) is None:
        message, expected = f"`{name}` is not installed", "a program on the PATH"
        problem = Problem("no-such-program", message, expected, INSTALL.get(name, ""))
        print(problem, file=sys.stderr)
        return Exit.WRONG_CALL
    if not variables.get(URL):
        os.execvpe(name, [*command], variables)
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

    SIGINT is left to the command, since Pulumi writes its state before it exits.
    """
    ended = Event()
    # A terminal sends SIGINT to both processes. SIGTERM reaches only this one, so it is forwarded.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    signal.signal(signal.SIGTERM, lambda number, frame: ended.set())
    process = subprocess.Popen(command, env=variables)
    signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
    if ended.is_set():  # SIGTERM arrived during Popen
        process.terminate()
    return process.wait()


def _environment(file: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the command's environment variables, with those for signing in to Azure.

    Pulumi reads its state and key with azidentity's WorkloadIdentityCredential (AZURE_…). The
    provider azure-native requests tokens from GitHub itself (ARM_…).
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
    # The main thread, which waits for the command, handles the signals.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    while not ended.wait(EVERY_S):
        try:
            _renew(file, variables)
        except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
            print(f"GitHub returned no new token: {error}", file=sys.stderr)


def _renew(file: Path, variables: Mapping[str, str]) -> None:
    """Request a token from GitHub; write it to the file atomically, readable by this user only."""
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
