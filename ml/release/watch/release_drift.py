"""Drift of an environment: live versus declared version, and requests versus the evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from ml.backends.base import Backend
from ml.core.errors import Exit, UserError
from ml.release.rollout.status import Status, status
from ml.release.watch.report import watch


@dataclass(frozen=True)
class Drift:
    """The drift of one project's release or of its model."""

    # "release": live and declared version differ; "model": requests or responses differ from
    # those of the model's evaluation.
    about: Literal["release", "model"]
    project: str
    environment: str
    words: str  # a sentence
    differences: Sequence[Mapping[str, str]] = ()  # each has `what`, `expected` and `actual`
    unknown: bool = False  # whether the drift could not be judged
    model: str = ""

    def to_json(self) -> Mapping[str, object]:
        """Return the drift as JSON-compatible values."""
        return asdict(self)


def drift(backend: Backend, environment: str, since: float | None = None) -> Iterator[Drift]:
    """Yield the drift of the release and of the model for each project that declares a version.

    Nothing is changed. `since` is as for `watch`. A model without collected requests is not judged.
    Raises UserError as `status` does, and if a request to the backend fails.
    """
    for state in status(backend, None, environment):
        if state.declared is not None:
            yield _release(state)
            if state.serving is not None:
                yield _model(backend, state, since)


def _release(state: Status) -> Drift:
    pairs = {
        "serving version": state.serving or "nothing serves",
        "champion": state.champion or "none",
    }
    rows = [
        {"what": what, "expected": str(state.declared), "actual": actual}
        for what, actual in pairs.items()
        if not state.as_declared
    ]
    return Drift(
        "release", state.project, state.environment, state.verdict, rows, model=state.model
    )


def _model(backend: Backend, state: Status, since: float | None) -> Drift:
    try:
        report = watch(backend, state.model, state.environment, since=since)
    except UserError as refused:
        if refused.exit_code != Exit.WRONG_CALL:
            raise
        words = state.failing or refused.problems[0].actual
        rows = [_responses(state.failing)] if state.failing else []
        where = state.project, state.environment
        return Drift("model", *where, words, rows, unknown=not rows, model=state.model)
    rows = [
        {
            "what": finding.column,
            "expected": f"{finding.test} below {finding.limit:.3g}",
            "actual": finding.sentence,
        }
        for finding in report.findings
        if finding.is_breach
    ]
    if report.failing:
        rows.append(_responses(report.failing))
    is_unknown = report.outcome == "too-few"
    return Drift(
        "model", state.project, state.environment, report.sentence, rows, is_unknown, state.model
    )


def _responses(failing: str) -> Mapping[str, str]:
    return {"what": "responses", "expected": "responses of the model", "actual": failing}
