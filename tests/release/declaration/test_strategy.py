"""A project's canary strategy, and the shapes and bins of answers."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from ml.backends.traffic import Tally
from ml.release.canary import traffic, verdict
from ml.release.canary.traffic import REFERENCE, Answers, edges, prediction, shape
from ml.release.canary.verdict import Stats
from ml.release.declaration import release_file
from ml.release.declaration.release_file import Strategy, Tolerances


def test_without_a_word_the_defaults_hold() -> None:
    """An empty choice of everything is the same as none."""
    assert release_file.complete({}) == Strategy()


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ([10, 50, 100], (10, 50, 100)),
        ([20], (20, 100)),
        ([33, 66], (33, 66, 100)),
        ([7, 30, 99], (7, 30, 99, 100)),
    ],
)
def test_a_promotion_ends_at_100(steps: list[int], found: tuple[int, ...]) -> None:
    """Whatever the steps are, with a number of requests for each."""
    made = release_file.complete({"steps": steps})
    assert made.steps == found and len(made.requests) == len(found)


@pytest.mark.parametrize(
    ("tolerated", "p95_ms", "compared_from"),
    [(100.0, 200.0, 100.0), (100.0, 50.0, 25.0), (5.0, 50.0, 5.0)],
)
def test_latency_is_compared_from_half_of_the_limit(
    tolerated: float, p95_ms: float, compared_from: float
) -> None:
    """A project with a lower limit than the policy's needs no further setting."""
    made = Strategy(tolerances=Tolerances(latency_ms=tolerated)).within(p95_ms)
    assert made.tolerances == Tolerances(latency_ms=compared_from)


def test_mirroring_is_a_stage_before_the_steps() -> None:
    """With as many requests as the first step; its share of the false alarms is taken from all."""
    made = release_file.complete({"mirror": 20})
    assert [str(stage) for stage in made.stages] == ["a copy of 20 %", "10 %", "50 %", "100 %"]
    assert [stage.requests for stage in made.stages] == [150, 150, 600, 150]
    assert verdict.limit(made) > verdict.limit(Strategy())


def test_shapes_tell_schemas_apart_not_values() -> None:
    """The same fields with other values have one shape; another field, type or NaN another."""
    one = shape(json.loads('{"a": [{"b": 1, "c": "x"}], "d": null}'))
    assert one == shape(json.loads('{"d": null, "a": [{"c": "yy", "b": 2.5}, {"b": 0, "c": ""}]}'))
    others = ['{"a": [{"b": "1", "c": "x"}], "d": null}', '{"a": [], "d": null}', "[1]", "3"]
    others.append('{"a": [{"b": NaN, "c": "x"}], "d": null}')
    assert len({one, *(shape(json.loads(text)) for text in others)}) == 6


def test_a_pointer_reads_numbers_and_texts() -> None:
    """Anything else is nothing."""
    answer = {"answers": [{"score": 0.5, "id": "x", "none": None}], "flag": True}
    assert prediction(answer, "answers/0/score") == 0.5
    assert prediction(answer, "answers/0/id") == "x" and prediction(answer, "flag") == "True"
    for pointer in ("answers/1/id", "answers/x", "nothing", "answers", "answers/0/none"):
        assert prediction(answer, pointer) is None
    assert prediction({"score": float("nan")}, "score") is None
    assert prediction({"score": 10**400}, "score") is None


def test_bins_keep_close_values_together() -> None:
    """Few values: their borders lie between them. Many: as many bins as asked for, and two."""
    cuts = edges([1.0] * 30 + [2.0] * 30)
    assert len(cuts) == 3 and cuts[0] < 0.9 and 1.4 < cuts[1] < 1.6 and cuts[2] > 2.1
    assert len(edges([float(n) for n in range(1000)])) == traffic.BINS + 1
    assert edges([5.0]) == [2.5, 7.5]


def answered(
    answers: Answers, deployment: str, count: int, body: str | None, status: int = 200
) -> None:
    for _ in range(count):
        answers.add(deployment, status, body)


def test_the_first_answers_of_the_old_version_say_what_is_known() -> None:
    """Blue's and the baseline's alike; they are not counted. What comes after is, by bin and by
    whether the shape was seen, and the old version's together."""
    made = Answers("score", ("blue", "baseline"), "green")
    before = {name: asdict(Tally()) for name in ("blue", "baseline", "green")}
    after = {name: asdict(Tally(requests=5, errors=1)) for name in before}

    def sides() -> tuple[Stats, Stats]:
        green, old = ("green",), ("blue", "baseline")
        return made.side(before, after, green), made.side(before, after, old)

    answered(made, "green", 5, '{"score": 9}')
    answered(made, "blue", REFERENCE - 10, '{"score": 1}')
    answered(made, "baseline", 10, '{"score": 1}')
    answered(made, "blue", 3, '{"score": 1}')
    answered(made, "baseline", 2, '{"score": 1}')
    answered(made, "green", 2, '{"score": 9}')
    answered(made, "green", 1, '{"points": 9}')
    answered(made, "green", 1, "no JSON")
    answered(made, "green", 4, "{}", status=500)
    green, old = sides()
    assert (green.requests, green.errors, old.requests, old.errors) == (5, 1, 10, 2)
    assert (green.answers, green.unknown_shapes, old.answers, old.unknown_shapes) == (4, 2, 5, 0)
    assert sum(green.predictions) == 4 and sum(old.predictions) == 5
    assert not any(g and b for g, b in zip(green.predictions, old.predictions, strict=True))
    made.begin()
    assert sides()[0].answers == 0


@pytest.mark.parametrize(("known", "strange"), [('{"score": 1}', 3), (None, 0)])
def test_an_answer_too_long_to_be_recorded_has_a_shape(known: str | None, strange: int) -> None:
    """Strange where the old version's were short, and its own kind where they were as long; there
    is no prediction in it, so that too few are read where predictions are compared.
    """
    made = Answers("score", ("blue",), "green")
    tallies = {"blue": asdict(Tally()), "green": asdict(Tally())}
    answered(made, "blue", REFERENCE, known)
    answered(made, "green", 3, None)
    green = made.side(tallies, tallies, ("green",))
    assert (green.answers, green.unknown_shapes, sum(green.predictions)) == (3, strange, 0)


def green_strange(new_fields: list[str], old: list[str], green: str) -> int:
    """How many of three answers of green have a shape that those of the old version have not."""
    made = Answers("score", ("blue",), "green", new_fields)
    for body in old:
        answered(made, "blue", REFERENCE // len(old), body)
    answered(made, "green", 3, green)
    tallies = {"blue": asdict(Tally()), "green": asdict(Tally())}
    return made.side(tallies, tallies, ("green",)).unknown_shapes


OLD, NEW = '{"score": 1, "rows": [{"a": 1}]}', '{"score": 1, "rows": [{"a": 1, "b": "x"}]}'


@pytest.mark.parametrize(
    ("new_fields", "old", "green", "strange"),
    [
        (["rows/0/b"], [OLD], NEW, 0),
        (["rows/0/b", "why"], [OLD], NEW.replace('"score"', '"why": [], "score"'), 0),
        ([], [OLD], NEW, 3),
        (["rows/0/c"], [OLD], NEW, 3),
        (["rows/0/b"], [OLD], NEW.replace('"score": 1', '"score": "1"'), 3),
        # What the old version has is not new: neither gone nor of another kind, and not where it
        # is in some of its answers alone.
        (["score"], [OLD], OLD.replace('"score": 1, ', ""), 3),
        (["score"], [OLD], OLD.replace('"score": 1', '"score": []'), 3),
        (["rows"], [OLD], NEW, 3),
        (["rows/0/b"], [OLD, NEW], NEW.replace('"x"', "[]"), 3),
        (["rows/0/b"], [NEW], NEW.replace('"b"', '"c"'), 3),
    ],
    ids=[
        *("declared", "two", "not declared", "another", "beside another change"),
        *("gone", "of another kind", "what holds it", "known already", "expired"),
    ],
)
@pytest.mark.attack("A new field that is declared hides another change of the answers")
def test_a_new_field_is_known_once_it_is_declared(
    new_fields: list[str], old: list[str], green: str, strange: int
) -> None:
    """And hides nothing else."""
    assert green_strange(new_fields, old, green) == strange
