"""The top of the page: the verdict, the run at a glance, what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ml.reports import verdict
from ml.reports.facts import Facts
from ml.reports.markup import Html, join, table, tag
from ml.reports.numbers import count, duration
from ml.reports.privacy import headline, plain
from ml.reports.sweeps import Sweep

OUTCOMES = {
    "completed": "completed",
    "stopped": "stopped early by a policy",
    "unranked": "completed, not ranked",
    "failed": "failed",
    "canceled": "canceled",
    "running": "still running",
}
# Different reasons that are listed.
REASONS = 8


def summary(facts: Facts) -> Html:
    """The header of the page."""
    first, *rest = verdict.sentences(facts)
    return tag(
        "header",
        tag(
            "p",
            *(join([tag("span", s, class_=f"pill {t}"), " "]) for s, t in verdict.signs(facts)),
            "sweep" if facts.sweep else "pipeline" if facts.steps else "job",
            " · ",
            facts.run.experiment,
        ),
        tag("h1", facts.run.name),
        tag("p", tag("strong", first), *(join([" ", one]) for one in rest), class_="verdict"),
        _glance(facts),
        *(tag("p", note, class_="problem") for note in facts.notes),
    )


def problems(facts: Facts) -> Html | None:
    """Why the run failed, and its warnings; None without either."""
    found = [problem for problem in (facts.run.error, *facts.run.warnings) if problem]
    if not found:
        return None
    return tag(
        "section",
        tag("h2", "What went wrong" if facts.run.error else "Warnings"),
        *(
            tag(
                "div",
                tag("p", tag("strong", problem.code), f" {problem.place or ''}"),
                tag("pre", headline(problem) if facts.told else plain(problem.found)),
                tag("p", f"Expected: {problem.expected}") if problem.expected else None,
                tag("p", f"Next: {problem.hint}") if problem.hint else None,
                class_=f"problem {problem.severity}",
            )
            for problem in found
        ),
    )


def outcomes(sweep: Sweep) -> Html | None:
    """How the trials ended that did not complete, by reason; None when all completed."""
    reasons: Counter[tuple[str, str]] = Counter()
    for trial in sweep.trials:
        if trial.outcome != "completed":
            # The reason without its numbers: the policy's name, the problem's code.
            reason = trial.why.partition(":")[0].partition(" at interval")[0]
            reasons[trial.outcome, reason] += 1
    if not reasons:
        return None
    rows = [
        [OUTCOMES[outcome], reason, number]
        for (outcome, reason), number in reasons.most_common(REASONS)
    ]
    done = len(sweep.of("completed"))
    more = len(reasons) - REASONS
    return join(
        [
            tag("h3", "How trials ended"),
            table(["outcome", "by", "trials"], [[OUTCOMES["completed"], "", done], *rows]),
            tag("p", f"and {count(more, 'other reason')}", class_="note") if more > 0 else "",
        ]
    )


def _glance(facts: Facts) -> Html:
    run, sweep = facts.run, facts.sweep
    code = facts.lineage.get("code") or {}
    rows: list[tuple[str, object]] = [
        ("started", datetime.fromtimestamp(run.started, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")),
        ("took", duration(run.ended - run.started) if run.ended else "not ended yet"),
        ("spec", facts.lineage.get("spec", "")),
        ("commit", _commit(code)),
    ]
    if sweep:
        rows += [
            ("objective", f"{sweep.goal} {sweep.metric}"),
            ("sampling", sweep.sampling),
            ("trials", "; ".join(_counts(sweep))),
        ]
    return tag("dl", *(join([tag("dt", name), tag("dd", said)]) for name, said in rows if said))


def _commit(code: Mapping[str, Any]) -> str:
    commit = str(code.get("commit") or "")[:12]
    return f"{commit}{' + changes' if code.get('dirty') else ''}" if commit else "none"


def _counts(sweep: Sweep) -> list[str]:
    found = Counter(trial.outcome for trial in sweep.trials)
    return [f"{number:,} {OUTCOMES[outcome]}" for outcome, number in found.most_common()]
