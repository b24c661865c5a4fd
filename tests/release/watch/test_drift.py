"""ml.release.watch.drift: false alarms at the stated level, and each kind of drift found."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_ind

from ml.measures.reference import summary
from ml.release.watch import drift
from ml.release.watch.drift import Shift
from ml.release.watch.limits import Limits
from ml.release.watch.requests import Row
from tests.release.watch.kinds import columns, question, summaries

UNKNOWN = "question: unknown words"
# Sizes so small that only the tests decide: what is simulated is the chance itself.
TESTS_ALONE = Limits(alpha=0.05, distance=1e-9, psi=1e-9, missing=1e-9, loss=1e-9)


def findings(reference: dict[str, Any], seen: dict[str, list[Any]], limits: Limits) -> list[Shift]:
    """Every comparison, corrected."""
    return drift.correct(
        [
            one
            for name, of in reference.items()
            for one in drift.compare(name, of, seen[name], limits)
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize(("then", "now"), [(400, 60), (300, 600)])
def test_rows_of_the_same_kind_are_a_breach_as_rarely_as_stated(then: int, now: int) -> None:
    """200 reports of eleven comparisons at a level of 0.05, the tests alone deciding."""
    rng, reports, alarms = np.random.default_rng(0), 200, 0
    for _ in range(reports):
        reference = summaries(columns(rng, then))
        seen = {name: values for name, (_, values) in columns(rng, now).items()}
        alarms += any(one.is_breach for one in findings(reference, seen, TESTS_ALONE))
    assert alarms / reports <= 0.05


def change(name: str, to: Callable[[Any, np.random.Generator], Any]) -> tuple[str, Any]:
    """A drift of one column."""
    return name, to


@pytest.mark.parametrize(
    ("drifted", "column", "test"),
    [
        (change("amount", lambda v, _: v and v * 2), "amount", "KS distance"),
        (change("amount", lambda v, _: 1.0), "amount", "KS distance"),
        (change("amount", lambda v, _: v and v * 1000), "amount", "KS distance"),
        (change("count", lambda v, r: v + r.poisson(1)), "count", "KS distance"),
        (change("entry", lambda v, _: 3), "entry", "PSI"),
        (change("entry", lambda v, r: int(r.integers(60))), "entry", "PSI"),
        (change("entry", lambda v, r: "new" if r.random() < 0.3 else v), "entry", "PSI"),
        (change("rare", lambda v, r: "yes" if r.random() < 0.3 else v), "rare", "PSI"),
        (change("question", lambda _, r: question(r, other=True)), UNKNOWN, "KS distance"),
        (change("question", lambda v, r: v + " " + v), "question: words", "KS distance"),
        (change("amount", lambda v, r: None if r.random() < 0.3 else v), "amount", "missing"),
        (change("amount", lambda v, r: math.nan if r.random() < 0.3 else v), "amount", "missing"),
        (change("amount", lambda v, r: "12" if r.random() < 0.3 else v), "amount", "missing"),
        (change("question", lambda v, r: " " if r.random() < 0.3 else v), "question", "missing"),
    ],
)  # fmt: skip
def test_each_kind_of_drift_is_found_and_no_other(
    drifted: tuple[str, Any], column: str, test: str
) -> None:
    """In 300 rows; the columns that did not drift are none."""
    rng = np.random.default_rng(1)
    reference = summaries(columns(rng, 600))
    seen = {name: values for name, (_, values) in columns(rng, 300).items()}
    name, to = drifted
    seen[name] = [to(value, rng) for value in seen[name]]
    found = {(one.column, one.test) for one in findings(reference, seen, Limits()) if one.is_breach}
    assert (column, test) in found
    assert {one.partition(":")[0] for one, _ in found} == {name}


def test_a_constant_column_stays_one_or_does_not() -> None:
    """The same constant is no drift; another one is, and so is a column that begins to vary."""
    reference = {
        "flag": summary("numeric", [1.0] * 200),
        "kind": summary("categorical", ["a"] * 200),
    }
    same = {"flag": [1.0] * 100, "kind": ["a"] * 100}
    assert not any(one.is_breach for one in findings(reference, same, Limits()))
    other = {"flag": [0.0] * 100, "kind": ["b"] * 100}
    assert {one.column for one in findings(reference, other, Limits()) if one.is_breach} == {
        "flag",
        "kind",
    }


def test_unseen_categories_are_named() -> None:
    """And the words that no text had."""
    reference = {
        "kind": summary("categorical", ["a", "b"] * 100),
        "text": summary("text", ["how to run a job"] * 200),
    }
    seen = {"kind": ["a"] * 60 + ["z"] * 40, "text": ["bonjour"] * 100}
    said = {one.column: one.sentence for one in findings(reference, seen, Limits())}
    assert said["kind"].startswith("categories: 2 then, 2 now; never")
    assert "in 40 rows: `z`" in said["kind"] and "bonjour" in said["text: unknown words"]


def test_a_value_that_is_new_is_told_from_those_that_are_known() -> None:
    """Long texts begin alike: what is shown is where they differ, and a cut has an ellipsis."""
    start = "How do I run the training job of a project on spot nodes of our cluster "
    known = [start + "when", start + "so that it goes on " + "x" * 80]
    new = [start + "where", start + "so that it goes on " + "x" * 80 + " and ends"]
    reference = {"kind": summary("categorical", known * 100)}
    (finding,) = findings(reference, {"kind": [*known, *new] * 25}, Limits())[1:]
    shown = re.findall("`(.*?)`", finding.sentence)
    assert shown[0] == new[0] and shown[1].startswith("…") and shown[1].endswith("x and ends")
    assert not any(text.strip("…") in seen for text in shown for seen in known)
    endless = findings(reference, {"kind": ["z" * 9000] * 100}, Limits())[1]
    (text,) = re.findall("`(.*?)`", endless.sentence)
    assert len(text) < 100 and text.endswith("…")


def test_missing_values_are_counted_in_rows() -> None:
    """A share of one in ten thousand is no 0.0%."""
    reference = {"x": summary("numeric", [1.0] * 9999 + [None])}
    (missing, _) = findings(reference, {"x": [1.0] * 97 + [None] * 3}, Limits())
    assert missing.sentence == "1 of 10,000 rows had no value that can be read, 3 of 100 now"


def test_a_category_that_is_a_whole_number_is_no_other_in_a_request() -> None:
    """An evaluation has 1, a request's JSON may have 1 or 1.0: one category."""
    reference = {"kind": summary("categorical", [0, 1] * 100)}
    for seen in ([0, 1], [0.0, 1.0]):
        rows = [Row("", {"kind": value}, None) for value in seen * 50]
        found = findings(reference, {"kind": [row.value("kind") for row in rows]}, Limits())
        assert not any(one.is_breach for one in found), found


def test_too_few_values_are_not_judged() -> None:
    """Only whether they are missing: 40 of 100 rows have one."""
    reference = {"amount": summary("numeric", [1.0, 2.0] * 100)}
    found = findings(reference, {"amount": [5.0] * 40 + [None] * 60}, Limits())
    assert [(one.test, one.is_breach) for one in found] == [("missing", True)]


def test_a_number_that_is_none_is_a_breach() -> None:
    """NaN compares false with every limit."""
    for size, p in ((math.nan, 0.5), (math.nan, 0.0), (1.0, math.nan)):
        one = Shift("x", "PSI", size, 0.25, p, "", 0.01)
        assert one.is_breach is (p != 0.5)


def test_quality_is_worse_or_not() -> None:
    """Half of the answers wrong where a fifth was; and as good as before."""
    kept = {"mean": 0.2, "deviation": 0.4, "rows": 400}
    rng = np.random.default_rng(0)
    for rate, breach in ((0.5, True), (0.2, False), (0.0, False), (1.0, True)):
        losses = (rng.random(200) < rate).astype(float).tolist()
        assert drift.compare_losses("entry", kept, losses, Limits()).is_breach is breach


def test_texts_that_the_vocabulary_was_made_of_are_no_drift() -> None:
    """Asking the training questions again is not strange, though every word is known."""
    rng = np.random.default_rng(0)
    texts = [f"{question(rng)} {''.join(rng.choice(list('abcdefgh'), 3))}" for _ in range(600)]
    reference = {"question": summary("text", texts)}
    known = frozenset(reference["question"]["vocabulary"])
    seen = [" ".join(word for word in text.split() if word in known) for text in texts[:200]]
    found = findings(reference, {"question": seen}, Limits())
    assert [one for one in found if "unknown" in one.column and one.is_breach] == []


def test_sizes_and_chances_are_those_of_the_books() -> None:
    """Each reckoned here in another way than the code does."""
    rng = np.random.default_rng(4)
    then, now = rng.normal(0, 1, 300), rng.normal(0.4, 1.3, 200)
    (_, one) = drift.compare("x", summary("numeric", then.tolist()), now.tolist(), Limits())
    at = np.concatenate([then, now])
    shares = [(of[:, None] <= at).mean(axis=0) for of in (then, now)]
    assert one.size == pytest.approx(np.abs(shares[0] - shares[1]).max())
    root = one.size * math.sqrt(300 * 200 / 500)
    tail = 2 * sum((-1) ** (k - 1) * math.exp(-2 * k * k * root * root) for k in range(1, 50))
    assert one.p == pytest.approx(tail, rel=0.2)  # Kolmogorov's series is the limit of large counts
    levels = (np.arange(60_000) + 0.5) / 60_000  # Wasserstein's: between the quantiles
    quantiles = [np.quantile(of, levels, method="inverted_cdf") for of in (then, now)]
    moved = np.abs(quantiles[0] - quantiles[1]).mean()
    assert f"moved by {moved:.3g} on average" in one.sentence

    reference = summary("categorical", ["a"] * 100 + ["b"] * 100 + ["c"] * 200)
    (none, two) = drift.compare("x", reference, ["a"] * 90 + ["b"] * 50 + ["c"] * 60, Limits())
    counts = np.array([[100, 100, 200], [90, 50, 60]])
    before, after = ((of + 0.5) / (of + 0.5).sum() for of in counts)
    assert two.size == pytest.approx(((after - before) * np.log(after / before)).sum())
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / counts.sum()
    squares = ((counts - expected) ** 2 / expected).sum()
    assert two.p == pytest.approx(math.exp(-squares / 2))  # chi² of two degrees of freedom
    assert none.p == pytest.approx(1)

    holes = summary("numeric", [1.0] * 95 + [None] * 5)
    missing, *_ = drift.compare("x", holes, [1.0] * 40 + [None] * 10, Limits())
    ways = [math.comb(15, k) * math.comb(135, 50 - k) / math.comb(150, 50) for k in range(10, 16)]
    assert missing.size == pytest.approx(0.15) and missing.p == pytest.approx(sum(ways))

    losses = [rng.gamma(2, scale, count) for scale, count in ((1, 400), (1.2, 150))]
    mean, spread = losses[0].mean(), losses[0].std(ddof=1)
    kept = {"mean": mean, "deviation": spread, "rows": 400}
    worse = drift.compare_losses("x", kept, losses[1].tolist(), Limits())
    welch = ttest_ind(losses[1], losses[0], equal_var=False, alternative="greater").pvalue
    assert worse.p == pytest.approx(welch)


def test_the_correction_is_benjamini_s_and_yekutieli_s() -> None:
    """p m (1 + 1/2 + … + 1/m) / rank, no smaller than that of a larger p: of all of a report."""
    ps = [0.04, 0.001, 0.5, 0.01, 0.02]
    found = drift.correct([Shift("x", "PSI", 1.0, 0.25, p, "", 0.01) for p in ps])
    sums = 5 * sum(1 / rank for rank in range(1, 6))
    by_rank = [p * sums / rank for rank, p in enumerate(sorted(ps), 1)]
    corrected = [min(1.0, *by_rank[rank:]) for rank in range(5)]
    assert sorted(one.p for one in found) == pytest.approx(sorted(corrected))
    assert [one.is_breach for one in found] == [False] * 5
    assert drift.correct([found[0]])[0].p == pytest.approx(found[0].p)
