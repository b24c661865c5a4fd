"""What a process that was forked from a warm interpreter does to be like one that was just started.

Imported by zygote.py alone, in the interpreter of the trial: nothing of the repository is here.
What differs from a fresh start all the same is listed in tests/backends/test_pool_faithful.py.
"""

# Of the standard library only what a start of Python imports anyway, or nearly so.
# ruff: noqa: PTH109, PTH118, PTH120, PTH123

import _io
import builtins
import gc
import itertools
import os
import signal
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType, TracebackType

# Modules that have a state of their own in every process.
STATEFUL = ("numpy.random", "logging", "multiprocessing.process")

MYPY = False
if MYPY:
    from typing import Any

Modules = dict[str, ModuleType]


class Warm:
    """Hands out modules that are imported already when the script imports them, and not before.

    `segments` are the modules that each import of the zygote brought in, in its order, which is the
    script's: importing one makes its whole segment, and those before it, visible.
    """

    def __init__(self, segments: list[Modules]) -> None:
        self._segments = segments
        self._where = {name: at for at, found in enumerate(segments) for name in found}
        self._shown = 0

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> "ModuleSpec | None":
        """See importlib.abc.MetaPathFinder; asking does not import."""
        at = self._where.get(name)
        module = None if at is None else self._segments[at][name]
        known: ModuleSpec | None = getattr(module, "__spec__", None)
        if known is None:
            return None
        loader: Any = self
        spec = ModuleSpec(name, loader, origin=known.origin, loader_state=(module, known))
        spec.submodule_search_locations = known.submodule_search_locations
        spec.has_location = known.has_location
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module that is there."""
        module: ModuleType = spec.loader_state[0]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is executed a second time."""
        assert module.__spec__ is not None
        name, module.__spec__ = module.__spec__.name, module.__spec__.loader_state[1]
        at = self._where[name]
        for found in self._segments[self._shown : at + 1]:
            for key, one in found.items():
                sys.modules.setdefault(key, one)
        self._shown = max(self._shown, at + 1)
        if self._shown == len(self._segments):
            sys.meta_path.remove(self)


class Known:
    """The modules of the zygote.

    To look at an object is to write to its memory (its reference count), and memory that a fork
    shares is copied, page by page, when it is written to: 5 µs for each of thousands of modules.
    """

    def __init__(self) -> None:
        self._ids = {id(module) for module in sys.modules.values()}
        self._stateful = {name: sys.modules[name] for name in STATEFUL if name in sys.modules}
        self.visible = len(sys.modules)

    def refresh(self) -> None:
        """Give what a module drew or noted when it was imported its own value in this process.

        Also where the script has not imported it yet. `random` does it by itself after a fork.
        """
        if numpy := self._stateful.get("numpy.random"):
            numpy.seed()
        if logging := self._stateful.get("logging"):
            logging._startTime = logging.time.time()  # type: ignore[attr-defined]
        if process := self._stateful.get("multiprocessing.process"):
            process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
            key = process.AuthenticationString(os.urandom(32))
            process.current_process()._config["authkey"] = key

    def others(self) -> list[ModuleType]:
        """The modules that came later, the newest first."""
        later = itertools.islice(reversed(sys.modules.values()), len(sys.modules) - self.visible)
        found = [one for one in later if id(one) not in self._ids and isinstance(one, ModuleType)]
        main = sys.modules.get("__main__")
        return [*found, main] if isinstance(main, ModuleType) else found


def become(request: "dict[str, Any]", warm: "Warm | None", known: Known, pad: str) -> None:
    """Take on the output, the environment, the folder and the search path of a trial."""
    os.setsid()
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number, stream in enumerate((nothing, log, log)):
        os.dup2(stream, number)
    os.close(log)
    os.close(nothing)
    os.environ.clear()
    os.environ.update(request["environment"])
    show_environment(request["environment"])
    os.chdir(request["cwd"])
    packages = os.environ["PYTHONPATH"]
    sys.path[:] = [packages if path == pad else path for path in sys.path]
    sys.path_importer_cache.pop(pad, None)
    sys.orig_argv[:] = request["started"]
    sys.argv[:] = [request["target"], *request["arguments"]]
    known.refresh()
    if warm is not None:
        finder: Any = warm
        sys.meta_path.insert(0, finder)


def show_environment(environment: dict[str, str]) -> None:
    """Let /proc/PID/environ say it, by which the processes of a run are found.

    The zygote was started with a variable that keeps enough room for it. Nothing in this process
    points there any more: every variable has been set again, and so has a place of its own.
    """
    start, end = environment_area()
    block = b"".join(os.fsencode(f"{k}={v}") + b"\0" for k, v in environment.items())
    memory = os.open("/proc/self/mem", os.O_RDWR)
    try:
        os.pwrite(memory, block[: end - start - 1].ljust(end - start, b"\0"), start)
    finally:
        os.close(memory)


def environment_area() -> tuple[int, int]:
    """Where the kernel looks for this process's environment (proc(5): env_start, env_end)."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[47]), int(fields[48])


def run(request: "dict[str, Any]") -> int:
    """What Python itself does with `python FILE` and `python -m MODULE`; the exit code."""
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    target = request["target"]
    try:
        if request["is_module"]:
            sys.path.insert(0, os.getcwd())
            import runpy

            sys.argv[0] = "-m"
            runpy._run_module_as_main(target)  # type: ignore[attr-defined]
        else:
            path = os.path.join(os.getcwd(), target)
            sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
            main.__dict__.update(__file__=path, __cached__=None)
            main.__loader__ = SourceFileLoader("__main__", path)
            exec(_compiled(path), main.__dict__)
    except SystemExit as ended:
        return _asked_for(ended.code)
    except BaseException as error:
        inside = error.__traceback__
        while inside is not None and inside.tb_frame.f_code.co_filename == __file__:
            inside = inside.tb_next
        return _uncaught(error, inside)
    return 0


def _compiled(path: str) -> CodeType:
    with open(path, "rb") as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def _asked_for(code: object) -> int:
    """The exit code that `sys.exit(code)` comes to; a text is printed."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -(1 << 63) <= code < 1 << 63 else 0xFF
    sys.stdout.flush()
    print(code, file=sys.stderr)
    return 1


def _uncaught(error: BaseException, inside: "TracebackType | None") -> int:
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, inside
    error.__traceback__ = inside
    try:
        sys.excepthook(type(error), error, inside)
    except BaseException as another:
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(another), another, another.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, inside)
    if isinstance(error, KeyboardInterrupt):
        return -signal.SIGINT
    return 1


def leave(code: int, warm: "Known") -> None:
    """End the process as Python does: threads joined, atexit called, files closed and flushed.

    What is not done is to take apart the packages that the zygote had imported, which takes a fifth
    of a second and changes nothing outside of the process.
    """
    if threading := sys.modules.get("threading"):
        threading._shutdown()
    import atexit

    atexit._run_exitfuncs()
    code = code if _flushed() else 120
    # A daemon thread still runs here, where Python would have stopped it: leave it its globals.
    alone = threading is None or threading.active_count() == 1
    # As Py_FinalizeEx clears modules: names with one underscore first, the newest module first.
    own = warm.others()
    sys.last_type = sys.last_value = sys.last_traceback = None
    for module in own if alone else []:
        for underscored in (True, False):
            for name in list(module.__dict__):
                single = name.startswith("_") and not name.startswith("__")
                if single is underscored and name != "__builtins__":
                    module.__dict__[name] = None
    gc.collect()
    # Files that something else still holds. By their type in C: `isinstance` would ask io.IOBase,
    # an abstract class, about each type that there is, which takes milliseconds.
    for one in gc.get_objects():
        if issubclass(type(one), _io._IOBase):
            try:
                if not one.closed:
                    one.flush()
            except Exception:  # Python's own shutdown ignores it, too
                pass
    _flushed()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _flushed() -> bool:
    done = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:
            done = False
    return done
