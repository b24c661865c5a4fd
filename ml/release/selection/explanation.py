"""The explanation of a selection: the first trial by each ranking, and why the rankings differ."""

from __future__ import annotations

from collections.abc import Iterator

from ml.release.selection.selection import NOT_LOGGED, Ranked, Selection
from ml.release.selection.weights import TERMS, Weights

# Terms worth less than this share of the largest difference are left out.
_MENTIONED = 0.05
# Latency and cost differences are stated as a factor if the ratio is at least this.
_FACTOR = 1.05


def sentences(selection: Selection) -> Iterator[str]:
    """Yield sentences about the rankings; the first names the chosen trial and the reason."""
    first, best = selection.by_score, selection.by_metric
    if first is None:
        yield f"{best.candidate.label} is first by {selection.metric}; none has a score"
    elif len(selection.ranked) == 1:
        yield f"{best.candidate.label} is the only one that is ranked"
    elif first.by_metric == 1:
        yield from _agreed(selection, first)
    else:
        differences = "; ".join(_differences(selection, first, best)) or "alike in every term"
        yield (
            f"{best.candidate.label} is first by {selection.metric}, "
            f"{first.candidate.label} by the score: {differences}"
        )
        if chance := _by_chance(selection, first, best):
            yield chance
    yield from _missing(selection)


def formula(selection: Selection) -> str:
    """Return the formula of the score, without terms of weight 0 or that no trial logged."""
    weights, goal = selection.weights, selection.goal
    parts = []
    for term in TERMS:
        setting = weights.term(term)
        if not setting.weight or term in selection.left_out:
            continue
        sign = "+" if term == "quality" and goal == "maximize" else "−"
        name = {"quality": selection.metric, "stability": "spread"}.get(term, term)
        unit = _UNITS.get(term)
        amount = f"{setting.reference:g} {unit}" if unit else _plain(selection, setting.reference)
        parts.append(f"{sign}{setting.weight:g} for each {amount} of {name}")
    return f"score: {', '.join(parts)}"


def scale(selection: Selection) -> str:
    """Return a sentence that explains the column `behind`: the distance from the best score."""
    quality = selection.weights.quality
    worth = _plain(selection, quality.reference / quality.weight)
    return f"behind = the best score − the trial's; 1 is worth {worth} of {selection.metric}"


_UNITS = {"latency": "ms", "cost": "s"}


def logged_as(term: str, metric: str, weights: Weights) -> str:
    """Return the names of the metrics that a trial logs for a term of the score, in backticks."""
    match term:
        case "latency":
            return f"`{weights.latency.metric}`"
        case "cost":
            both = [weights.cost.training]
            both += [weights.cost.prediction] if weights.cost.predictions else []
            return " and ".join(f"`{name}`" for name in both)
        case "stability":
            return f"`{weights.stability.metric or f'{metric}_std'}`"
        case _:
            return f"`{metric}`"


def _agreed(selection: Selection, first: Ranked) -> Iterator[str]:
    alike = [
        ranked for ranked in selection.ranked if ranked.score == first.score and ranked is not first
    ]
    yield f"{first.candidate.label} is first by {selection.metric} and by the score"
    if alike:
        names = ", ".join(ranked.candidate.label for ranked in alike[:3])
        more = f" and {len(alike) - 3} more" if len(alike) > 3 else ""
        yield f"level with it by the score: {names}{more}"


def _differences(selection: Selection, first: Ranked, best: Ranked) -> Iterator[str]:
    """Yield the difference in each term, first against best, and its share of the score."""
    worth = {
        term: first.parts[term] - best.parts[term]
        for term in TERMS
        if term in first.parts and term in best.parts
    }
    most = max(map(abs, worth.values()))
    for term, by in worth.items():
        if by and abs(by) >= _MENTIONED * most:
            ours, theirs = (ranked.candidate.terms[term] or 0.0 for ranked in (first, best))
            signed = f"{by:+.2f}".replace("-", "−")
            yield f"{_difference(selection, term, ours, theirs)} ({signed})"


def _difference(selection: Selection, term: str, ours: float, theirs: float) -> str:
    match term:
        case "quality":
            more = "more" if ours > theirs else "less"
            return f"{_plain(selection, abs(ours - theirs))} {more} {selection.metric}"
        case "stability":
            steady = "steadier" if ours < theirs else "less steady"
            spread, their_spread = _plain(selection, ours), _plain(selection, theirs)
            return f"{steady}, a spread of {spread} instead of {their_spread}"
        case _:
            fast, slow = ("faster", "slower") if term == "latency" else ("cheaper", "dearer")
            unit = "ms" if term == "latency" else "s of a node"
            small, large = sorted((ours, theirs))
            word = fast if ours < theirs else slow
            if small > 0 and large / small >= _FACTOR:
                times = large / small
                return f"{times:.0f} times {word}" if times >= 10 else f"{times:.1f} times {word}"
            return f"{_number(large - small)} {unit} {word}"


def _by_chance(selection: Selection, first: Ranked, best: Ranked) -> str:
    """Return a sentence if the loss of quality is within the spread over seeds, else ""."""
    terms = [ranked.candidate.terms for ranked in (first, best)]
    if "stability" in selection.left_out or first.missing or best.missing:
        return ""
    given_up = abs((terms[0]["quality"] or 0.0) - (terms[1]["quality"] or 0.0))
    spread = max(values["stability"] or 0.0 for values in terms)
    if not 0 < given_up < spread:
        return ""
    return (
        f"what it gives up in {selection.metric} is within the spread over seeds "
        f"({_plain(selection, spread)}), and may be chance"
    )


def _missing(selection: Selection) -> Iterator[str]:
    for term, why in selection.left_out.items():
        name = logged_as(term, selection.metric, selection.weights)
        of_all = (
            f"none of {len(selection.ranked)} logged" if why == NOT_LOGGED else f"{why} in every"
        )
        yield f"{term} is in no score: {of_all} {name}"
    for ranked in selection.ranked:
        if ranked.score is None:
            reasons = (
                f"{logged_as(term, selection.metric, selection.weights)} is {why}"
                for term, why in ranked.missing.items()
                if selection.weights.term(term).weight
            )
            yield f"{ranked.candidate.label} has no score: {'; '.join(reasons)}"


def _plain(selection: Selection, value: float) -> str:
    # Values are stated in percentage points if the unit of quality is 0.01.
    if selection.weights.quality.reference != 0.01:
        return _number(value)
    text = f"{100 * value:.2g}"
    return f"{text} point{'' if text == '1' else 's'}"


def _number(value: float) -> str:
    return f"{value:.3g}"
