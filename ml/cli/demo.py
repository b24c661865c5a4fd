"""`ml demo`: sweep, promote a model, send a request, and show two bad versions being rejected.

Every step is a command that a person can type; it is printed before it runs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ml.cli.app import open_backend
from ml.cli.render.output import show_step
from ml.core import home
from ml.core.errors import Exit, UserError
from ml.core.repository import shown

if TYPE_CHECKING:
    from ml.backends.base import Backend
    from ml.backends.runs import Run
    from ml.measures.schema import Evaluation
    from ml.release.declaration.projects import Project
    from ml.release.promotion.propose import Proposal
    from ml.specs.plan.plans import Plan


def demo(
    project: Annotated[str, typer.Argument(help="A folder under ml/projects.")],
    first: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE",
            help="Override a field of train.yml for a quick first model, e.g. inputs.trees=2; "
            "default: the first candidate becomes the first version.",
        ),
    ] = None,
    bad: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE",
            help="Override a field of train.yml to train a bad model; default: train none.",
        ),
    ] = None,
    fault: Annotated[
        str, typer.Option(help="The fault of the drill: errors, slow or constant.")
    ] = "slow",
) -> None:
    """Sweep, select, gate, release with a canary, send a request.

    Then show a bad model being rejected and a faulty deployment being rolled back.
    """
    from ml.cli.commands.run import parse_changes

    start = time.monotonic()
    backend = open_backend()
    if (prepare := backend.prepare) is not None:
        prepare()
    from ml.release.declaration import projects

    small, worse = parse_changes(first or []), parse_changes(bad or [])
    steps = Steps(backend, projects.find(backend.root, project))
    model = steps.project.endpoint()
    fresh = backend.registry.champion(model, "local") is None
    if fresh and small:
        steps.first_model(small)
    proposals, promoted = [], False
    for trial in steps.sweep():
        proposals.append(steps.candidate(trial))
        promoted |= steps.promote(proposals[-1])
    if backend.registry.champion(model, "local") is None:
        raise typer.Exit(Exit.GATE_SAID_NO)
    steps.ask(model)
    if worse and (promoted or fresh):
        steps.bad_model(worse)
    if promoted or fresh:
        steps.faulty_deployment(fault)
    typer.echo(f"\ndone in {time.monotonic() - start:.0f} s; next:", err=True)
    typer.echo(f"  {projects.example(model, projects.of_model(backend.root, model))}", err=True)
    version, champion = proposals[-1].candidate, proposals[-1].champion
    if champion and champion.version != version.version:
        both = f"{model}:{version.version} {model}:{champion.version}"
        typer.echo(f"  ml compare {both} --format md", err=True)
    typer.echo(f"  ml demo {project}   again: promoted only if better", err=True)


class Steps:
    """The steps of the demo; each prints its number and its command before it runs."""

    def __init__(self, backend: Backend, project: Project) -> None:
        self.backend, self.project = backend, project
        self.number = 0
        self.printed: set[str] = set()

    def first_model(self, changes: Mapping[str, str]) -> None:
        """Train and promote a small first model, as the champion that the sweep must beat."""
        name = self.project.name
        run = self._train(changes, "a quick first model, for the sweep to beat")
        proposal = self._propose(run, "evaluates the model and the gates; takes half a minute")
        self._show_decision(proposal)
        if proposal.decision.allowed:
            who = home.user()
            self._step(f"ml release apply {name} --approved-by {who}")
            self._apply(who)

    def sweep(self) -> Iterator[Run]:
        """Run jobs/pipeline.yml with its sweeps; yield the selected trial of each sweep."""
        from ml.backends.runs import original as find_original
        from ml.cli.commands.sweep import print_selection
        from ml.release.selection.selection import choose

        path = self.project.folder / "jobs" / "pipeline.yml"
        self._step(f"ml run {shown(path)}", "the main job")
        plan = _plan(path, {})
        run = self._run(plan)
        store = self.backend.runs
        sweeps = [part for part in (run, *run.below()) if find_original(store, part).trials]
        # Sort by the spec's order, which the plan has; a run lists its steps as they end.
        order = {f"{run.name}.{step}": rank for rank, step in enumerate(getattr(plan, "steps", ()))}
        sweeps.sort(key=lambda part: order.get(part.name, len(order)))
        for sweep in sweeps if len(sweeps) > 1 else [run]:
            self._step(f"ml select {sweep.name}", "weighted score; behind: points below the best")
            selection = choose(self.backend, [sweep])
            print_selection(selection, limit=5)
            first = selection.selection.by_score or selection.selection.by_metric
            yield selection.runs[first.candidate.name]

    def candidate(self, run: Run) -> Proposal:
        """Propose the selected trial; print its metrics and the gates."""
        from ml.cli.render import release_text

        proposal = self._propose(
            run, "the gates; verified-metrics: metrics from the stored predictions"
        )
        _show_quality(proposal.evidence.evaluation)
        release_text.show_decision(proposal.decision, every=True)
        return proposal

    def promote(self, proposal: Proposal) -> bool:
        """Apply a proposal that the gates allow; return True if it was applied."""
        if proposal.decision.allowed:
            who = home.user()
            canary = "a canary: the new version gets 10, 50, then 100 % of the traffic"
            self._step(
                f"ml release apply {self.project.name} --approved-by {who}",
                canary if proposal.champion else "the first version: no canary is needed",
            )
            self._apply(who)
            return True
        version, champion = proposal.candidate.version, proposal.champion
        if champion and champion.version == version:
            typer.echo("this model serves already: nothing to do", err=True)
        elif champion:
            typer.echo(
                f"version {champion.version} stays the champion: version {version} "
                "was not shown to be better",
                err=True,
            )
        return False

    def ask(self, endpoint: str) -> None:
        """Send a request to the endpoint and print the answer."""
        from ml.cli.commands.serving import answer_texts
        from ml.release.declaration.projects import example
        from ml.release.rollout.invoke import ask

        self._step(example(endpoint, self.project))
        sample = self.project.samples()[0]
        for answer in answer_texts(ask(self.backend, endpoint, sample).body):
            typer.echo(answer)

    def bad_model(self, changes: Mapping[str, str]) -> None:
        """Train and propose a deliberately bad model, which the gates reject."""
        run = self._train(changes, "a deliberately bad model")
        proposal = self._propose(run, "it runs, predicts and is fast, yet the gates must reject it")
        self._show_decision(proposal)

    def faulty_deployment(self, fault: str) -> None:
        """Roll out the serving version with a fault; exit 1 unless its canary rolls it back."""
        from ml.cli.render.release_text import show_drill
        from ml.release.rollout.drill import drill
        from ml.release.rollout.faulty import FAULTS

        self._step(
            f"ml release drill {self.project.name} --fault {fault}",
            f"the same model with a fault: {FAULTS.get(fault, fault)}",
        )
        outcome = drill(self.backend, self.project.name, fault, progress=show_step)
        show_drill(outcome)
        if not outcome.noticed:
            raise typer.Exit(Exit.RUN_FAILED)

    def _train(self, changes: Mapping[str, str], why: str) -> Run:
        path = self.project.folder / "jobs" / "train.yml"
        options = " ".join(f"--set {field}={value}" for field, value in changes.items())
        self._step(f"ml run {shown(path)} {options}", why)
        return self._run(_plan(path, changes))

    def _run(self, plan: Plan) -> Run:
        from ml.cli.render import progress

        backend = self.backend
        if refused := backend.refusals(plan):
            raise UserError(*refused, exit_code=Exit.CANNOT_HONOUR)
        for difference in backend.differences(plan):
            if difference not in self.printed:
                typer.echo(difference, err=True)
        self.printed |= {*backend.differences(plan)}
        with progress.watching(plan, True) as watch:
            run = backend.run(plan, watch)
        if run.status != "Completed":
            typer.echo(progress.summary(backend, plan, run), err=True)
            raise typer.Exit(Exit.RUN_FAILED)
        typer.echo(f"{run.name}: completed in {run.active_s:.0f} s", err=True)
        return run

    def _propose(self, run: Run, why: str) -> Proposal:
        from ml.cli.render import costs
        from ml.release.promotion.propose import propose

        self._step(f"ml release propose {self.project.name} --run {run.name}", why)
        prices, name = costs.of_instance("local"), self.project.name
        return propose(self.backend, name, run.name, progress=show_step, prices=prices)

    def _show_decision(self, proposal: Proposal) -> None:
        from ml.cli.render import release_text

        for result in proposal.decision.blocking:
            reasons = "; ".join(text for text in (result.actual, result.why) if text)
            typer.echo(f"gate {result.gate} failed: {reasons}", err=True)
        typer.echo(release_text.conclusion(proposal.decision), err=True)

    def _apply(self, who: str) -> None:
        from ml.release.rollout.apply import apply

        applied = apply(self.backend, self.project.name, "local", who, progress=show_step)
        if applied is None:  # someone removed the declaration in the meantime
            raise typer.Exit(Exit.RUN_FAILED)
        version, champion = applied.version, applied.replaced
        instead = f", in place of version {champion.version}" if champion else ""
        typer.echo(f"{version.model} {version.version} serves now{instead}", err=True)

    def _step(self, typed: str, why: str = "") -> None:
        self.number += 1
        typer.secho(f"\n[{self.number}] {typed}", bold=True, err=True)
        if why:
            typer.secho(f"    {why}", dim=True, err=True)


def _plan(path: Path, changes: Mapping[str, str]) -> Plan:
    from ml.specs.plan import planning
    from ml.specs.sdk import load

    return planning.plan(load.load(path, changes))


def _show_quality(evaluation: Evaluation) -> None:
    """Print every metric with its confidence interval and the baseline's value."""
    from ml.cli.render.output import write_table
    from ml.reports.formatting import number

    rows = []
    for split, metrics in evaluation.metrics.items():
        for metric, ours in metrics.items():
            baseline = evaluation.baseline.get(split, {}).get(metric)
            interval = [number(end) for end in (ours.low, ours.high) if end is not None]
            values = [
                number(score.value) if score and score.value is not None else ""
                for score in (ours, baseline)
            ]
            rows.append([metric, split, values[0], " – ".join(interval), values[1]])
    write_table(("metric", "split", "this model", "95 % interval", "baseline"), rows)
