"""Isolate a model server from this machine: its files, network, processes and user.

launch.py calls `enter` before it imports any code of the deployment. Isolation needs Linux. Each
mechanism is used if the kernel and the user's rights allow it; the server's log lists those in use:

    namespaces  a read-only root folder with only the files that the server reads; no network; no
                other process; child processes end with the server (namespaces(7), pivot_root(2))
    landlock    the same list of files, no TCP, no signals to others (landlock(7)); needs no rights
    seccomp     no sockets, no tracing, no change of a file's mode or owner (seccomp(2))
    user        `nobody` instead of root; the files must be readable for it

README.md of `ml/backends/local` has a table of platforms. The numbers below are the kernel's.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from errno import ENOSYS, EPERM
from pathlib import Path

NAMESPACES, LANDLOCK, SECCOMP, USER = "namespaces", "landlock", "seccomp", "user"
NOBODY = 65534
# Limits: the share of this machine's memory per process, and the user's processes and threads.
MEMORY, PROCESSES = 0.75, 4096
# Paths that a server may read, if they exist. Python's prefix is not whole: it may have a pip.conf.
_SYSTEM = """
    /usr /bin /lib /lib64 /lib32 /nix/store /opt/cuda /opt/rocm /etc/passwd /etc/group
    /etc/localtime /etc/nsswitch.conf /etc/ld.so.cache /etc/alternatives /etc/ssl/certs
    /etc/ssl/openssl.cnf /etc/pki/tls/certs /etc/OpenCL /sys/devices /sys/bus /sys/fs/cgroup
"""
_PYTHON = ("bin", "lib", "lib64", "pyvenv.cfg")
_PROC = "/proc/cpuinfo /proc/meminfo /proc/stat /proc/self /proc/sys/vm /proc/driver"
_DEVICES = ("null", "zero", "full", "random", "urandom", "kfd", "dri", "nvidia*")
# Denied system calls: socket connect bind sendmsg sendmmsg ptrace process_vm_readv
# process_vm_writev pidfd_getfd io_uring_setup bpf perf_event_open keyctl request_key add_key mount
# unshare setns. Without namespaces also setsid fchmod fchmodat fchmodat2 fchown fchownat setxattr
# lsetxattr fsetxattr, and on x86_64 chmod chown lchown utime utimes futimesat.
_DENIED = {
    "x86_64": (
        "41 42 49 46 307 101 310 311 438 425 321 298 250 249 248 165 272 308",
        "112 91 268 452 93 260 188 189 190 90 92 94 132 235 261",
    ),
    "aarch64": (
        "198 203 200 211 269 117 270 271 438 425 280 241 219 218 217 40 97 268",
        "157 52 53 452 55 54 5 6 7",
    ),
}
# Numbers of the architecture, pivot_root, clone, and of calls that are denied unless an argument is
# zero: the address of sendto; without namespaces also the path of utimensat, and the process of
# prlimit64 and setpriority.
_NUMBERS = {
    "x86_64": (0xC000003E, 155, 56, 44, 280, 302, 141),
    "aarch64": (0xC00000B7, 41, 220, 206, 88, 261, 140),
}
_BIND, _PRIVATE = 0x5000, 0x44000  # recursive
_NEW, _NEW_USER = 0x68020000, 0x10000000  # namespaces: mounts, IPC, processes, network; the user
_NEW_ANY, _CLONE3 = 0x7E020000, 435  # the flags of clone(2) for namespaces; the same everywhere
# Landlock rights: read and execute, write, use a device; and those that apply to files.
_READ, _WRITE, _DEVICE, _FILE = 0xD, 0x75BE, 0x800E, 0xC007
_libc = ctypes.CDLL(None, use_errno=True)


def enter(folders: Sequence[Path], scratch: Path) -> str:
    """Isolate this process permanently; return a log line with the mechanisms in use.

    The server can read `folders` and Python, and write only to `scratch`. With namespaces, this
    returns in a child with PID 1; its parent exits with its exit code. Raise OSError.
    """
    parts = available(folders, scratch)
    if sys.platform == "linux":
        _enter(parts, folders, scratch)
    return f"isolation of this server: {', '.join(sorted(parts)) or 'only its variables'}"


def available(folders: Sequence[Path], scratch: Path) -> frozenset[str]:
    """Return the isolation mechanisms that work on this machine; try them in a forked child."""
    if sys.platform != "linux":
        return frozenset()
    always = {LANDLOCK} if _landlock() > 0 else set()
    if platform.machine() in _NUMBERS and _libc.prctl(21, 0, 0, 0, 0) >= 0:
        always.add(SECCOMP)
    more: Sequence[set[str]] = [{NAMESPACES, USER}, {NAMESPACES}, {USER}]
    for parts in more if os.geteuid() == 0 else more[1:2]:
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                _enter(parts | always, folders, scratch)
                needed = (*folders, Path(os.__file__), Path(sys.prefix, "bin"))
                if USER not in parts or all(map(_is_readable, needed)):
                    os._exit(0)
            os._exit(1)
        if os.waitpid(child, 0)[1] == 0:
            return frozenset(parts | always)
    return frozenset(always)


def _enter(parts: Collection[str], folders: Sequence[Path], scratch: Path) -> None:
    python = [Path(prefix, name) for prefix in (sys.prefix, sys.base_prefix) for name in _PYTHON]
    libraries = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    read = [*map(Path, _SYSTEM.split()), *python, *map(Path, libraries), *folders]
    devices = [path for name in _DEVICES for path in Path("/dev").glob(name)]
    write = [scratch]
    user = NOBODY if USER in parts or os.geteuid() else 0
    _limit(parts)
    if NAMESPACES in parts:
        _separate()
        write.append(Path("/dev/shm"))
        _pivot([*filter(os.path.exists, read), *devices], write)
    read += map(Path, ["/proc"] if NAMESPACES in parts else _PROC.split())
    if os.geteuid() == 0:
        for folder in write:
            os.chown(folder, user, user)
    if USER in parts:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    _call("capset", struct.pack("Ii", 0x20080522, 0), bytes(24))
    _call("prctl", 38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    # Changing the user makes root own /proc/self and clears PR_SET_PDEATHSIG: set both now.
    _call("prctl", 4, 1, 0, 0, 0)  # PR_SET_DUMPABLE
    if NAMESPACES in parts:
        _call("prctl", 1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG
    if LANDLOCK in parts:
        _restrict(filter(os.path.exists, read), write, devices)
    if SECCOMP in parts:
        _filter(NAMESPACES in parts)


def _limit(parts: Collection[str]) -> None:
    """Limit memory, processes and core dumps; if memory runs out, this server is killed first."""
    memory = int(MEMORY * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_DATA: memory}
    if NAMESPACES in parts or USER in parts:  # else the caller's processes would count
        limits[resource.RLIMIT_NPROC] = PROCESSES
    for limit, most in limits.items():
        with suppress(ValueError):  # the limit is already lower
            resource.setrlimit(limit, (most, most))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _separate() -> None:
    """Continue in a child that is PID 1 of new namespaces; its descendants end with it."""
    user, group = os.geteuid(), os.getegid()
    _call("unshare", _NEW | (_NEW_USER if user else 0))
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{NOBODY} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{NOBODY} {group} 1")
    child = os.fork()
    if child:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the child gets the signal too
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os._exit(code if code >= 0 else 128 - code)
    # PID 1 receives only signals that it has a handler for.
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))


def _pivot(paths: Sequence[Path], write: Sequence[Path]) -> None:
    """Switch to a new root folder with only these read-only paths, and empty folders `write`."""
    root = write[0]
    _mount("", "/", "", _PRIVATE)
    _mount("tmpfs", root, "tmpfs", 0, "mode=755")
    inside = {path: root / path.relative_to("/") for path in (*paths, *write, Path("/proc"))}
    for path, target in inside.items():
        (target if path.is_dir() else target.parent).mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.touch()
        if path in paths:
            _mount(path, target, "", _BIND)
    read_only = struct.pack("QQQQ", 0b11, 0, 0, 0)  # and no set-user-ID
    _call("syscall", 442, -100, bytes(root), 0x8000, read_only, 32)  # mount_setattr(2), recursive
    for folder in write:
        _mount("tmpfs", inside[folder], "tmpfs", 0b110, "mode=700,size=25%")
    _mount("proc", inside[Path("/proc")], "proc", 0b1111)
    os.chdir(root)
    _call("syscall", _NUMBERS[platform.machine()][1], b".", b".")  # pivot_root(2)
    _call("umount2", b".", 2)  # MNT_DETACH
    os.chdir("/")


def _mount(source: Path | str, target: Path | str, kind: str, flags: int, data: str = "") -> None:
    words = [str(word).encode() for word in (source, target, kind, data)]
    _call("mount", *words[:3], ctypes.c_ulong(flags), words[3])


def _landlock() -> int:
    """Return the kernel's version of Landlock; negative if it is missing."""
    return int(_libc.syscall(444, None, 0, 1))


def _restrict(read: Iterable[Path], write: Sequence[Path], devices: Sequence[Path]) -> None:
    """Deny all other files, TCP, signals to others and their abstract sockets (landlock(7))."""
    version = _landlock()
    files = 0x1FFF | (version >= 2) << 13 | (version >= 3) << 14 | (version >= 5) << 15
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _call("syscall", 444, struct.pack("QQQ", files, 0b11, 0b11), size, 0)
    for rights, paths in ((_READ, read), (_WRITE, write), (_DEVICE, devices)):
        for path in paths:
            allowed = files & (rights if path.is_dir() else rights & _FILE)
            opened = os.open(path, os.O_PATH)
            _call("syscall", 445, ruleset, 1, struct.pack("=Qi", allowed, opened), 0)
            os.close(opened)
    _call("syscall", 446, ruleset, 0)
    os.close(ruleset)


def _filter(alone: bool) -> None:
    """Make `_DENIED`, new namespaces and foreign architectures fail with EPERM (seccomp(2)).

    If `alone` (in namespaces), calls that change files are allowed: files are read-only there.
    """
    machine = platform.machine()
    architecture, _, clone, *conditional = _NUMBERS[machine]
    number, deny, allow = (0x20, 0, 0, 0), (6, 0, 0, 0x50000 | EPERM), (6, 0, 0, 0x7FFF0000)
    program = [(0x20, 0, 0, 4), (0x15, 1, 0, architecture), deny]
    program += [number, (0x35, 0, 1, 0x40000000), deny]
    for denied in map(int, " ".join(_DENIED[machine][: 2 - alone]).split()):
        program += [(0x15, 0, 1, denied), deny]
    for call, argument in zip(conditional, (4,) if alone else (4, 1, 0, 1), strict=False):
        low, high = ((0x20, 0, 0, 16 + 8 * argument + half) for half in (0, 4))
        program += [(0x15, 0, 5, call), low, (0x15, 0, 2, 0), high, (0x15, 1, 0, 0), deny, number]
    program += [(0x15, 0, 3, clone), (0x20, 0, 0, 16), (0x45, 0, 1, _NEW_ANY), deny, number]
    # A filter cannot read the flags of clone3; without it, glibc calls clone.
    program += [(0x15, 0, 1, _CLONE3), (6, 0, 0, 0x50000 | ENOSYS), allow]
    lines = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    pointer = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(lines))
    _call("prctl", 22, 2, pointer, 0, 0)  # PR_SET_SECCOMP, a filter


def _is_readable(path: Path) -> bool:
    if not path.is_dir():
        return os.access(path, os.R_OK)
    return os.access(path, os.R_OK | os.X_OK) and all(map(_is_readable, path.iterdir()))


def _call(name: str, *arguments: object) -> int:
    result = int(getattr(_libc, name)(*arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result
