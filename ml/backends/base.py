"""The port that every backend implements: it runs plans, keeps their runs, and creates resources.

A backend says where a plan runs, never what it does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO

from ml.backends.attestation import Verifier
from ml.backends.endpoints import Candidate, Endpoints, Servers
from ml.backends.model_registry import Registry
from ml.backends.runs import Run, RunStore, Watch, unwatched
from ml.backends.storage import Cleaner
from ml.core.errors import Problem
from ml.specs.assets.assets import AssetSpec
from ml.specs.check.clusters import Bounds
from ml.specs.plan.plans import Plan
from ml.specs.sdk.load import Spec

if TYPE_CHECKING:
    from ml.backends.endpoints import ModelDeployment


# The families of specs that are applied rather than run.
BATCH_DEPLOYMENTS = frozenset({"model_batch_deployment", "pipeline_component_batch_deployment"})
FAMILIES = BATCH_DEPLOYMENTS | {"schedule", "batch_endpoint", "batch_deployment"}
AssetStatus = Literal["missing", "unchanged", "changed", "no-feature-store"]


@dataclass(frozen=True)
class Applied:
    """The result of applying a declaration."""

    kind: str
    name: str
    # `unchanged` if its content was already there.
    change: Literal["created", "updated", "unchanged"]
    commands: tuple[str, ...] = ()  # suggested next commands


class Resources(Protocol):
    """The schedules and batch endpoints of a backend."""

    def requests(self, spec: Spec) -> tuple[str, ...]:
        """Return the requests that `apply` would send, without sending them."""

    def apply(self, spec: Spec) -> Applied:
        """Create what the spec declares, or change it to that. Raises UserError."""

    def score(self, endpoint: str, deployment: str, data: str, watch: Watch = unwatched) -> Run:
        """Let a batch endpoint score data, and follow the job to its end. Raises UserError.

        The data is a local path or an asset; `NAME=DATA` is an input of that name. Without a
        deployment, the endpoint's default one scores.
        """


@dataclass(frozen=True)
class AssetState:
    """An asset that a spec defines, compared with the version in the backend."""

    spec: AssetSpec
    digest: str  # sha256 of the spec and all files that it names; "" if it was not compared
    # `changed`: a version is immutable, so the spec needs a new one; `no-feature-store`: not
    # compared, since none is configured.
    status: AssetStatus

    def __str__(self) -> str:
        return f"azureml:{self.spec.name}:{self.spec.version}"


class AssetStore(Protocol):
    """Where jobs find assets by name and version."""

    def compare(self, root: Path) -> Sequence[AssetState]:
        """Return the state of every asset that a spec below `root` defines, by kind and name."""

    def create(self, state: AssetState) -> None:
        """Register a missing version from its spec."""


# The problem code for data that is only missing on this machine.
DATA_NOT_HERE = "data-not-local"
# The problem code for a job that is no longer followed but continues.
UNFINISHED = "run-unfinished"


@dataclass(frozen=True)
class EnvironmentComparison:
    """The differences between this interpreter and the environment of a job."""

    data: Mapping[str, Any]  # the comparison as JSON
    lines: tuple[str, ...]  # a line of text for each difference


@dataclass(frozen=True)
class WorkflowRun:
    """A GitHub Actions run that submits jobs from the specs of a pull request, which is untrusted.

    The backend follows only jobs that the workflow submitted. They request no more than
    `ml.specs.check.workflow_jobs` allows.
    """

    clusters: Collection[str]  # jobs may run only on these
    bounds: Bounds  # limits of each job
    # Digest of a job's content → its `run` (name) and the digests of its `outputs`; the next GitHub
    # Actions job of the workflow run receives this mapping.
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    final: bool = False  # submit no job that is not in `jobs`
    # `time.monotonic()` at which it stops following its jobs and leaves them to a later workflow
    # run; None: never.
    deadline: float | None = None


@dataclass(frozen=True)
class Options:
    """Options of a backend. A backend ignores those that it does not support, or reports them
    from `refusals`.
    """

    # Receives a command's output.
    echo: TextIO | None = None
    # Build the environment that a spec requires, instead of using this interpreter's.
    isolated: bool = False
    # Receives progress messages before the run starts.
    say: Callable[[str], None] = lambda line: None
    # Preempt the job after these seconds: one restart for each, counted from the last start.
    evict_after: tuple[float, ...] = ()
    # Seconds between SIGTERM and SIGKILL of a preemption.
    evict_notice: float = 0.0
    # Submit a new job even if the remote backend has one for the same commit and spec.
    again: bool = False
    # The GitHub Actions run whose identity submits the job; None for a person.
    workflow: WorkflowRun | None = None
    # The repository whose models are released; the working directory by default.
    root: Path = Path()


class AuditLog(Protocol):
    """An append-only file shared by all machines that release to the same place."""

    @property
    def place(self) -> str:
        """Its path or address, for messages."""

    def read(self) -> bytes | None:
        """Return the whole log; None before the first line.

        Raise UserError if it cannot be read.
        """

    def append(self, line: Callable[[bytes | None], bytes]) -> None:
        """Append the line that `line` makes of the present content; nobody else appends in between.

        `line` is called again if another machine was faster. The line is on disk when this returns,
        completely or not at all. Raises UserError.
        """


class Resumption(Protocol):
    """Resuming stopped runs, which not every backend supports."""

    def find(self, name: str) -> Run:
        """Return the run with that name or id, repaired if its record is damaged.

        Raise UserError.
        """

    def plan_of(self, run: Run, timeout_s: float | None = None) -> Plan:
        """Return the plan with which the run would be resumed. Raise UserError when it cannot be.

        `timeout_s` is a new limit for a sweep: all its time, the time before included.
        """

    def resume(
        self,
        run: Run,
        watch: Watch = unwatched,
        timeout_s: float | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> Run:
        """Resume the run and return when it has ended. Raises as `plan_of`."""

    def was_stopped(self, run: Run) -> bool:
        """Return whether the run was ended from outside, so that resuming can complete it."""


class Backend(Protocol):
    """A place where plans run. Its optional parts are None if the backend lacks them."""

    @property
    def name(self) -> str:
        """The name of the backend in `--on`."""

    @property
    def root(self) -> Path:
        """The root of the repository that it was opened for."""

    @property
    def simulated(self) -> bool:
        """Return whether dev, staging and prod are only simulated here."""

    @property
    def runs(self) -> RunStore:
        """The runs that it has carried out."""

    @property
    def registry(self) -> Registry:
        """The registered model versions."""

    @property
    def endpoints(self) -> Endpoints:
        """The endpoints that serve models."""

    @property
    def audit_log(self) -> AuditLog:
        """The log of decisions and releases of this backend."""

    def refusals(self, plan: Plan) -> tuple[Problem, ...]:
        """Return what this backend cannot run; if there is any, the caller exits with code 33."""

    def differences(self, plan: Plan) -> tuple[str, ...]:
        """Return harmless differences from Azure ML, to print before the run."""

    def run(self, plan: Plan, watch: Watch = unwatched) -> Run:
        """Carry the plan out and return when it has ended, however it ended.

        A failing script is a Run whose status is Failed, not an exception. KeyboardInterrupt and
        SIGTERM end every child, leave the tracking run KILLED and return a Canceled run.
        """

    def cancel(self, name: str) -> Run:
        """End an unfinished run with all its processes; return the closed run.

        Raises UserError when it has ended or is a part of another run.
        """

    @property
    def verifier(self) -> Verifier | None:
        """The verifier of attestations; without one no evidence counts as attested."""

    @property
    def cleaner(self) -> Cleaner | None:
        """The remover of runs and copies; None if this backend removes none."""

    @property
    def resumption(self) -> Resumption | None:
        """Resumes stopped runs; None if the backend cannot."""

    @property
    def candidate(self) -> Callable[[ModelDeployment], AbstractContextManager[Candidate]] | None:
        """Return a context manager that starts a local server for the caller only.

        The server ends with the block. Raises UserError if it does not start.
        """

    @property
    def servers(self) -> Servers | None:
        """The servers of its endpoints, where they are processes of this machine."""

    @property
    def assets(self) -> AssetStore | None:
        """The registered assets; None if jobs read assets directly from their specs."""

    @property
    def resources(self) -> Resources | None:
        """Its schedules and batch endpoints."""

    @property
    def prepare(self) -> Callable[[], object] | None:
        """Return a function that starts one-time setup in the background."""

    @property
    def serve_pages(self) -> Callable[[int | None, Callable[[str], None]], None] | None:
        """Serves the UI of the tracking server until Ctrl-C; the callback gets the address.

        Without a port, a free one is used. Raises UserError when there is nothing to serve.
        """

    @property
    def environments(self) -> Callable[[Plan], tuple[EnvironmentComparison, ...]] | None:
        """Compares the environments that a plan declares with those that its jobs would get."""

    @property
    def requests(self) -> Callable[[Plan], tuple[str, ...]] | None:
        """A function that returns the requests for a plan without sending them, or None."""

    @property
    def cached(self) -> Callable[[Plan, str], Run | None] | None:
        """The completed step with the same command, code, environment and data, if it is kept.

        Of a pipeline, when all of its steps are kept: the step that wrote the output of that name.
        """
