"""Whether a column still looks as it did: tests between a reference and what was seen. Pure.

Each is a test and a size. A test alone finds what does not matter once there are many rows, a size
alone is mostly chance while there are few (Yurdakul 2018, "Statistical properties of the population
stability index": the index of two samples of one kind is about (bins − 1)(1/n + 1/m)). A breach
takes both: the p-values are corrected together for how many there are, whatever the columns have to
do with each other (Benjamini, Yekutieli 2001, by scipy), so that a report of rows of the same kind
is a breach with a chance of at most `alpha`. Rows count as independent: a caller who asks the same
a hundred times is a hundred rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ml.release.watch.limits import Limits
from ml.toolkit.reference import MEASURES, clean, measures, words

# Rows that a group of categories must lead one to expect (Cochran 1954: at least 5).
_EXPECTED = 5.0
_NAMED = 5
Side = Literal["two-sided", "greater"]


@dataclass(frozen=True)
class Finding:
    """One comparison. `size` is in the unit of `limit`; `p` is corrected once all are together.

    `test` names both: "KS distance", "PSI", "missing", "loss".
    """

    column: str
    test: str
    size: float
    limit: float
    p: float
    said: str
    alpha: float

    @property
    def is_breach(self) -> bool:
        """Larger than chance, and large; a number that is none is a breach."""
        return not (self.p > self.alpha or self.size < self.limit)


def compare(
    name: str, reference: Mapping[str, Any], values: Sequence[object], limits: Limits
) -> list[Finding]:
    """Every comparison of one column; `values` has one of every row, None where there is none."""
    kind = reference["kind"]
    present = [of for value in values if (of := clean(kind, value)) is not None]
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
        # A text that the vocabulary was made of has fewer unknown words: no drift.
        side: Side = "greater" if is_unknown else "two-sided"
        kept = reference["measures"][measure]
        finding = _numeric(f"{name}: {measure}", kept, list(seen), limits, side)
        if is_unknown:
            finding = replace(finding, said=finding.said + _strangers(texts, vocabulary))
        findings.append(finding)
    return findings


def worsened(
    name: str, reference: Mapping[str, float], losses: Sequence[float], limits: Limits
) -> Finding:
    """Whether answers whose right one is known by now cost more than they did (Welch's test)."""
    from scipy.stats import ttest_ind_from_stats

    now = np.asarray(losses, dtype=np.float64)
    more = float(now.mean()) - reference["mean"]
    # Of losses that are all the same the deviation is no smaller than half of one row would make.
    least = 0.5 / len(now)
    p = ttest_ind_from_stats(
        *(float(now.mean()), max(float(now.std(ddof=1)), least), len(now)),
        *(reference["mean"], max(reference["deviation"], 1e-12), int(reference["rows"])),
        equal_var=False,
        alternative="greater",
    ).pvalue
    text = f"mean loss {reference['mean']:.3g} → {now.mean():.3g} over {len(now):,} labels"
    return Finding(name, "loss", more, limits.loss, float(p), text, limits.alpha)


def corrected(findings: Sequence[Finding]) -> list[Finding]:
    """The same with the p-values corrected for one another."""
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
) -> Finding:
    """Kolmogorov and Smirnov's test; its distance is the size. Ties make it say less, never more.

    "greater" asks only whether they are larger now. How far the values moved is told as well
    (Wasserstein's distance).
    """
    from scipy.stats import ks_2samp, wasserstein_distance

    test = ks_2samp(sample, values, alternative=side, method="asymp")
    moved = float(wasserstein_distance(sample, values))
    medians = f"median {np.median(sample):.4g} → {np.median(values):.4g}"
    return Finding(
        *(name, "KS distance", float(test.statistic), limits.distance, float(test.pvalue)),
        *(f"{medians}; moved by {moved:.3g} on average", limits.alpha),
    )


def _categorical(
    name: str, reference: Mapping[str, Any], values: Sequence[str], limits: Limits
) -> Finding:
    """Pearson's chi² over groups of categories, rare ones together; the size is PSI over them."""
    from scipy.stats import chi2_contingency

    counts: Mapping[str, int] = reference["counts"]
    seen = Counter(values)
    unseen = [value for value in seen if value not in counts]
    if reference["rest"]:  # a category that is not kept may have been among them
        seen = Counter({value: count for value, count in seen.items() if value in counts})
        seen[""] = len(values) - sum(seen.values())
        counts = {**counts, "": reference["rest"]}
        unseen = []
    then, now = _grouped(counts, seen)
    p = float(chi2_contingency(np.array([then, now])).pvalue) if len(then) > 1 else 1.0
    text = f"categories: {len(counts):,} then, {len(seen):,} now"
    if unseen:
        rows = sum(seen[value] for value in unseen)
        named = ", ".join(f"`{value[:40]}`" for value in unseen[:_NAMED])
        more = f" and {len(unseen) - _NAMED} more" if len(unseen) > _NAMED else ""
        counted = "1 row" if rows == 1 else f"{rows:,} rows"
        text += f"; never seen before, in {counted}: {named}{more}"
    return Finding(name, "PSI", psi(then, now), limits.psi, p, text, limits.alpha)


def psi(then: NDArray[np.float64], now: NDArray[np.float64]) -> float:
    """The population stability index, half a row added to every bin (Siddiqi 2006, "Credit risk
    scorecards": above 0.25 a shift; below 0.1 none to speak of).
    """
    before, after = ((of + 0.5) / (of.sum() + 0.5 * len(of)) for of in (then, now))
    return float(((after - before) * np.log(after / before)).sum())


def _grouped(
    then: Mapping[str, int], now: Mapping[str, int]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Counts of both by group: from the most frequent in both together down, each group large
    enough that either side is expected to have rows in it. Which belong together follows from the
    sums alone, which the test takes as given.
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
) -> Finding:
    """Fisher's exact test of how many values are missing or cannot be read."""
    from scipy.stats import fisher_exact

    then, of = int(reference["missing"]), int(reference["rows"])
    table = np.array([[then, of - then], [missing, rows - missing]])
    p = fisher_exact(table, alternative="less").pvalue
    share = missing / rows if rows else math.nan
    text = f"{then / of:.1%} → {share:.1%} of the rows without a value that can be read"
    return Finding(
        *(name, "missing", share - then / of, limits.missing, float(p)), text, limits.alpha
    )


def _strangers(texts: Sequence[str], vocabulary: frozenset[str]) -> str:
    counts = Counter(word for text in texts for word in set(words(text)) if word not in vocabulary)
    first = sorted(counts, key=lambda word: (-counts[word], word))[:_NAMED]
    return f"; unknown most often: {', '.join(first)}" if first else ""
