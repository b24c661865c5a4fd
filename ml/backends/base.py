"""The port that every backend implements: it runs plans, stores their runs, creates resources.

A backend decides where a plan runs, never what it does.
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
        """Create or update the resource that the spec declares. Raise UserError."""

    def score(self, endpoint: str, deployment: str, data: str, watch: Watch = unwatched) -> Run:
        """Score data with a batch endpoint, and follow the job to its end. Raise UserError.

        `data` is a local path or an asset; `NAME=DATA` sets the input of that name. If `deployment`
        is "", the endpoint's default one scores.
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
    """The registered assets, which jobs reference by name and version."""

    def compare(self, root: Path) -> Sequence[AssetState]:
        """Return the state of every asset that a spec below `root` defines, by kind and name."""

    def create(self, state: AssetState) -> None:
        """Register a missing version from its spec."""


# The problem code for data that exists, but not on this machine.
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
    # `time.monotonic()` at which the backend stops following jobs, for a later workflow run to
    # follow; None: never.
    deadline: float | None = None


@dataclass(frozen=True)
class Options:
    """Options of a backend, which ignores unsupported ones or reports them in `refusals`."""

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
        """Append `line(content)`, where `content` is the current log; nothing comes in between.

        `line` is called again if another machine appends first. The append is atomic, and durable
        when this returns. Raise UserError.
        """


class Resumption(Protocol):
    """Resumes stopped runs; not every backend supports it."""

    def find(self, name: str) -> Run:
        """Return the run with that name or id, and repair a damaged record.

        Raise UserError if there is no such run.
        """

    def plan_of(self, run: Run, timeout_s: float | None = None) -> Plan:
        """Return the plan for resuming the run. Raise UserError if it cannot be resumed.

        `timeout_s` is a new limit for a sweep's total time, including the time before the stop.
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
        """Return whether the run was interrupted, so that resuming it can complete it."""


class Backend(Protocol):
    """A place where plans run. Its optional parts are None if the backend lacks them."""

    @property
    def name(self) -> str:
        """The name of the backend in `--on`."""

    @property
    def root(self) -> Path:
        """The root of the repository that the backend was opened for."""

    @property
    def simulated(self) -> bool:
        """Whether dev, staging and prod are only simulated on this machine."""

    @property
    def runs(self) -> RunStore:
        """The runs of this backend."""

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
        """Return a problem for each part of the plan that this backend cannot run.

        If there are any, the caller exits with code 33.
        """

    def differences(self, plan: Plan) -> tuple[str, ...]:
        """Return harmless differences from Azure ML, to print before the run."""

    def run(self, plan: Plan, watch: Watch = unwatched) -> Run:
        """Run the plan and return its run after the end, with any final status.

        A failing script does not raise: the run's status is Failed. KeyboardInterrupt and SIGTERM
        end every child process, set the tracking run to KILLED and return a Canceled run.
        """

    def cancel(self, name: str) -> Run:
        """Cancel an active run with all its processes; return the canceled run.

        Raise UserError if it has ended or is a child of another run.
        """

    @property
    def verifier(self) -> Verifier | None:
        """The verifier of attestations; if None, no evidence counts as attested."""

    @property
    def cleaner(self) -> Cleaner | None:
        """Deletes old runs and copied files; None if this backend deletes none."""

    @property
    def resumption(self) -> Resumption | None:
        """Resumes stopped runs; None if the backend cannot."""

    @property
    def candidate(self) -> Callable[[ModelDeployment], AbstractContextManager[Candidate]] | None:
        """Returns a context manager that runs a local model server for the caller only.

        The server stops with the block. Entering raises UserError if it does not start.
        """

    @property
    def servers(self) -> Servers | None:
        """The processes of its endpoints; None if they are not on this machine."""

    @property
    def assets(self) -> AssetStore | None:
        """The registered assets; None if jobs read assets directly from their specs."""

    @property
    def resources(self) -> Resources | None:
        """The schedules and batch endpoints; None if the backend has none."""

    @property
    def prepare(self) -> Callable[[], object] | None:
        """Prepares the backend before a spec is read; None if there is nothing to prepare."""

    @property
    def serve_pages(self) -> Callable[[int | None, Callable[[str], None]], None] | None:
        """Serves the tracking server's UI until Ctrl-C; the callback receives the URL.

        If the port is None, a free one is used. Raises UserError if there is nothing to serve.
        """

    @property
    def environments(self) -> Callable[[Plan], tuple[EnvironmentComparison, ...]] | None:
        """Compares the environments that a plan declares with those its jobs would run in."""

    @property
    def requests(self) -> Callable[[Plan], tuple[str, ...]] | None:
        """Returns the requests for a plan without sending them; None if there are none."""

    @property
    def cached(self) -> Callable[[Plan, str], Run | None] | None:
        """Returns the cached run with the same command, code, environment and data, else None.

        For a pipeline with only cached steps, it returns the step that wrote the named output.
        """
