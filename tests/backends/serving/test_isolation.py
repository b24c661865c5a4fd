"""ml.backends.local.serving.isolation: what a scoring script cannot reach, in both servers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace

import psutil
import pytest

from ml.backends.local.serving import processes, server
from ml.backends.local.serving.isolation import LANDLOCK, NAMESPACES, SECCOMP, USER, available
from tests.backends.serving.servers import deployment
from tests.shared import ROOT, bring

SECRET = "planted-secret"
# What a scoring script tries, and what denies it, each of these alone. A value that is true is a
# success; `w` is the folder that the test planted everything in.
FILES, SOCKETS = {NAMESPACES, LANDLOCK}, {SECCOMP}
ATTEMPTS: Mapping[str, tuple[str, set[str]]] = {
    "read a file of the home": ("open(w + '/home/.aws/credentials').read()", FILES),
    "list the home": ("os.listdir(w + '/home')", FILES),
    "read the caller's variables": (
        f"[p for p in os.listdir('/proc') if p.isdigit() and '{SECRET}' in environ(p)]",
        FILES,
    ),
    "read the memory of another process": ("open(f'/proc/{pid}/mem', 'rb')", FILES),
    "read the repository": (f"open('{ROOT}/pyproject.toml').read()", FILES),
    "read the log": ("open(w + '/slot/server.log').read()", FILES),
    "write beside the code": ("open(w + '/code1/x', 'w')", FILES),
    "write into the model": ("open(model + '/x', 'w')", FILES),
    "write into the packages": ("open(os.path.dirname(json.__file__) + '/x', 'w')", FILES),
    "write into the temporary folder": ("open('/tmp/x', 'w')", FILES),
    "change the mode of the code": ("os.chmod(w + '/code1/score.py', 0o666) or 1", {SECCOMP}),
    "change the time of the code": ("os.utime(w + '/code1/score.py', (1, 1)) or 1", {SECCOMP}),
    "connect to a port": ("socket.create_connection(('127.0.0.1', port), 2)", SOCKETS),
    "connect to the metadata service": (
        "socket.create_connection(('169.254.169.254', 80), 2)",
        SOCKETS,
    ),
    "send a datagram": (
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 53))",
        SOCKETS,
    ),
    "connect to a socket file": (
        "socket.socket(socket.AF_UNIX).connect(w + '/agent.sock') or 1",
        SOCKETS,
    ),
    "connect to an abstract socket": (
        "socket.socket(socket.AF_UNIX).connect(chr(0) + w[-90:]) or 1",
        SOCKETS,
    ),
    "send through a socket pair": (
        "socket.socketpair(type=socket.SOCK_DGRAM)[0].sendto(b'x', w + '/log.sock')",
        SOCKETS,
    ),
    "connect the inherited socket": ("inherited()", SOCKETS),
    "listen on another port": ("socket.create_server(('127.0.0.1', 0))", SOCKETS),
    "signal another process": ("os.kill(pid, 0) or 1", {NAMESPACES}),
    "trace another process": ("ctypes.CDLL(None).ptrace(16, pid, 0, 0) == 0", {SECCOMP}),
    "be root": ("0 in os.getresuid()", {USER}),
    "become root": ("os.setuid(0) or 1", {USER, NAMESPACES}),
    "have its caller's uid": (f"os.getuid() == {os.getuid()}", {USER, NAMESPACES}),
    "make a namespace": ("ctypes.CDLL(None).unshare(0x10000000) == 0", {SECCOMP}),
    "clone into a user namespace": ("child(clone, 0x10000011, *bytes(4))", {SECCOMP}),
    "clone3 into a user namespace": (
        "child(435, struct.pack('QQQQQQQQ', 0x10000000, 0, 0, 0, 17, 0, 0, 0), 64)",
        {SECCOMP},
    ),
    "have another error of clone3 than ENOSYS": (
        "child(435, bytes(64), 0) or ctypes.get_errno() != errno.ENOSYS",
        {SECCOMP},
    ),
    "add a key": ("libc.syscall(add_key, b'user', b'planted', b'x', 1, -2) > 0", {SECCOMP}),
    "allocate nearly all memory": (
        f"len(bytearray({psutil.virtual_memory().total * 9 // 10}))",
        {NAMESPACES, LANDLOCK, SECCOMP},
    ),
}

SCRIPT = """
import ctypes, errno, json, os, platform, socket, stat, struct, sys

libc = ctypes.CDLL(None, use_errno=True)
clone, add_key = (56, 248) if platform.machine() == "x86_64" else (220, 217)
w, port, pid = {w!r}, {port}, {pid}
model = os.path.join(os.environ["AZUREML_MODEL_DIR"], "model")


def environ(pid):
    try:
        return open(f"/proc/{{pid}}/environ").read()
    except OSError:
        return ""


def inherited():
    for number in range(3, 64):
        if os.path.exists(f"/proc/self/fd/{{number}}") and stat.S_ISSOCK(os.fstat(number).st_mode):
            found = socket.socket(fileno=os.dup(number))
            if found.family == socket.AF_INET:
                ctypes.CDLL(None).connect(number, bytes(16), 16)
                found.connect(("127.0.0.1", port))
                return 1
    raise OSError("no socket is inherited")


def child(*call):
    pid = libc.syscall(*call)
    if pid == 0:
        os._exit(0)
    return pid > 0


def attempt(code):
    try:
        result = eval(code)
    except Exception:
        return ""
    return repr(result) if result else ""


def all_attempts():
    return {{name: attempt(code) for name, code in {attempts!r}.items()}}


def leave_a_process():
    # With a session and a parent of its own, where that is allowed. The pipe ends once it runs.
    started, running = os.pipe()
    if os.fork() == 0:
        try:
            os.setsid()
        except OSError:
            pass
        if os.fork() == 0:
            os.execv(sys.executable, ["python", "-S", "-c", "import time; time.sleep(600)", w])
        os._exit(0)
    os.close(running)
    os.read(started, 1)


def init():
    global first
    first = all_attempts()
    leave_a_process()


def run(body):
    return {{"init": first, "run": all_attempts(), "variables": dict(os.environ)}}
"""


@pytest.fixture(scope="module", params=["", "ml.serving.fast"], ids=["azmlinfsrv", "fast"])
def answer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Mapping[str, str]]]:
    """What the attempts got in init() and in run(), and the variables of the server."""
    folder = tmp_path_factory.mktemp("isolated")
    credentials = folder / "home" / ".aws" / "credentials"
    credentials.parent.mkdir(parents=True)
    credentials.write_text(SECRET)
    sleep = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    addresses = [f"{folder}/agent.sock", f"\0{str(folder)[-90:]}", f"{folder}/log.sock"]
    kinds = [socket.SOCK_STREAM, socket.SOCK_STREAM, socket.SOCK_DGRAM]
    variables = {**os.environ, "HOME": f"{folder}/home", "AZURE_CLIENT_SECRET": SECRET}
    other = subprocess.Popen(sleep, env=variables)
    servers = [socket.create_server((processes.HOST, 0))]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        for kind, address in zip(kinds, addresses, strict=True):
            if sys.platform == "linux" or address[0] != "\0":
                servers.append(socket.socket(socket.AF_UNIX, kind))
                servers[-1].bind(address)
                if kind == socket.SOCK_STREAM:
                    servers[-1].listen()
        port = servers[0].getsockname()[1]
        attempts = {name: code for name, (code, _) in ATTEMPTS.items()}
        script = SCRIPT.format(w=str(folder), port=port, pid=other.pid, attempts=attempts)
        made = deployment(folder, script)
        if request.param:
            bring(made.code, "ml/serving")
            made = replace(made, server=request.param)
        slot = folder / "slot"
        try:
            started = server.start(slot, made)
            answered: dict[str, Mapping[str, str]] = server.score(started.port, {}).body  # type: ignore
            left = [each for each in psutil.process_iter() if _command(each)[-1:] == [str(folder)]]
            processes.stop(slot)
            alive = [each.pid for each in left if _command(each)]
            yield {**answered, "left": {"all": str(len(left)), "alive": str(alive)}}
        finally:
            processes.stop(slot)
            other.kill()
            other.wait()
            for each in servers:
                each.close()


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> frozenset[str]:
    """What this machine isolates a server with."""
    return available([], tmp_path_factory.mktemp("scratch"))


@pytest.mark.attack("a scoring script reaches its caller's files, network or processes")
@pytest.mark.parametrize("name", ATTEMPTS)
def test_a_scoring_script_cannot(
    answer: Mapping[str, Mapping[str, str]], name: str, parts: frozenset[str]
) -> None:
    """Neither in init() nor in run(), wherever one of the parts that deny it is there."""
    if not parts & ATTEMPTS[name][1]:
        pytest.skip(f"this machine has {', '.join(sorted(parts)) or 'no isolation'}")
    assert (answer["init"][name], answer["run"][name]) == ("", "")


@pytest.mark.attack("a server inherits the caller's secrets")
def test_no_variable_is_the_caller_s(answer: Mapping[str, Mapping[str, str]]) -> None:
    """On every platform: a home of its own, and the variables that the server needs."""
    variables = answer["variables"]
    assert SECRET not in variables.values() and "USER" not in variables
    assert variables["HOME"] == variables["TMPDIR"] and variables["HOME"].endswith("slot/tmp")


@pytest.mark.attack("a scoring script leaves a process that outlives its server")
def test_no_process_outlives_the_server(
    answer: Mapping[str, Mapping[str, str]], parts: frozenset[str]
) -> None:
    """Though it left its parent, and tried to leave its session."""
    if not parts & {NAMESPACES, SECCOMP}:
        pytest.skip("this machine has neither namespaces nor seccomp")
    assert answer["left"] == {"all": "1", "alive": "[]"}
