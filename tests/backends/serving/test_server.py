"""ml.backends.local.serving.server and endpoint, with the real Azure ML inference server."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ml.backends.endpoints import Live, Server
from ml.backends.local.serving import endpoint, processes, server
from ml.backends.local.serving.router import process
from ml.core.errors import UserError
from tests.backends.serving.servers import CRASH, ECHO, HANG, deployment, process_of


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[Path]:
    """A slot whose server is gone when the test ends, however it ends."""
    folder = tmp_path / "slot"
    yield folder
    processes.stop(folder)


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[Live]:
    """The endpoint `echo` with a live server."""
    made = deployment(tmp_path)
    started = server.start(endpoint.folder("echo") / "blue", made)
    endpoint.switch("echo", Live(started, made))
    endpoint.start_router("echo")
    yield Live(started, made)
    endpoint.stop("echo")


def test_it_serves_the_deployed_model(echo: Live) -> None:
    """It answers with the digest of its model; invalid requests get 400, a failing script 500."""
    answer = server.score(echo.server.port, {"question": "how?"})
    expected = {"echo": "how?", "top": 3, "model_digest": echo.deployment.digest}
    assert (answer.status, answer.body) == (200, expected)
    assert server.score(echo.server.port, {"data": []}).status == 400
    assert server.score(echo.server.port, {"question": "break"}).status == 500


def test_it_listens_on_the_loopback_address(echo: Live) -> None:
    """Nobody else can reach it."""
    process = psutil.Process(echo.server.pid)
    listening = [one for one in process.net_connections("inet") if one.status == "LISTEN"]
    assert {one.laddr.ip for one in listening} == {"127.0.0.1"}


@pytest.mark.attack("A module of the work tree that no serving digest has is imported by a server")
@pytest.mark.parametrize("name", ["benchmarks", "ml.core", "ml.toolkit"])
def test_it_imports_nothing_of_the_work_tree(slot: Path, tmp_path: Path, name: str) -> None:
    """Its code's own `ml` it does."""
    with pytest.raises(UserError, match=f"No module named '{name}"):
        server.start(slot, deployment(tmp_path, f"{ECHO}\nimport {name}"))


@pytest.mark.attack("A server inherits the caller's secrets")
def test_its_environment_holds_no_secret_of_the_caller(
    slot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token in the caller's shell does not reach a server that outlives the shell."""
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "planted")
    started = server.start(slot, deployment(tmp_path))
    assert "planted" not in psutil.Process(started.pid).environ().values()
    assert "planted" not in processes.log(slot).read_text()


def test_latency_is_measured_after_a_warm_up(echo: Live) -> None:
    """As many times as requests, and an error raises instead of counting."""
    times = server.measure(echo.server.port, [{"question": "how?"}, {"question": "why?"}], 50)
    assert len(times) == 50 and min(times) > 0
    with pytest.raises(ValueError, match="400"):
        server.measure(echo.server.port, [{}], 50)


def test_latency_is_measured_again_while_others_work(
    echo: Live, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until they let it alone; the measurement that they disturbed least counts, and not the
    fastest.
    """
    monkeypatch.setattr(server, "PAUSE_S", 0.0)
    monkeypatch.setattr(server, "MEASUREMENTS", 6)
    monkeypatch.setattr(server, "measure", lambda *given: [next(latencies)])

    def measured(*seconds: float) -> list[float]:
        """With others at work for so many seconds before and during each measurement."""
        work = iter(seconds)
        monkeypatch.setattr(server, "_work_of_others", lambda pid: next(work))
        return server.measure_alone(echo.server.pid, echo.server.port, [{}], 1)

    latencies = iter([8.0, 3.0, 4.0])
    assert measured(0, 99, 100, 199, 200, 200) == [4.0] and next(latencies, None) is None
    assert capsys.readouterr().err == ""
    latencies = iter([8.0, 2.0, 9.0, 9.0, 9.0, 9.0])
    assert measured(*(0, 99, 100, 190), *(0, 10, 20, 90), *(0, 99, 0, 99)) == [9.0]
    assert "warning[busy-machine]: others used" in capsys.readouterr().err


def test_the_work_of_others_is_seen(echo: Live) -> None:
    """Another process that spins for a while; this one's own work is not counted."""
    began = server._work_of_others(echo.server.pid)
    spin = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-S", "-c", spin], check=True)
    assert server._work_of_others(echo.server.pid) - began > 0.3


def test_a_process_listens_while_its_very_socket_is_open() -> None:
    with processes.listen() as listener:
        port = listener.getsockname()[1]
        assert processes.listens(os.getpid(), port) and processes.listens(os.getpid(), port)
        assert not processes.listens(os.getppid(), port)
        descriptor = listener.fileno()
    with socket.create_server((processes.HOST, 0)) as other:  # takes the descriptor
        assert other.fileno() == descriptor and not processes.listens(os.getpid(), port)
    with processes.listen(port):
        assert processes.listens(os.getpid(), port)


def test_stopping_ends_every_process(slot: Path, tmp_path: Path) -> None:
    """Master and worker are gone, the port is free, and stopping again stops nothing."""
    started = server.start(slot, deployment(tmp_path))
    family = [psutil.Process(started.pid), *psutil.Process(started.pid).children(recursive=True)]
    assert len(family) >= 2 and server.is_up(started)
    assert processes.stop(slot) is True
    assert not any(one.is_running() for one in family)
    assert processes.port_is_free(started.port) and not server.is_up(started)
    assert processes.stop(slot) is False


def test_a_server_that_ignores_sigterm_is_killed(slot: Path, tmp_path: Path) -> None:
    """SIGSTOP holds its master."""
    started = server.start(slot, deployment(tmp_path))
    os.kill(started.pid, signal.SIGSTOP)
    assert processes.stop(slot, patience_s=1.0) is True
    assert process_of(slot) is None and processes.port_is_free(started.port)


def test_a_second_start_replaces_the_server_of_the_slot(slot: Path, tmp_path: Path) -> None:
    """There is never more than one server in a slot."""
    first = server.start(slot, deployment(tmp_path))
    second = server.start(slot, deployment(tmp_path))
    assert not psutil.pid_exists(first.pid) and server.is_up(second)


def test_two_servers_load_at_once(slot: Path, tmp_path: Path) -> None:
    """Both are started before either answers, on two ports; a server that is still starting is
    stopped by its slot."""
    other = slot.with_name("green")
    begun = [server.begin(one, deployment(tmp_path)) for one in (slot, other)]
    assert [one.process.poll() for one in begun] == [None, None]
    first, second = (server.wait_until_ready(one) for one in begun)
    assert first.port != second.port and server.is_up(first) and server.is_up(second)
    server.begin(other, deployment(tmp_path))
    assert processes.stop(other) and process_of(other) is None
    processes.stop(slot)


def test_the_error_of_a_crash_on_start_has_the_log(slot: Path, tmp_path: Path) -> None:
    """Its last lines, and no process is left running."""
    with pytest.raises(UserError) as raised:
        server.start(slot, deployment(tmp_path, CRASH))
    problem = raised.value.problems[0]
    assert problem.code == "server-crashed"
    assert "ready: RuntimeError: no weights, no answer;" in problem.actual
    assert "Worker failed to boot" in problem.actual and str(processes.log(slot)) in problem.hint
    assert process_of(slot) is None


def test_a_server_that_never_answers_is_stopped(slot: Path, tmp_path: Path) -> None:
    """After the deadline, with an error."""
    with pytest.raises(UserError) as raised:
        server.start(slot, deployment(tmp_path, HANG), deadline_s=2.0)
    assert raised.value.problems[0].code == "server-not-ready"
    assert process_of(slot) is None


def test_it_outlives_the_command_that_started_it(tmp_path: Path) -> None:
    """The server of a process that has ended answers, and another process finds and stops it."""
    slot = tmp_path / "slot"
    made = deployment(tmp_path)
    code = (
        "from pathlib import Path\n"
        "from ml.backends.local.serving import server\n"
        "from ml.backends.endpoints import ModelDeployment\n"
        f"made = ModelDeployment(Path({str(made.code)!r}), 'score.py', {{}}, endpoint='echo',\n"
        f"    model='e', version='1', digest={made.digest!r},\n"
        f"    model_folder=Path({str(made.model_folder)!r}))\n"
        f"started = server.start(Path({str(slot)!r}), made)\n"
        "print(started.pid, started.port)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pid, port = map(int, done.stdout.split())
    try:
        assert server.is_up(Server(slot, pid, port))
        assert server.score(port, {"question": "how?"}).status == 200
    finally:
        assert processes.stop(slot) is True


def test_ensure_starts_the_live_server_after_a_reboot(echo: Live) -> None:
    """A running server is left alone; a missing one is started."""
    assert endpoint.ensure("echo") == (echo, False)
    processes.stop(echo.server.slot)
    again, started = endpoint.ensure("echo")
    assert started and server.is_up(again.server) and endpoint.live("echo") == again


def test_a_port_in_use_leaves_the_served_model_as_it_was(echo: Live) -> None:
    """A router that should move to it keeps its own port and goes on; the error has the holder."""
    before = endpoint.router("echo")
    with socket.socket() as taken:
        taken.bind((processes.HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError) as raised:
            endpoint.ensure("echo", port)
    problem = raised.value.problems[0]
    assert problem.code == "port-in-use" and str(port) in problem.actual
    assert f"process {os.getpid()}" in problem.actual and "--port" in problem.hint
    assert endpoint.live("echo") == echo and server.is_up(echo.server)
    assert endpoint.router("echo") == before is not None


def test_a_router_moves_to_another_port(echo: Live) -> None:
    """The old router is stopped; the server goes on."""
    before = endpoint.router("echo")
    port = processes.free_port()
    moved, started = endpoint.ensure("echo", port)
    assert started and moved == echo
    assert server.score(port, {"question": "how?"}).deployment == "blue"
    assert before and not psutil.pid_exists(before.pid)


def test_a_killed_router_is_restarted_on_the_same_port(echo: Live) -> None:
    """By the next command that needs it."""
    before = endpoint.router("echo")
    assert before
    os.kill(before.pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(before.pid)], timeout=10)
    assert endpoint.router("echo") is None and endpoint.url("echo") is None
    assert endpoint.ensure("echo") == (echo, True)
    again = endpoint.router("echo")
    assert again and again.port == before.port
    assert server.score(again.port, {"question": "how?"}).status == 200


def test_stopping_an_endpoint_stops_its_router(echo: Live) -> None:
    """Starting the endpoint again starts both."""
    assert endpoint.stop("echo") is True
    assert endpoint.router("echo") is None and not server.is_up(echo.server)
    assert endpoint.stop("echo") is False
    again, started = endpoint.ensure("echo")
    assert started and endpoint.router("echo") and server.is_up(again.server)


def test_two_commands_start_one_server(echo: Live) -> None:
    """Both wait for the lock; the second finds the first one's server."""
    processes.stop(echo.server.slot)
    found: list[tuple[Live, bool]] = []
    threads = [
        threading.Thread(target=lambda: found.append(endpoint.ensure("echo"))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(started for _, started in found) == [False, True]
    assert found[0][0].server == found[1][0].server


@pytest.mark.attack("A bit of the served model is flipped before a restart")
def test_a_flipped_bit_is_refused_before_the_server_starts(echo: Live) -> None:
    """A model that was corrupted while nothing ran is not loaded."""
    processes.stop(echo.server.slot)
    path = echo.deployment.model_folder / "model.txt"
    content = bytearray(path.read_bytes())
    content[3] ^= 4
    path.write_bytes(bytes(content))
    with pytest.raises(UserError) as raised:
        endpoint.ensure("echo")
    assert raised.value.problems[0].code == "model-corrupt"
    assert "model.txt" in raised.value.problems[0].actual
    assert process_of(echo.server.slot) is None


def test_an_endpoint_without_a_promoted_model() -> None:
    """The error has the next command."""
    with pytest.raises(UserError) as raised:
        endpoint.ensure("faq-matching")
    problem = raised.value.problems[0]
    assert problem.code == "no-live-deployment" and "ml release propose" in problem.hint


def test_a_state_file_that_cannot_be_read() -> None:
    """The error names it."""
    folder = endpoint.folder("echo")
    folder.mkdir(parents=True)
    for text in (
        "{",
        "[" * 99999,
        "{}",
        '{"server": {"slot": "blue", "pid": 1, "port": 2}, "deployment": {}}',
        "[]",
    ):
        (folder / "live.json").write_text(text)
        with pytest.raises(UserError) as raised:
            endpoint.live("echo")
        assert raised.value.problems[0].code == "endpoint-state-unreadable"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("canary", "x"), ("canary", [1]), ("canary", {}), ("server.slot", 5)),
        *(("server.pid", "1"), ("server.pid", -1), ("server.pid", 1.5), ("server.port", None)),
        *(("server", []), ("deployment", []), ("deployment.digest", None), ("deployment.code", 5)),
        *(
            ("deployment.version", 1),
            ("deployment.environment_variables", "x"),
            ("deployment.more", 1),
        ),
    ],
)
def test_a_state_file_with_a_field_of_another_type(
    tmp_path: Path, field: str, value: object
) -> None:
    """It is refused where it is read."""
    path = endpoint.folder("echo") / "live.json"
    endpoint.switch("echo", Live(Server(path.parent / "blue", 1, 2), deployment(tmp_path)))
    document = json.loads(path.read_text())
    assert endpoint.live("echo")
    *outer, name = field.split(".")
    (document[outer[0]] if outer else document)[name] = value
    path.write_text(json.dumps(document))
    with pytest.raises(UserError) as raised:
        endpoint.live("echo")
    assert raised.value.problems[0].code == "endpoint-state-unreadable"


@pytest.mark.attack("Another process takes the port of a server that starts")
def test_nobody_else_can_take_the_port_of_a_server_that_starts(slot: Path, tmp_path: Path) -> None:
    """It listens from the moment that its number is known, and only on this machine."""
    starting = server.begin(slot, deployment(tmp_path))
    assert not processes.port_is_free(starting.port)
    started = server.wait_until_ready(starting)
    listeners = [
        each.laddr
        for each in psutil.Process(started.pid).net_connections()
        if each.status == psutil.CONN_LISTEN
    ]
    assert listeners == [(processes.HOST, started.port)]


@pytest.mark.parametrize(
    "text", ['{"port": 99999999}', '{"port": -4}', '{"port": 1e400}', "[" * 9999]
)
def test_a_router_file_without_a_valid_port(tmp_path: Path, text: str) -> None:
    """It is ignored."""
    (tmp_path / "router.json").write_text(text)
    assert process.last_port(tmp_path) is None and process.find(tmp_path) is None
