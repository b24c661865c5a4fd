"""Run Azurite, Azure's storage emulator, with HTTPS and tokens; `make` installs it."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from azure.core.credentials import AccessToken
from azure.storage.blob import BlobServiceClient

from tests.conftest import ROOT
from tests.stand_ins.certificate import certified

PROGRAM = ROOT / ".venv" / "azurite" / "node_modules" / ".bin" / "azurite-blob"
ACCOUNT = "devstoreaccount1"


class Person:
    """A fake credential with an unsigned token; Azurite checks only the claims."""

    def get_token(self, *scopes: str, **others: object) -> AccessToken:
        now = int(time.time())
        claims = {
            "aud": "https://storage.azure.com",
            "iss": "https://sts.windows.net/11111111-1111-1111-1111-111111111111/",
            "iat": now,
            "nbf": now,
            "exp": now + 3600,
            "oid": "22222222-2222-2222-2222-222222222222",
            "tid": "11111111-1111-1111-1111-111111111111",
        }
        parts = [{"alg": "none", "typ": "JWT"}, claims]
        encoded = [
            base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts
        ]
        return AccessToken(b".".join([*encoded, b"c2lnbmF0dXJl"]).decode(), now + 3600)


@dataclass(frozen=True)
class Azurite:
    """A running Azurite: its URL and its certificate."""

    url: str
    certificate: Path

    def service(self) -> BlobServiceClient:
        """Return a client that authenticates by token."""
        return BlobServiceClient(
            self.url, credential=Person(), connection_verify=str(self.certificate), retry_total=0
        )


def skip_without(program: Path) -> None:
    """Skip the test if Azurite is not installed, except under `make`, which installs it."""
    if not program.exists() and "MAKELEVEL" not in os.environ:
        pytest.skip("Azurite is not installed; `make quick` installs it and runs the quick tests")


@contextmanager
def running(folder: Path) -> Iterator[Azurite]:
    """Run Azurite on a free port within the block, with its data in `folder`.

    Skips the test if Azurite is not installed, except under `make`, which installs it.
    """
    skip_without(PROGRAM)
    certificate, key = certified(folder)
    command = [PROGRAM, "--location", folder / "data", "--blobHost", "127.0.0.1", "--blobPort", "0"]
    # No access log: nothing reads it, and Azurite does not end while the pipe is full.
    secure = ["--cert", certificate, "--key", key, "--oauth", "basic"]
    # Use the machine's Node.js, or else that of the virtual environment.
    path = f"{os.environ['PATH']}:{ROOT / '.venv' / 'bin'}"
    server = subprocess.Popen(
        [str(word) for word in (*command, *secure, "--disableTelemetry", "--silent")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PATH": path},
    )
    try:
        assert server.stdout is not None
        said = []
        for line in server.stdout:
            said.append(line)
            if found := re.search(r"listens on (https://[^\s]+)", line):
                yield Azurite(f"{found[1]}/{ACCOUNT}", certificate)
                break
        else:
            raise AssertionError(f"Azurite did not start: {''.join(said)}")
    finally:
        server.terminate()
        server.wait()
