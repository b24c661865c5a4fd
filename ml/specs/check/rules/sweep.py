"""Checks sweeps: search space, sampling algorithm, early termination and limits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ml.specs.check.nodes import Node
from ml.specs.check.rules.rule import Finding, rule

_TUNE = "how-to-tune-hyperparameters"
_YAML = "reference-yaml-job-sweep"
_BAYESIAN = frozenset({"choice", "uniform", "quniform"})
_LOG = frozenset({"loguniform", "qloguniform"})


def algorithm(node: Node) -> str:
    """Return the name of the sampling algorithm in lower case; "random" by default."""
    written = node.get("sampling_algorithm")
    written = written.get("type") if isinstance(written, dict) else written
    return str(written or "random").lower()


def kind(distribution: Any) -> str:
    """Return the `type` of a distribution or policy in lower case; "" for anything else."""
    written = distribution.get("type") if isinstance(distribution, dict) else None
    return written.lower() if isinstance(written, str) else ""


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@rule("sweep-without-space", scope="sweep", source=_YAML)
def sweep_without_space(node: Node) -> Iterator[Finding]:
    """A sweep varies at least one hyperparameter."""
    if not node.search_space:
        hint = "search_space: {NAME: {type: choice, values: [1, 2]}}"
        yield Finding(("search_space",), "no `search_space`", "at least one hyperparameter", hint)


@rule("grid-continuous", scope="sweep", source=f"{_TUNE}: grid sampling takes choice alone")
def grid_continuous(node: Node) -> Iterator[Finding]:
    """Grid sampling tries every combination, so every hyperparameter is a choice."""
    if algorithm(node) != "grid":
        return
    for name, distribution in node.search_space.items():
        if kind(distribution) not in {"", "choice"}:
            yield Finding(
                ("search_space", name, "type"),
                f"grid sampling of `{name}`, which is {kind(distribution)}",
                "type: choice",
                "list its values, or use `sampling_algorithm: random`",
            )


@rule(
    "bayesian-distribution",
    scope="sweep",
    severity="warning",
    source=f"{_TUNE}: Bayesian sampling takes choice, uniform, quniform (public examples use more)",
)
def bayesian_distribution(node: Node) -> Iterator[Finding]:
    """Bayesian sampling uses choice, uniform and quniform, the only documented distributions."""
    if algorithm(node) != "bayesian":
        return
    for name, distribution in node.search_space.items():
        if kind(distribution) not in {"", *_BAYESIAN}:
            yield Finding(
                ("search_space", name, "type"),
                f"Bayesian sampling of `{name}`, which is {kind(distribution)}",
                "choice, uniform or quniform",
                "change its type, or use `sampling_algorithm: random`",
            )


@rule(
    "bayesian-early-termination",
    scope="sweep",
    severity="warning",
    source=f"{_TUNE}: Bayesian sampling supports no early termination (public examples use it)",
)
def bayesian_early_termination(node: Node) -> Iterator[Finding]:
    """Bayesian sampling is used without early termination, as documented."""
    policy = node.get("early_termination")
    if algorithm(node) == "bayesian" and policy:
        message = f"Bayesian sampling with {kind(policy) or 'early termination'}"
        yield Finding(("early_termination",), message, "no `early_termination`", "delete it")


@rule(
    "log-range",
    scope="sweep",
    severity="warning",
    source=f"{_TUNE}: loguniform draws exp(uniform(min_value, max_value))",
)
def log_range(node: Node) -> Iterator[Finding]:
    """The bounds of loguniform are exponents: its values are between e^min and e^max."""
    for name, distribution in node.search_space.items():
        low, high = (_number(node.get("search_space", name, k)) for k in ("min_value", "max_value"))
        if kind(distribution) not in _LOG or low is None or high is None:
            continue
        if _are_values(low, high):
            actual = (
                f"`{name}` ranges from {_power(low)} to {_power(high)} (e^{low:g} … e^{high:g})"
            )
            hint = f"for {low:g} … {high:g} write {math.log(low):.4g} and {math.log(high):.4g}"
            yield Finding(
                ("search_space", name),
                actual,
                "exponents as bounds: ln of the smallest and largest value",
                hint,
            )


def _are_values(low: float, high: float) -> bool:
    """Return True if the bounds of a log distribution look like values instead of exponents.

    Example: 8 … 256 as exponents would mean 2981 … 1.5e111.
    """
    return low > 0 and (low < 0.1 or high <= 1 or high > 20)


def _power(exponent: float) -> str:
    """Return e^exponent as text; "infinity" if it exceeds a float."""
    return f"{math.exp(exponent):.3g}" if exponent < 709 else "infinity"


@rule("distribution-bounds", scope="sweep", source=f"{_TUNE}, parameter expressions")
def distribution_bounds(node: Node) -> Iterator[Finding]:
    """min_value is at most max_value; sigma, q and upper are positive; a choice has values."""
    for name, distribution in node.search_space.items():
        keys = ("search_space", name)
        low, high = _number(node.get(*keys, "min_value")), _number(node.get(*keys, "max_value"))
        if low is not None and high is not None and low > high:
            message = f"`min_value` of `{name}` is {low:g}, more than `max_value`, {high:g}"
            yield Finding((*keys, "min_value"), message, "min_value below max_value", "swap them")
        for key in ("sigma", "q", "upper"):
            value = _number(node.get(*keys, key))
            if value is not None and value <= 0:
                yield Finding((*keys, key), f"`{key}` of `{name}` is {value:g}", "more than 0")
        if kind(distribution) == "choice" and not node.get(*keys, "values"):
            yield Finding(keys, f"`{name}` has no values to choose from", "values: [ … ]")


@rule("unused-search-space", scope="sweep", severity="warning", source=f"{_YAML}: search_space")
def unused_search_space(node: Node) -> Iterator[Finding]:
    """The trial's command uses every declared hyperparameter."""
    if node.command is None:
        return
    used, source = node.command[1], "search_space" if node.component is None else "inputs"
    for name, distribution in node.search_space.items():
        parameters = {str(name)}
        if kind(distribution) == "choice":
            values = node.get("search_space", name, "values") or []
            parameters |= {str(key) for value in values if isinstance(value, dict) for key in value}
        if not any(f"{source}.{parameter}" in used for parameter in parameters):
            yield Finding(
                ("search_space", name),
                f"`{name}` is never used in the command",
                f"`${{{{{source}.{name}}}}}` in the trial's command",
                f"add it there, or delete `{name}`",
            )


@rule("bandit-without-slack", scope="sweep", source=f"{_TUNE}: bandit policy")
def bandit_without_slack(node: Node) -> Iterator[Finding]:
    """A bandit policy sets `slack_factor` or `slack_amount`."""
    policy = node.mapping("early_termination")
    if kind(policy) == "bandit" and not (policy.get("slack_factor") or policy.get("slack_amount")):
        yield Finding(
            ("early_termination",),
            "bandit without slack",
            "`slack_factor` or `slack_amount`, more than 0",
            "add `slack_factor: 0.1`",
        )


@rule("truncation-percentage", scope="sweep", source=f"{_TUNE}: an integer between 1 and 99")
def truncation_percentage(node: Node) -> Iterator[Finding]:
    """The `truncation_percentage` of truncation selection is 1 to 99."""
    policy = node.mapping("early_termination")
    value = policy.get("truncation_percentage")
    if kind(policy) == "truncation_selection" and not 1 <= (_number(value) or 0) <= 99:
        keys, hint = ("early_termination", "truncation_percentage"), "truncation_percentage: 20"
        yield Finding(keys, f"`truncation_percentage` is {value}", "1 to 99", hint)


@rule("trial-limits", scope="sweep", source=f"{_YAML}: limits")
def trial_limits(node: Node) -> Iterator[Finding]:
    """max_total_trials is 1 to 1000; max_concurrent_trials is 1 to 100, and at most the total."""
    limits = node.mapping("limits")
    total, concurrent = (
        _number(limits.get(key)) for key in ("max_total_trials", "max_concurrent_trials")
    )
    for key, value, most in (
        ("max_total_trials", total, 1000),
        ("max_concurrent_trials", concurrent, 100),
    ):
        if value is not None and not 1 <= value <= most:
            hint = f"{key}: {min(most, max(1, value)):g}"
            yield Finding(("limits", key), f"`{key}` is {value:g}", f"1 to {most}", hint)
    if total is not None and concurrent is not None and concurrent > total >= 1:
        keys, hint = ("limits", "max_concurrent_trials"), f"max_concurrent_trials: {total:g}"
        actual = f"{concurrent:g} concurrent trials of {total:g} in all"
        yield Finding(keys, actual, f"at most {total:g}", hint)


@rule(
    "short-timeout",
    scope="sweep",
    severity="warning",
    source="azure-ai-ml 1.35, `_get_floored_timeout`",
)
def short_timeout(node: Node) -> Iterator[Finding]:
    """A sweep's timeouts are at least 60 s; the SDK replaces shorter ones by 60 s."""
    for key in ("timeout", "trial_timeout"):
        value = _number(node.get("limits", key))
        if value is not None and 0 < value < 60:
            message = f"`{key}` is {value:g} s; azure-ai-ml sends 60 s"
            yield Finding(("limits", key), message, "at least 60", f"{key}: 60")
