"""What machines that release to the same workspace share: the audit log, and leases."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from azure.core.exceptions import ServiceResponseError
from azure.core.pipeline.transport import RequestsTransport

from ml.backends.azure import blobs, endpoints, workspace
from ml.backends.azure.backend import AzureBackend
from ml.core.errors import UserError
from ml.release import audit
from tests.backends.conftest import azure
from tests.release.killing import killed
from tests.stand_ins.azure.running import StandIn, provision

__all__ = ["azure"]


@pytest.mark.slow
def test_a_workspace_without_the_container_of_releases(
    azure: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was made before it: the command that makes it, and no log in another place."""
    azure.enter(monkeypatch)
    monkeypatch.setattr(workspace, "RELEASES", "no-such-container")
    with pytest.raises(UserError, match="no-container") as refused:
        audit.append(AzureBackend().audit_log, "drill", {"by": "0"})
    assert refused.value.exit_code == 2 and "make deploy ENV=ENV" in str(refused.value)


@pytest.mark.slow
def test_a_line_whose_answer_was_lost_is_written_once(
    azure: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is repeated and refused, since its own line is at the end; one of another
    machine in between comes first, and the chain holds.
    """
    azure.enter(monkeypatch)
    # A machine that went away had made the blob.
    AzureBackend().workspace.release_blob("audit.jsonl").create_append_blob()
    log, sent, lost = AzureBackend().audit_log, RequestsTransport.send, []
    assert audit.verify(log) == ()

    def send(self: RequestsTransport, request: Any, **options: Any) -> Any:
        answer = sent(self, request, **options)
        if "comp=appendblock" in request.url and len(lost) < 2:
            lost.append(request)
            raise ServiceResponseError("the connection was lost")
        return answer

    audit.append(log, "drill", {"by": "0"})
    monkeypatch.setattr(RequestsTransport, "send", send)
    for number in (1, 2):
        audit.append(log, "drill", {"by": str(number)})
    monkeypatch.setattr(RequestsTransport, "send", sent)
    assert len(lost) == 2
    assert [line["by"] for line in audit.verify(log)] == ["0", "1", "2"]

    read, lines = log.read, iter("ab")

    def slow_read() -> bytes | None:
        content = read()
        if next(lines, ""):  # the other machine is faster, twice
            audit.append(AzureBackend().audit_log, "drill", {"by": "another"})
        return content

    monkeypatch.setattr(log, "read", slow_read)
    audit.append(log, "drill", {"by": "3"})
    assert [line["event"] for line in audit.verify(AzureBackend().audit_log)] == ["drill"] * 6


@pytest.mark.slow
def test_one_machine_at_a_time_releases_to_an_endpoint(
    azure: StandIn, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second says who does and until when, and waits: for its end, or for that of its lease,
    where it was killed. One that lost its lease changes nothing any more.
    """
    monkeypatch.setattr(blobs, "LEASE_S", 15)  # the shortest that there is
    azure.enter(monkeypatch)
    monkeypatch.setattr(endpoints, "stack_of", lambda endpoint: "dev")
    for name in ("words", "gone", "others"):
        provision(AzureBackend().workspace.client, name)
    killed(
        "import os, signal\nfrom ml.backends.azure import blobs, endpoints\n"
        "from ml.backends.azure.backend import AzureBackend\nblobs.LEASE_S = 15\n"
        "endpoints.stack_of = lambda endpoint: 'dev'\n"
        "with AzureBackend().endpoints.reserve('gone', print):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    monkeypatch.setenv("GITHUB_RUN_ID", "7")
    monkeypatch.setenv("GITHUB_REPOSITORY", "team/models")
    first, second = AzureBackend().endpoints, AzureBackend().endpoints
    steps: dict[str, list[str]] = {"words": [], "gone": []}

    def release(name: str) -> None:
        with second.reserve(name, steps[name].append):
            steps[name].append("second")

    with first.reserve("words", print), first.reserve("others", print):
        threads = [threading.Thread(target=release, args=(name,)) for name in steps]
        for thread in threads:
            thread.start()
        time.sleep(blobs.LEASE_S + 2)
        assert len(steps["words"]) == 1 and len(steps["gone"]) == 2
        steps["words"].append("first")
        first.switch("words", None)
        first._leases["words"]._until = 0.0
        for change in (lambda: first.switch("words", None), lambda: first.stop_idle("words")):
            with pytest.raises(UserError, match="release-interrupted"):
                change()
        first.switch("others", None)
    for thread in threads:
        thread.join()
    waits, *ends = steps["words"]
    assert ends == ["first", "second"]
    holder = "https://github.com/team/models/actions/runs/7 releases to words, until "
    assert waits.startswith(holder)
    assert " releases to gone, until " in steps["gone"][0] and "github" not in steps["gone"][0]
