"""How a trial looks in every chart: its colour by rank, and what it says under the pointer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ml.reports import origins
from ml.reports.charts.frame import evenly
from ml.reports.numbers import number, short
from ml.reports.privacy import plain, shown
from ml.reports.sweeps import Sweep, Trial

# Parameters under the pointer; the table has them all.
_NAMED = 12
# Letters of the reason why a trial ended as it did.
LONGEST = 160


def styles(sweep: Sweep) -> Mapping[int, str]:
    """Trial number → class: best, q5 (best fifth) … q1 of the ranked, stopped, failed."""
    ranked = sweep.ranked
    found = {trial.number: f"q{5 - 5 * place // len(ranked)}" for place, trial in enumerate(ranked)}
    for trial in sweep.trials:
        if trial.number not in found:
            found[trial.number] = "stopped" if trial.outcome == "stopped" else "failed"
    if sweep.best:
        found[sweep.best.number] = "best"
    return found


def words(sweep: Sweep, trial: Trial) -> str:
    """The trial in a sentence."""
    value = "no value" if trial.value is None else f"{short(sweep.metric)} {number(trial.value)}"
    given = [
        f"{short(name)}={short(shown(name, trial.run.parameters[name]))}"
        for name in sweep.varied[:_NAMED]
        if name in trial.run.parameters
    ]
    ended = {"stopped": "stopped early", "unranked": "not ranked"}.get(trial.outcome, trial.outcome)
    why = f" ({trial.why[:LONGEST]})" if trial.why else ""
    came = f"\n{plain(origins.sentence(trial.origin))[:LONGEST]}" if trial.origin else ""
    return f"trial {trial.number}: {value}, {ended}{why}\n{', '.join(given)}{came}"


def sample(sweep: Sweep, trials: Sequence[Trial], most: int) -> list[Trial]:
    """At most `most` of the trials, in their order: the best fifth of them, the others evenly."""
    if len(trials) <= most:
        return list(trials)
    here = {trial.number: trial for trial in trials}
    top = [trial.number for trial in sweep.ranked if trial.number in here][: most // 5]
    rest = [number for number in here if number not in set(top)]
    chosen = set(top) | set(evenly(rest, most - len(top)))
    return [trial for trial in trials if trial.number in chosen]


def drawn_in_order(sweep: Sweep, trials: Sequence[Trial]) -> list[Trial]:
    """What is to be seen on top comes last: the unranked first, then from worst to best."""
    rank = {trial.number: place for place, trial in enumerate(sweep.ranked)}
    return sorted(trials, key=lambda trial: -rank.get(trial.number, len(rank)))
