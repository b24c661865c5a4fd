"""Train boosted trees in resumable segments; explain LightGBM models by TreeSHAP."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.measures.contributions import Contributions
from ml.toolkit.training.segments import PATIENCE, ROUNDS, Segments, identity_of

# Relative tolerance of contributions, which are float64 sums over a few hundred trees.
ROUNDING = 1e-6


def threads() -> int:
    """Return the number of threads: OMP_NUM_THREADS if it is set, else the available cores."""
    return int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))


class NotAdditive(ValueError):
    """Raised if contributions do not add up to the score, so they do not explain it."""


def contributions(booster: Any, rows: NDArray[Any]) -> Contributions:
    """Return the SHAP value of each feature (column of `rows`) for each raw score.

    LightGBM's `pred_contrib` is exact TreeSHAP (Lundberg et al. 2020, Nature Machine Intelligence
    2); it is slow for many rows. A row's values and the expected score add up to its raw score;
    otherwise it raises NotAdditive. With several classes, a row has one score, and one row of
    values, per class.
    """
    shap_values = np.asarray(booster.predict(rows, pred_contrib=True), dtype=np.float64)
    shap_values = shap_values.reshape(-1, rows.shape[1] + 1)
    raw = np.asarray(booster.predict(rows, raw_score=True), dtype=np.float64).reshape(-1)
    scale = max(float(np.abs(raw).max(initial=0.0)), 1.0)
    error = float(np.abs(shap_values.sum(axis=1) - raw).max(initial=0.0)) / scale
    if not error <= ROUNDING:
        raise NotAdditive(
            f"the contributions do not add up to the score: relative difference {error:g}"
        )
    return Contributions(shap_values[:, :-1], len(rows), "TreeSHAP", error)


@dataclass
class Watch:
    """Reports raw scores of given rows during the training of trees."""

    rows: NDArray[Any]  # the model's inputs
    every: int  # number of trees between reports; the last tree is reported too
    # Called with the number of trees, the raw scores of `rows`, and whether an interrupted training
    # already made this report.
    report: Callable[[int, NDArray[Any], bool], None]
    _seen: int = field(default=0, init=False)
    _scores: Any = field(default=0.0, init=False)

    def look(self, model: Any, first: int, trees: int, due: bool, again: bool, ends: bool) -> None:
        """Update the scores after `trees` trees; report them if due.

        `model` has only the trees from number `first` on. `due` forces a report, `ends` an update.
        """
        due = due or trees % self.every == 0
        if trees == self._seen or not (due or ends):
            return
        self._scores = self._scores + _raw(model, self.rows, self._seen - first, trees - first)
        self._seen = trees
        if due:
            self.report(trees, self._scores, again)


def boost_lightgbm(
    parameters: Mapping[str, Any],
    data: Any,
    rounds: int,
    watched: Any = None,
    *,
    patience: int = PATIENCE,
    segment: int = ROUNDS,
    watch: Watch | None = None,
) -> Any:
    """Train a LightGBM booster in segments, so that an interrupted training gives the same model.

    `data` and `watched` are unconstructed Datasets of numpy arrays. With `watched`, training stops
    early if its first metric has not improved for `patience` rounds, and the booster has the best
    number of trees. dart, which changes earlier trees, trains all rounds. Raises ValueError for
    random forests and for dart with `watch`.
    """
    import lightgbm as lgb

    kinds = {str(parameters.get(name)) for name in ("boosting", "boosting_type", "boost")}
    if kinds & {"rf", "random_forest"}:
        raise ValueError("the boosting type rf is not supported: use lightgbm.train")
    if watch is not None and "dart" in kinds:
        raise ValueError("`watch` does not support dart, which changes earlier trees")
    stops = watched is not None and "dart" not in kinds
    sets = [data] if watched is None else [data, watched]
    rows = [dataset.data for dataset in sets]
    if not all(isinstance(dataset, np.ndarray) for dataset in rows):
        raise ValueError("expected Datasets of numpy arrays that were not constructed yet")
    content = (
        getattr(dataset, name)
        for dataset in sets
        for name in ("data", "label", "weight", "group", "init_score", "categorical_feature")
    )
    segments = Segments(rounds, segment, identity_of(parameters, lgb.__version__, *content))
    growth, scores = segments.growth, [dataset.init_score for dataset in sets]
    # Set the parameters before construction: the bins depend on the seed, and all segments share
    # the bins of the first.
    data.params = {**(data.params or {}), **parameters}
    data.construct()

    def begin_with(first: int, end: int) -> None:
        """Add the scores of a segment's trees to the initial scores of the next segment."""
        for number, dataset in enumerate(sets if end > first else ()):
            raw = _raw(booster, rows[number], first, end, parameters.get("num_threads", 0))
            scores[number] = raw if scores[number] is None else scores[number] + raw
            dataset.set_init_score(scores[number])

    def after_round(environment: Any) -> None:
        model, first = environment.model, growth.trees
        trees = first + model.current_iteration()
        if watch is not None:
            ends = environment.iteration + 1 == environment.end_iteration
            watch.look(model, first, trees, trees == rounds, False, ends)
        if stops:
            _, _, value, larger, *_ = environment.evaluation_result_list[0]
            if growth.measured(trees, value, larger, patience):
                raise lgb.EarlyStopException(environment.iteration, [])

    booster: Any = lgb.Booster(model_str=segments.model.decode()) if segments.model else None
    for first, end in pairwise((0, *growth.ends)):
        begin_with(first, end)
    if watch is not None:
        for trees in range(1, growth.trees + 1):
            watch.look(booster, 0, trees, trees == rounds, True, trees in growth.ends)
    for more in segments:
        booster = lgb.train(
            segments.seeded(parameters), data, more, valid_sets=sets[1:], callbacks=[after_round]
        )
        text = _joined(segments.model.decode(), booster.model_to_string(num_iteration=-1))
        booster, first = lgb.Booster(model_str=text), growth.trees
        segments.grown(
            booster.model_to_string(num_iteration=-1).encode(), booster.current_iteration()
        )
        if not segments.are_over:
            begin_with(first, growth.trees)
    best = growth.best_trees if stops else -1
    return lgb.Booster(model_str=booster.model_to_string(num_iteration=best))


def boost_xgboost(
    parameters: Mapping[str, Any],
    data: Any,
    rounds: int,
    watched: Any = None,
    *,
    patience: int = PATIENCE,
    segment: int = ROUNDS,
) -> Any:
    """Train an XGBoost booster in segments on DMatrix data; see `boost_lightgbm`."""
    import xgboost as xgb

    sets = [data] if watched is None else [data, watched]
    segments = Segments(rounds, segment, identity_of(parameters, xgb.__version__, *_content(sets)))
    growth = segments.growth

    class AfterRound(xgb.callback.TrainingCallback):  # type: ignore[misc]
        """Stops the training early, as decided by `Growth`."""

        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            (name, values), *_ = evals_log["watched"].items()
            larger = name.startswith(_LARGER) and name != "mape"
            return growth.measured(model.num_boosted_rounds(), values[-1], larger, patience)

    for more in segments:
        booster = xgb.train(
            segments.seeded(parameters),
            data,
            more,
            evals=[(watched, "watched")] if watched is not None else [],
            # Always continue from checkpoint bytes, so that interruptions make no difference.
            xgb_model=xgb.Booster(model_file=bytearray(segments.model)) if segments.model else None,
            callbacks=[AfterRound()] if watched is not None else [],
            verbose_eval=False,
        )
        segments.grown(bytes(booster.save_raw("json")), booster.num_boosted_rounds())
    booster = xgb.Booster(model_file=bytearray(segments.model))
    return booster[: growth.best_trees] if watched is not None else booster


# XGBoost metrics that are maximised; LightGBM reports the direction itself.
_LARGER = ("auc", "aucpr", "pre", "map", "ndcg")


def _raw(model: Any, rows: NDArray[Any], first: int, end: int, threads: int = 0) -> NDArray[Any]:
    """Return raw scores by the trees `first` to `end` (exclusive).

    `end` must exceed `first`, because LightGBM takes 0 trees as all.
    """
    counts = {"start_iteration": first, "num_iteration": end - first, "num_threads": threads}
    return np.asarray(model.predict(rows, raw_score=True, **counts))


def _joined(model: str, segment: str) -> str:
    """Return LightGBM's text of a model with the trees of a segment appended.

    The line `tree_sizes` is dropped; LightGBM then finds trees sequentially and ignores their
    numbers.
    """
    if not model:
        return segment
    head, tree, trees_text = model.partition("\nTree=")
    head = "\n".join(line for line in head.split("\n") if not line.startswith("tree_sizes="))
    trees, end, foot = trees_text.partition("end of trees\n")
    grown = segment.partition(tree)[2].partition(end)[0]
    return head + tree + trees + tree.lstrip() + grown + end + foot


def _content(sets: Sequence[Any]) -> Iterator[Any]:
    for dataset in sets:
        rows = dataset.get_data()
        yield from (rows.data, rows.indices, rows.indptr, dataset.get_label(), dataset.get_weight())
        yield from (dataset.get_base_margin(), dataset.get_group(), dataset.feature_types)
