"""`ml check`: report every wrong spec before anything runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from ml.cli.options import AsJson
from ml.cli.render.output import write_json
from ml.core import repository
from ml.core.errors import Exit, Problem, UserError
from ml.core.terminal import readable, unfiltered


def check(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Files or folders; the whole repository without any."),
    ] = None,
    form: Annotated[
        Literal["text", "json", "github"],
        typer.Option("--format", help="text (people), json (programs) or github (annotations)."),
    ] = "text",
    as_json: AsJson = False,
) -> None:
    """Check Azure ML specs and what releases read: a file, a folder or the repository.

    A job is also compared with the cluster that it names in infra/Pulumi.*.yaml.

    Releases read a project's gates.yml, select.yml, watch.yml and release.yml, the metrics in its
    gates, sweeps and evaluate.py, the schema of its table, the serving code, and the policies in
    policies/promotion. Without paths it also checks the names of files at the repository's root
    and those that git reads, that stack files, the gate `order` and workflows declare the same
    environments, and that stack files declare the endpoints of projects, compares the versions in
    conda files with the lock, and warns about expired waivers of infrastructure rules. Exit 2 when
    there is an error, 0 when there is none or only warnings.
    """
    from infra.settings import environments
    from ml.cli import clusters
    from ml.repository.forks import layout
    from ml.specs.assets.packages import pin_problems
    from ml.specs.check.check import survey

    form = "json" if as_json else form
    root = repository.root()
    if not paths and not repository.is_root(root):  # otherwise all files below would be checked
        actual = f"{root} is not in a repository"
        hint = "change to one, or name files and folders: ml check PATH"
        raise UserError(
            Problem("no-repository", actual, f"a folder with a {repository.MARK}", hint)
        )
    report = survey(paths or [root], release_files(), clusters.declared())
    if not paths:
        extra = [*layout.tracked_problems(root), *environments.problems(root), *pin_problems(root)]
        extra += [*clusters.stack_warnings(root), *rule_waiver_problems(root)]
        report = replace(report, problems=(*extra, *report.problems))
    if form == "json":
        write_json(report.as_json())
    else:
        for problem in report.problems:
            if form == "github":  # workflow commands, which the output filter would escape
                print(readable(annotation(problem)), file=unfiltered(sys.stdout))
            else:
                print(problem)
    print(report.summary(), file=sys.stderr if form == "json" else sys.stdout)
    raise typer.Exit(Exit.WRONG_CALL if report.errors else Exit.DONE)


def release_files() -> Mapping[str, Callable[[Path], Sequence[Problem]]]:
    """Map each pattern of files that releases read to a function that returns their problems."""
    from ml.release import serving
    from ml.release.declaration import release_file
    from ml.release.declaration.projects import Project
    from ml.release.promotion import gate_check
    from ml.release.selection import weights
    from ml.release.watch import limits
    from ml.repository.scaffold import project_metrics
    from ml.specs.check.feature_sets import feature_set_problems, specification_problems
    from policies.promotion import gate_settings, policy
    from policies.waivers import lapsed

    def problems_of(read: Callable[[Path], object]) -> Callable[[Path], Sequence[Problem]]:
        def problems(path: Path) -> Sequence[Problem]:
            try:
                read(path)
            except UserError as refused:
                return refused.problems
            return []

        return problems

    def thresholds(path: Path) -> Sequence[Problem]:
        try:
            gates = gate_check.load_gates(Project(path.parent.name, path.parent))
        except UserError as refused:
            return refused.problems
        stated = [(*gate.waivers, *gate.reviews, *gate.invalid_versions) for gate in gates.values()]
        one_each = {statement.place: statement for statements in stated for statement in statements}
        return [*lapsed(one_each.values(), datetime.now(UTC).date())]

    return {
        "ml/projects/*/release.yml": release_file.check,
        "ml/projects/*/gates.yml": lambda path: [
            *thresholds(path),
            *project_metrics.evaluation_problems(path.parent / "evaluate.py"),
            *project_metrics.metric_problems(path.parent / project_metrics.METRICS),
            *project_metrics.gate_problems(path),
            *project_metrics.name_problems(path),
        ],
        "ml/projects/*/jobs/*.yml": lambda path: [*project_metrics.sweep_problems(path)],
        "ml/projects/*/data/*.schema.yml": project_metrics.schema_problems,
        "ml/projects/*/endpoint/deployment.yml": partial(
            serving.code_problems, listing=cache(serving.included)
        ),
        **dict.fromkeys(
            ("ml/projects/*/features/*.yml", "ml/projects/*/features/*.yaml"), feature_set_problems
        ),
        "ml/projects/*/features/*/FeatureSetSpec.yaml": specification_problems,
        "ml/projects/*/select.yml": problems_of(lambda path: weights.read(path.parent)),
        "ml/projects/*/watch.yml": problems_of(lambda path: limits.read(path.parent)),
        "policies/promotion/gates.yml": problems_of(lambda path: gate_settings.load(policy=path)),
        "policies/promotion/watch.yml": problems_of(policy.load),
        "policies/promotion/canary.yml": problems_of(policy.load),
    }


def rule_waiver_problems(root: Path) -> Sequence[Problem]:
    """Return the errors of policies/infra/waivers.yml, and a warning for each expired waiver.

    `infra preview` checks the names of rules and resources, since only it has them.
    """
    from policies.waivers import lapsed, read_rule_waivers

    path = root / "policies" / "infra" / "waivers.yml"
    try:
        waivers = read_rule_waivers(path) if path.is_file() else ()
    except UserError as refused:
        return refused.problems
    return [*lapsed(waivers, datetime.now(UTC).date())]


def annotation(problem: Problem) -> str:
    """Return the GitHub workflow command that shows a problem beside its line in a pull request."""
    values = {"title": problem.code}
    if problem.place:
        values = {"file": problem.place.path, "line": str(problem.place.line), **values}
    properties = ",".join(f"{key}={_escaped(value, ':,')}" for key, value in values.items())
    words = [problem.actual]
    words += [f"expected: {problem.expected}"] if problem.expected else []
    words += [f"hint: {problem.hint}"] if problem.hint else []
    return f"::{problem.severity} {properties}::{_escaped(chr(10).join(words))}"


def _escaped(text: str, also: str = "") -> str:
    """Escape `%`, newlines and the characters in `also` (actions/toolkit, core/src/command.ts)."""
    for char in "%\r\n" + also:
        text = text.replace(char, f"%{ord(char):02X}")
    return text
