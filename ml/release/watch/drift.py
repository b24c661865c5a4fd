"""Test the drift of a column between a reference and requests: p-value and effect size.

With many rows a test alone finds differences that do not matter; with few rows an effect size alone
is mostly chance (Yurdakul 2018, "Statistical properties of the population stability index": the
index of two samples of one distribution is about (bins − 1)(1/n + 1/m)). A breach needs both. The
p-values are corrected together, for columns of any dependence (Benjamini, Yekutieli 2001, by
scipy), so that a report on rows of the reference's distribution is a breach with a probability of
at most `alpha`. Rows count as independent: a request that is repeated a hundred times is a hundred
rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ml.measures.reference import MEASURES, clean, measures, words
from ml.release.watch.limits import Limits

# The expected rows in each group of categories (Cochran 1954: at least 5).
_EXPECTED = 5.0
# Maximum of categories or words in a sentence, and of characters of each.
_NAMED, _LETTERS = 5, 80
Side = Literal["two-sided", "greater"]


@dataclass(frozen=True)
class Shift:
    """One comparison with the reference: a test and an effect size."""

    column: str
    test: str  # "KS distance", "PSI", "missing", "loss" or "hours" (the age of a feature set)
    size: float  # of the difference, in the unit of `limit`
    limit: float  # smallest size that is a breach
    p: float  # p-value, which `correct` corrects for the number of comparisons; 0 for "hours"
    sentence: str
    alpha: float  # largest p-value that is significant

    @property
    def is_breach(self) -> bool:
        """True if the shift is significant and large, or NaN."""
        return not (self.p > self.alpha or self.size < self.limit)

    @property
    def is_unchanged(self) -> bool:
        """True if nothing shifted or fewer values are missing; the report page collapses it."""
        return not self.is_breach and self.test not in ("loss", "hours") and self.size <= 0


def compare(
    name: str, reference: Mapping[str, Any], values: Sequence[object], limits: Limits
) -> list[Shift]:
    """Return every comparison of a column; `values` has one per row, None if it is missing."""
    kind = reference["kind"]
    present = [clear for value in values if (clear := clean(kind, value)) is not None]
    findings = [_missing(name, reference, len(values), len(values) - len(present), limits)]
    if len(present) < limits.min_rows:
        return findings
    if kind == "numeric":
        numbers = [float(value) for value in present]
        return [*findings, _numeric(name, reference["sample"], numbers, limits)]
    if kind == "categorical":
        return [*findings, _categorical(name, reference, [str(value) for value in present], limits)]
    vocabulary = frozenset(reference["vocabulary"])
    texts = [str(value) for value in present]
    columns = zip(*(measures(text, vocabulary) for text in texts), strict=True)
    for measure, seen in zip(MEASURES, columns, strict=True):
        is_unknown = measure == MEASURES[-1]
        # The reference's own texts have fewer unknown words; fewer is not drift.
        side: Side = "greater" if is_unknown else "two-sided"
        sample = reference["measures"][measure]
        finding = _numeric(f"{name}: {measure}", sample, list(seen), limits, side)
        if is_unknown:
            finding = replace(
                finding, sentence=finding.sentence + _unknown_words(texts, vocabulary)
            )
        findings.append(finding)
    return findings


def compare_losses(
    name: str, reference: Mapping[str, float], losses: Sequence[float], limits: Limits
) -> Shift:
    """Return Welch's test of whether the mean loss of labelled responses has risen."""
    from scipy.stats import ttest_ind_from_stats

    now = np.asarray(losses, dtype=np.float64)
    more = float(now.mean()) - reference["mean"]
    # Equal losses have a deviation of 0: assume at least that of half a row.
    least = 0.5 / len(now)
    p = ttest_ind_from_stats(
        mean1=float(now.mean()),
        std1=max(float(now.std(ddof=1)), least),
        nobs1=len(now),
        mean2=reference["mean"],
        std2=max(reference["deviation"], 1e-12),
        nobs2=int(reference["rows"]),
        equal_var=False,
        alternative="greater",
    ).pvalue
    text = f"mean loss {reference['mean']:.3g} → {now.mean():.3g} over {len(now):,} labels"
    return Shift(name, "loss", more, limits.loss, float(p), text, limits.alpha)


def correct(findings: Sequence[Shift]) -> list[Shift]:
    """Return the findings with p-values corrected for multiple comparisons."""
    from scipy.stats import false_discovery_control

    if not findings:
        return []
    ps = false_discovery_control([finding.p for finding in findings], method="by")
    return [replace(finding, p=float(p)) for finding, p in zip(findings, ps, strict=True)]


def _numeric(
    name: str,
    sample: Sequence[float],
    values: Sequence[float],
    limits: Limits,
    side: Side = "two-sided",
) -> Shift:
    """Return the two-sample Kolmogorov-Smirnov test, whose distance is the size.

    Ties make it conservative. `side` "greater" tests only for larger values. The sentence also
    states the Wasserstein distance.
    """
    from scipy.stats import ks_2samp, wasserstein_distance

    test = ks_2samp(sample, values, alternative=side, method="asymp")
    moved = float(wasserstein_distance(sample, values))
    medians = f"median {np.median(sample):.4g} → {np.median(values):.4g}"
    size, p = float(test.statistic), float(test.pvalue)
    sentence = f"{medians}; moved by {moved:.3g} on average"
    return Shift(name, "KS distance", size, limits.distance, p, sentence, limits.alpha)


def _categorical(
    name: str, reference: Mapping[str, Any], values: Sequence[str], limits: Limits
) -> Shift:
    """Return Pearson's chi² test over groups of categories, rare ones pooled; the size is PSI."""
    from scipy.stats import chi2_contingency

    counts: Mapping[str, int] = reference["counts"]
    seen = Counter(values)
    unseen = [value for value in seen if value not in counts]
    if reference["rest"]:  # the reference lists only its most frequent categories
        seen = Counter({value: count for value, count in seen.items() if value in counts})
        seen[""] = len(values) - sum(seen.values())
        counts, unseen = {**counts, "": reference["rest"]}, []
    then, now = _grouped(counts, seen)
    p = float(chi2_contingency(np.array([then, now])).pvalue) if len(then) > 1 else 1.0
    text = f"categories: {len(counts):,} then, {len(seen):,} now"
    if unseen:
        rows = sum(seen[value] for value in unseen)
        named = ", ".join(f"`{_excerpt(value, counts)}`" for value in unseen[:_NAMED])
        more = f" and {len(unseen) - _NAMED} more" if len(unseen) > _NAMED else ""
        counted = "1 row" if rows == 1 else f"{rows:,} rows"
        text += f"; never seen before, in {counted}: {named}{more}"
    return Shift(name, "PSI", psi(then, now), limits.psi, p, text, limits.alpha)


def _excerpt(value: str, known: Iterable[str]) -> str:
    """Return at most _LETTERS characters of a value, from where it differs from known values."""
    alike = max((_alike(value, text) for text in known), default=0)
    first = alike - _LETTERS // 4 if alike >= _LETTERS // 2 else 0
    first = max(0, min(first, len(value) - _LETTERS))
    end = first + _LETTERS
    return "…" * (first > 0) + value[first:end] + "…" * (end < len(value))


def _alike(value: str, text: str) -> int:
    """Return the length of the common prefix of two texts."""
    pairs = enumerate(zip(value, text, strict=False))
    return next((position for position, (a, b) in pairs if a != b), min(len(value), len(text)))


def psi(then: NDArray[np.float64], now: NDArray[np.float64]) -> float:
    """Return the population stability index, with half a row added to every bin.

    Siddiqi 2006, "Credit risk scorecards": above 0.25 a shift, below 0.1 hardly any.
    """
    before, after = ((rows + 0.5) / (rows.sum() + 0.5 * len(rows)) for rows in (then, now))
    return float(((after - before) * np.log(after / before)).sum())


def _grouped(
    then: Mapping[str, int], now: Mapping[str, int]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return both samples' counts per group of categories, the most frequent ones first.

    Each group has at least _EXPECTED expected rows in both samples. The grouping depends only on
    the samples' sums, on which the test is conditional.
    """
    totals = Counter(then) + Counter(now)
    smaller = min(sum(then.values()), sum(now.values())) / max(sum(totals.values()), 1)
    groups: list[list[float]] = []
    room = 0.0
    for value, total in sorted(totals.items(), key=lambda item: (-item[1], item[0])):
        if not groups or room >= _EXPECTED:
            groups.append([0.0, 0.0])
            room = 0.0
        groups[-1][0] += then.get(value, 0)
        groups[-1][1] += now.get(value, 0)
        room += total * smaller
    if len(groups) > 1 and room < _EXPECTED:
        last = groups.pop()
        groups[-1] = [a + b for a, b in zip(groups[-1], last, strict=True)]
    counts = np.array(groups, dtype=np.float64)
    return counts[:, 0], counts[:, 1]


def _missing(
    name: str, reference: Mapping[str, Any], rows: int, missing: int, limits: Limits
) -> Shift:
    """Return Fisher's exact test of the share of values that are missing or unreadable."""
    from scipy.stats import fisher_exact

    then, rows_then = int(reference["missing"]), int(reference["rows"])
    table = np.array([[then, rows_then - then], [missing, rows - missing]])
    p = fisher_exact(table, alternative="less").pvalue
    share = missing / rows if rows else math.nan
    text = (
        f"{then:,} of {rows_then:,} rows had no value that can be read, {missing:,} of {rows:,} now"
    )
    more = share - then / rows_then
    return Shift(name, "missing", more, limits.missing, float(p), text, limits.alpha)


def _unknown_words(texts: Sequence[str], vocabulary: frozenset[str]) -> str:
    counts = Counter(word for text in texts for word in set(words(text)) if word not in vocabulary)
    first = sorted(counts, key=lambda word: (-counts[word], word))[:_NAMED]
    return f"; unknown most often: {', '.join(first)}" if first else ""
