"""A sign-in that lasts as long as the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from infra.live import sign_in
from tests.conftest import ROOT

# Writes down the token, and waits until the file has another one.
COMMAND = """
import json, os, pathlib, stat, sys, time
file = pathlib.Path(os.environ["AZURE_FEDERATED_TOKEN_FILE"])
tokens = [file.read_text()]
while len(tokens) < 3:
    if file.read_text() != tokens[-1]:
        tokens.append(file.read_text())
    time.sleep(0.001)
kept = {name: text for name, text in os.environ.items() if name.startswith(("AZURE", "ARM"))}
mode = stat.S_IMODE(file.stat().st_mode)
print(json.dumps([tokens, mode, kept, str(file)]), file=open(sys.argv[1], "w"))
sys.exit(7)
"""


@pytest.fixture
def github() -> Iterator[tuple[dict[str, str], list[str]]]:
    """GitHub's tokens for a job, each other than the one before; with the requests for them."""
    asked: list[str] = []

    class Tokens(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.headers["Authorization"] == "Bearer of-the-job"
            asked.append(parse_qs(urlsplit(self.path).query)["audience"][0])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"value": f"token {len(asked)}"}).encode())

        def log_message(self, format: str, *args: Any) -> None:
            """A test prints nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Tokens) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        variables = {
            "PATH": "/usr/bin:/bin",
            "ARM_CLIENT_ID": "client",
            "ARM_TENANT_ID": "tenant",
            "AZURE_KEYVAULT_AUTH_VIA_CLI": "true",
            sign_in.URL: f"http://127.0.0.1:{server.server_port}/token?version=2",
            sign_in.TOKEN: "of-the-job",
        }
        yield variables, asked
        server.shutdown()


def test_a_long_command_reads_new_tokens(
    github: tuple[dict[str, str], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its exit code is the answer. Nothing of the job's token stays."""
    variables, asked = github
    monkeypatch.setattr(sign_in, "EVERY_S", 0.01)
    answer = tmp_path / "answer"
    command = [sys.executable, "-c", COMMAND, str(answer)]
    assert sign_in.main(command, variables) == 7
    tokens, mode, kept, file = json.loads(answer.read_text())
    assert len({*tokens}) == 3 and mode == 0o600
    assert {*asked} == {"api://AzureADTokenExchange"}
    assert (kept["AZURE_CLIENT_ID"], kept["AZURE_TENANT_ID"]) == ("client", "tenant")
    assert kept["ARM_OIDC_REQUEST_URL"] == variables[sign_in.URL]
    assert "AZURE_KEYVAULT_AUTH_VIA_CLI" not in kept, "`az` could not sign in again"
    assert not Path(file).exists()


def started(variables: dict[str, str], *command: str) -> subprocess.Popen[str]:
    start = [sys.executable, "-m", "infra.live.sign_in", *command]
    return subprocess.Popen(start, env=variables, cwd=ROOT, text=True, stdout=subprocess.PIPE)


def test_outside_a_workflow_a_command_runs_as_it_is() -> None:
    """As the user of `az login`."""
    here = {"PATH": "/usr/bin:/bin"}
    process = started(here, "sh", "-c", "echo $AZURE_FEDERATED_TOKEN_FILE.; exit 3")
    assert (process.communicate()[0], process.returncode) == (".\n", 3)


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_interrupted_ends_by_itself(
    github: tuple[dict[str, str], list[str]], told: signal.Signals
) -> None:
    """A cancelled deployment still writes its state."""
    cleanly = "trap 'echo state; exit 5' TERM INT; echo on; while :; do sleep 0.01; done"
    process = started(github[0], "sh", "-c", cleanly)
    assert process.stdout is not None and process.stdout.readline() == "on\n"
    process.send_signal(told)
    if told == signal.SIGINT:
        process.send_signal(signal.SIGTERM)  # alone it goes to the command from the terminal
    assert (process.communicate(timeout=30)[0], process.returncode) == ("state\n", 5)


def test_a_missing_program_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """In a workflow and outside of one."""
    for variables in ({}, {sign_in.URL: "http://127.0.0.1:9/?a=b", sign_in.TOKEN: "t"}):
        assert sign_in.main(["pulumi"], {"PATH": "/nowhere", **variables}) == 2
        error = capsys.readouterr().err
        assert "error[no-such-program]: `pulumi` is not installed" in error
        assert "pulumi.com/docs" in error


def test_a_job_without_the_permission_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, before Pulumi begins."""
    nowhere = {sign_in.URL: "http://127.0.0.1:9/?a=b", sign_in.TOKEN: "t"}
    assert sign_in.main(["true"], nowhere | {"PATH": os.environ["PATH"]}) == 1
    assert "id-token: write" in capsys.readouterr().err
