"""A selection in words: which trial is first by what, and why the two rankings differ."""

from __future__ import annotations

from collections.abc import Iterator

from ml.release.selection.selection import NOT_LOGGED, Ranked, Selection
from ml.release.selection.weights import TERMS, Weights

# What is worth less than this share of the largest difference is not told.
_TOLD = 0.05
# Faster and cheaper are factors where one is at least so many times the other.
_FACTOR = 1.05


def sentences(made: Selection) -> Iterator[str]:
    """What a person is told of the rankings; the first says which trial is chosen and why."""
    first, best = made.by_score, made.by_metric
    if first is None:
        yield f"{best.contender.label} is first by {made.metric}; none has a score"
    elif len(made.ranked) == 1:
        yield f"{best.contender.label} is the only one that is ranked"
    elif first.by_metric == 1:
        yield from _agreed(made, first)
    else:
        yield (
            f"{best.contender.label} is first by {made.metric}, {first.contender.label} by the "
            f"score: {'; '.join(_differences(made, first, best)) or 'alike in every term'}"
        )
        if chance := _by_chance(made, first, best):
            yield chance
    yield from _missing(made)


def formula(made: Selection) -> str:
    """The score as it was reckoned, without the terms that weigh nothing or are in no score."""
    weights, goal = made.weights, made.goal
    parts = []
    for term in TERMS:
        of = weights.of(term)
        if not of.weight or term in made.left_out:
            continue
        sign = "" if term == "quality" and goal == "maximize" else "− "
        name = "spread" if term == "stability" else term
        weight = "" if of.weight == 1 else f"{of.weight:g} · "
        scale = "" if of.reference == 1 else f" ÷ {of.reference:g}"
        parts.append(f"{sign}{weight}{name}{scale}{_UNITS.get(term, '')}")
    said = " + ".join(parts).replace("+ − ", "− ")
    return f"score = {said}"


_UNITS = {"latency": " ms", "cost": " s"}


def logged_as(term: str, metric: str, weights: Weights) -> str:
    """The metrics that a trial logs for a term."""
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


def _agreed(made: Selection, first: Ranked) -> Iterator[str]:
    alike = [one for one in made.ranked if one.score == first.score and one is not first]
    yield f"{first.contender.label} is first by {made.metric} and by the score"
    if alike:
        names = ", ".join(one.contender.label for one in alike[:3])
        more = f" and {len(alike) - 3} more" if len(alike) > 3 else ""
        yield f"level with it by the score: {names}{more}"


def _differences(made: Selection, first: Ranked, best: Ranked) -> Iterator[str]:
    """Term by term, first against best: by how much, and what it is worth in the score."""
    worth = {
        term: first.parts[term] - best.parts[term]
        for term in TERMS
        if term in first.parts and term in best.parts
    }
    most = max(map(abs, worth.values()))
    for term, by in worth.items():
        if by and abs(by) >= _TOLD * most:
            ours, theirs = (one.contender.terms[term] or 0.0 for one in (first, best))
            yield f"{_difference(made, term, ours, theirs)} ({_signed(by)})"


def _difference(made: Selection, term: str, ours: float, theirs: float) -> str:
    match term:
        case "quality":
            return f"{_amount(made, ours - theirs)} {made.metric}"
        case "stability":
            steady = "steadier" if ours < theirs else "less steady"
            return f"{steady}, a spread of {_plain(made, ours)} instead of {_plain(made, theirs)}"
        case _:
            fast, slow = ("faster", "slower") if term == "latency" else ("cheaper", "dearer")
            unit = "ms" if term == "latency" else "s of a node"
            small, large = sorted((ours, theirs))
            word = fast if ours < theirs else slow
            if small > 0 and large / small >= _FACTOR:
                return f"{_times(large / small)} times {word}"
            return f"{_number(large - small)} {unit} {word}"


def _by_chance(made: Selection, first: Ranked, best: Ranked) -> str:
    """Said when what the score gives up in quality is within the spread over seeds."""
    terms = [one.contender.terms for one in (first, best)]
    if "stability" in made.left_out or first.missing or best.missing:
        return ""
    given_up = abs((terms[0]["quality"] or 0.0) - (terms[1]["quality"] or 0.0))
    spread = max(of["stability"] or 0.0 for of in terms)
    if not 0 < given_up < spread:
        return ""
    return (
        f"what it gives up in {made.metric} is within the spread over seeds "
        f"({_plain(made, spread)}), and may be chance"
    )


def _missing(made: Selection) -> Iterator[str]:
    for term, why in made.left_out.items():
        name = logged_as(term, made.metric, made.weights)
        of_all = f"none of {len(made.ranked)} logged" if why == NOT_LOGGED else f"{why} in every"
        yield f"{term} is in no score: {of_all} {name}"
    for one in made.ranked:
        if one.score is None:
            said = (
                f"{logged_as(term, made.metric, made.weights)} is {why}"
                for term, why in one.missing.items()
                if made.weights.of(term).weight
            )
            yield f"{one.contender.label} has no score: {'; '.join(said)}"


def _points(made: Selection) -> bool:
    # A share is spoken of in points, where the project reckons in them.
    return made.weights.quality.reference == 0.01


def _amount(made: Selection, by: float) -> str:
    return f"{_plain(made, abs(by))} {'more' if by > 0 else 'less'}"


def _plain(made: Selection, value: float) -> str:
    if not _points(made):
        return _number(value)
    said = f"{100 * value:.2g}"
    return f"{said} point{'' if said == '1' else 's'}"


def _number(value: float) -> str:
    return f"{value:.3g}"


def _times(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")
