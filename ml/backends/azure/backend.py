"""The Azure backend: the same specs, run in a workspace by azure-ai-ml."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from secrets import token_hex
from typing import Any

from ml.backends.attestation import GitHubAttestations, Verifier
from ml.backends.azure import submission
from ml.backends.azure.blobs import AzureAuditLog
from ml.backends.azure.endpoints import AzureEndpoints
from ml.backends.azure.errors import as_user_errors, retried
from ml.backends.azure.following import Follower
from ml.backends.azure.jobs import status_of, studio
from ml.backends.azure.model_registry import AzureRegistry
from ml.backends.azure.resources import AzureAssets, AzureResources
from ml.backends.azure.runs import AzureRuns
from ml.backends.azure.submission import Submission
from ml.backends.azure.workspace import Workspace, configured
from ml.backends.base import Options, WorkflowRun
from ml.backends.endpoints import Candidate, ModelDeployment
from ml.backends.runs import LOG_FOLLOWS, OPEN, Event, Run, Watch, unwatched
from ml.core import faults
from ml.core.errors import Exit, Problem, UserError
from ml.core.imports import ROOT
from ml.specs.assets import assets
from ml.specs.check import workflow_jobs
from ml.specs.plan.plans import AutoMLPlan, PipelinePlan, Plan, SweepPlan, sweeps
from ml.specs.sdk.errors import translate

# Timeout of a cancellation and the pause between its attempts, in seconds.
CANCEL_S, CANCEL_POLL_S = 120.0, 5.0


class AzureBackend:
    """Run jobs of every kind in a workspace (see `Backend`) with azure-ai-ml.

    A job's name is derived from its commit and spec, so the same pair runs only once: a second run
    follows the existing job, and `again` starts another. Somebody else could predict and take such
    a name, so jobs that workflows submit get random names.
    """

    name = "azure"
    simulated = False
    verifier: Verifier | None = GitHubAttestations()
    # The storage account's lifecycle rules, which `infra` declares, delete old data instead.
    cleaner = None
    servers = resumption = serve_pages = environments = cached = None

    def __init__(
        self,
        options: Options | None = None,
        workspace: Workspace | None = None,
        candidate: Callable[[ModelDeployment], AbstractContextManager[Candidate]] | None = None,
    ) -> None:
        """Create the backend; `candidate` starts a model server on this machine (see `Backend`)."""
        self._options, self.candidate = options or Options(), candidate
        self._workspace, self.root = workspace, self._options.root

    @cached_property
    def workspace(self) -> Workspace:
        """The workspace to run in. Raises UserError when the settings do not name it."""
        return self._workspace or configured()

    @cached_property
    def runs(self) -> AzureRuns:
        return AzureRuns(self.workspace)

    @cached_property
    def registry(self) -> AzureRegistry:
        return AzureRegistry(self.workspace)

    @cached_property
    def endpoints(self) -> AzureEndpoints:
        return AzureEndpoints(self.workspace, self.registry)

    @cached_property
    def audit_log(self) -> AzureAuditLog:
        return AzureAuditLog(self.workspace)

    @cached_property
    def resources(self) -> AzureResources:
        return AzureResources(self.workspace, self._followed, self._options.say)

    @cached_property
    def assets(self) -> AzureAssets:
        return AzureAssets(self.workspace)

    def prepare(self) -> None:
        """Raise UserError if settings of the workspace are missing, before a spec is read."""
        _ = self.workspace

    def refusals(self, plan: Plan) -> tuple[Problem, ...]:
        return tuple(self._refusals(plan))

    def _refusals(self, plan: Plan) -> Iterator[Problem]:
        if self._options.evict_after:
            yield Problem(
                "unsupported-option",
                "--evict-after simulates preemption; Azure ML preempts spot nodes by itself",
                "--on local",
                "leave --evict-after out, and name a low-priority cluster in `compute:`",
            )
        if (workflow := self._options.workflow) is not None:
            yield from workflow_jobs.problems(plan.spec, workflow.clusters, workflow.bounds, ROOT)
            return
        for name in plan.spec.mapping("properties") if plan.spec else ():
            if name.startswith(workflow_jobs.RESERVED):
                actual, expected = f"the property `{name}` is reserved", "another name"
                place = plan.spec.place("properties", name)
                yield Problem("reserved-property", actual, expected, "rename it", place)

    def differences(self, plan: Plan) -> tuple[str, ...]:
        workspace = self.workspace
        lines = [f"azure: runs in the workspace {workspace.name} ({workspace.group})"]
        lines += [
            f"azure: hints `{sweep.hints.file}` are for this machine and not read there"
            for sweep in sweeps(plan)
            if sweep.hints
        ]
        return tuple(lines)

    def requests(self, plan: Plan) -> tuple[str, ...]:
        from azure.ai.ml.exceptions import MlException

        spec = plan.spec
        try:
            return tuple(submission.requests(self.workspace, self._submission(plan)))
        except MlException as error:
            # azure-ai-ml's converter rejects some specs that its loader accepts.
            raise UserError(*translate(error, spec.kind, spec.document, spec.file)) from error

    def run(self, plan: Plan, watch: Watch = unwatched) -> Run:
        """Submit the plan and follow the job to its end; Ctrl-C does not cancel the job."""
        wanted, workflow = self._submission(plan), self._options.workflow
        content = submission.content(plan, wanted) if workflow else ""
        job = self._of_workflow(wanted, content, workflow) if workflow else self._started(wanted)
        self._options.say(f"azure: {job.name}, {studio(job)}")
        run = self._with_details(self._follow(job.name, watch), plan)
        if workflow and run.status == "Completed":
            _record_output_digests(run, workflow.jobs[content])
        watch(Event("ended", run))
        return run

    def _follow(self, job: str, watch: Watch) -> Run:
        """Follow the job to its end and return it; download its outputs if it completed."""
        deadline = self._options.workflow.deadline if self._options.workflow else None
        follower = Follower(self.runs, self._options.echo, self._options.say, deadline)
        try:
            run = follower.follow(job, watch)
        except KeyboardInterrupt:
            self._options.say(
                f"{job} is still running; follow it: ml runs logs --follow {job} --on azure, "
                f"end it: ml runs cancel {job} --on azure"
            )
            raise
        if run.status == "Completed":
            self.runs.outputs(run)
        return run

    def _followed(self, name: str, watch: Watch) -> Run:
        """Follow a job that a batch endpoint started to its end, and return it."""
        self._options.say(f"azure: {name}")
        return self._follow(name, watch)

    def _submission(self, plan: Plan) -> Submission:
        with as_user_errors(), faults.as_user_errors():
            return submission.prepare(plan)

    def _started(self, wanted: Submission) -> Any:
        """Return the existing job of that name, or submit one; `again` submits under a new name."""
        existing = self.runs.job(wanted.name)
        number = 1
        while existing is not None and self._options.again:
            number += 1
            existing = self.runs.job(f"{wanted.name}-{number}")
        if existing is not None:
            self._options.say(
                f"azure: this commit and spec were submitted before, as {existing.name}; "
                "--again starts another run"
            )
            return existing
        return self._submit(wanted.named(f"{wanted.name}-{number}") if number > 1 else wanted)

    def _of_workflow(self, wanted: Submission, content: str, workflow: WorkflowRun) -> Any:
        """Return the job that the workflow submitted for that content, or submit one.

        A failed or canceled job is submitted again. If `workflow.final`, raise UserError
        (not-reviewed) instead of submitting.
        """
        submitted = workflow.jobs.get(content)
        job = self.runs.job(submitted["run"]) if submitted else None
        if job is not None and (workflow.final or status_of(job) not in ("Failed", "Canceled")):
            return job
        if workflow.final:
            actual = f"this workflow run did not submit `{wanted.name}`"
            hint = "re-run all jobs of the workflow"
            expected = ", ".join(job["run"] for job in workflow.jobs.values())
            raise UserError(Problem("not-reviewed", actual, expected, hint))
        if wanted.job.type == "pipeline":  # reuse no step of another job
            wanted.job.settings.force_rerun = True
        words = wanted.name.rpartition("-")[0]
        job = self._submit(wanted.named(f"{words}-{token_hex(8)}"))
        workflow.jobs[content] = {"run": job.name, "outputs": {}}
        return job

    def _submit(self, wanted: Submission) -> Any:
        from azure.core.exceptions import AzureError

        with as_user_errors(), self.workspace.quiet(), submission.no_repository():
            try:
                return self.workspace.client.jobs.create_or_update(wanted.job)
            except AzureError:
                # The response was lost after the submission, or another process submitted first.
                existing = self.runs.job(wanted.name)
                if existing is None:
                    raise
                return existing

    def _with_details(self, run: Run, plan: Plan) -> Run:
        """Return the run; its error names the spec's line and the log's end, or the timeout."""
        if isinstance(plan, PipelinePlan | AutoMLPlan):
            return run
        command = plan.trial if isinstance(plan, SweepPlan) else plan
        place = command.places.get("command", plan.place)
        if run.error is not None and run.error.code == "image-build-failed":
            end = log_end(self._log(run, "image_build"))
            place = command.places.get("environment", plan.place)
            return replace(
                run, error=replace(run.error, place=place, actual=run.error.actual + end)
            )
        if run.error is not None and run.error.code == "script-failed":
            cause = describe_failure(run.error.actual, self._log(run, "0"))
            return replace(run, error=replace(run.error, place=place, actual=cause))
        limit, elapsed = plan.timeout_s, (run.ended or run.started) - run.started
        if run.status == "Canceled" and limit is not None and elapsed >= limit:
            actual = f"the job exceeded its limit of {limit:g} s and was cancelled"
            hint = "raise `limits.timeout`, or make the job shorter"
            return replace(run, error=Problem("timed-out", actual, hint=hint, place=plan.place))
        return run

    def _log(self, run: Run, rank: str) -> Path | None:
        """Return the log file of that rank; None if it is missing or cannot be read."""
        try:
            return self.runs.logs(run).get(rank)
        except UserError as refused:
            self._options.say(str(refused))
            return None

    def cancel(self, name: str) -> Run:
        run = self.runs.find(name)
        if run.status not in OPEN:
            hint = f"ml runs show {run.name} --on azure"
            raise UserError.with_code(
                "run-ended", f"{run.name} is {run.status}", "an active run", hint
            )
        if (parent := self.runs.parent(run)) is not None:
            hint = f"ml runs cancel {parent.name} --on azure"
            actual = f"{run.name} is a child of {parent.name}"
            raise UserError.with_code("child-run", actual, "a root run", hint)
        with as_user_errors():
            jobs = self.workspace.client.jobs
            poller = retried(lambda: jobs.begin_cancel(run.name), CANCEL_POLL_S)
            poller.wait(CANCEL_S)
            if not poller.done():
                actual = f"{run.name} has not ended {CANCEL_S:g} s after its cancellation"
                hint = f"later: ml runs show {run.name} --on azure"
                problem = Problem("not-canceled", actual, "a canceled run", hint)
                raise UserError(problem, exit_code=Exit.RUN_FAILED)
            poller.result()
        return self.runs.find(name)


def _record_output_digests(run: Run, job: dict[str, Any]) -> None:
    """Record the digests of the outputs; raise UserError if they differ from the recorded ones."""
    digests = {name: f"sha256:{assets.digest(path)}" for name, path in run.outputs.items()}
    for name, digest in job["outputs"].items():
        if digests.get(name) != digest:
            actual = f"the output `{name}` of {run.name} is {digests.get(name)}"
            hint = "the workspace's storage was changed; train again"
            raise UserError(Problem("output-changed", actual, f"{digest}, as reviewed", hint))
    job["outputs"] = digests


def describe_failure(message: str, log: Path | None) -> str:
    """Return `the command exited with 3; the end of its log: …`, as the local backend does."""
    import re

    exited = re.search(r"exited with (?:status )?code (\d+)", message)
    what = f"the command exited with {exited[1]}" if exited else message
    return what + log_end(log)


def log_end(log: Path | None) -> str:
    """Return a log's last 20 lines, to append to an error message; "" without a log."""
    text = log.read_text(errors="replace") if log else ""
    end = "\n".join(text.splitlines()[-20:])
    return f"{LOG_FOLLOWS}\n{end}" if end else ""
