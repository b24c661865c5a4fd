"""One trial of a search: fit on each fold, judge, fit once on all rows, save what serves.

    python -m ml.automl.trial --training-data DIR --model DIR --predictions DIR …

What to fit is the value that the sweep sampled (AZUREML_SWEEP_model), how to judge it AUTOML_JOB.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.automl import ensembles, families, folders, guardrails, rungs, sampling, trees
from ml.automl.ensembles import Answers, calibrate
from ml.automl.families import Family, Fitted, Numbers
from ml.automl.problem import Job, Problem, prepare
from ml.automl.tables import stop
from ml.automl.validation import Rows
from ml.serving.scoring.columns import FILE as COLUMNS
from ml.serving.scoring.members import Members
from ml.toolkit.training.model_folder import FILE as SETTINGS
from ml.toolkit.training.model_folder import seal
from ml.toolkit.training.searched import FACT, content
from ml.toolkit.training.timing import latency
from ml.toolkit.training.tracking import tracking

# The variable with what a sweep sampled.
SAMPLED = "AZUREML_SWEEP_model"
# Fits of other seeds where one set of rows judges: they show how much the seed alone moves a score.
# Of many rows that is little, and a fit takes long.
SEEDS, SEEDS_OF_MANY = 3, 2
# Of the time of a search, what the boosted trees of the folds of one trial take at most.
MOST_OF_TIME = 0.15
# Rows on which what was saved is compared with what was fitted, and timed.
COMPARED, TIMED = 2_000, 50


@dataclass(frozen=True)
class Trial:
    """What a trial is worth: the metrics of each fold (or seed), and the answers to rows that were
    not fitted. `fitted` are the rows of the model that is in the folder, `notes` what a reader of
    the leaderboard should know of it.
    """

    folds: Sequence[Mapping[str, float]]
    over: str
    answers: Answers
    fitted: Rows
    notes: Mapping[str, str] = field(default_factory=dict)


def main() -> None:
    """Fit, judge and save by the arguments and the environment."""
    parser = argparse.ArgumentParser(description="Fit one model of a search.")
    for name in ("training-data", "validation-data", "test-data", "model", "predictions"):
        parser.add_argument(f"--{name}", type=Path)
    options = parser.parse_args()
    job = Job(json.loads(os.environ["AUTOML_JOB"]))
    sampled: dict[str, Any] = json.loads(os.environ[SAMPLED])
    name = sampled.pop("family")
    data = (options.training_data, options.validation_data, options.test_data)
    problem = prepare(job, *data)
    with tracking() as tracker:
        tracker.parameters({"family": name, **{k: v for k, v in sampled.items() if k != "members"}})
        began = time.perf_counter()
        outputs = options.model, options.predictions
        if name == ensembles.VOTING:
            trial: Trial = _vote(problem, sampled["members"], *outputs)
        elif name == ensembles.STACK:
            trial = _stack(problem, sampled["members"], *outputs)
        else:
            trial = _fit(problem, name, sampled, *outputs)
        seconds = time.perf_counter() - began
        means = {of: float(np.mean([fold[of] for fold in trial.folds])) for of in trial.folds[0]}
        primary = job.metric
        if primary not in means:
            stop("no-metric", f"`{primary}` is not defined on the rows that judge", "rows of both")
        scores = [fold[primary] for fold in trial.folds]
        # Of equal scores NumPy's is 1e-16: their mean is rounded.
        spread = {f"{primary}_std": float(np.ptp(scores) and np.std(scores, ddof=1))}
        spread = spread if len(scores) > 1 else {}
        options.predictions.mkdir(parents=True, exist_ok=True)
        trial.answers.save(options.predictions)
        members = Members(options.model)
        rows = problem.matrix(folders.encoding(options.model), problem.fitted[:TIMED])
        timed = latency(members.predict, [row.reshape(1, -1).astype(np.float64) for row in rows])
        facts = _facts(problem, name, sampled, trial, members, options.model)
        tracker.metrics({**means, **spread, "training_seconds": seconds, **timed.as_metrics()})
        digest = seal(options.model, {**facts, "seconds": seconds})
    shown = "".join(f" ± {of:.2g}" for of in spread.values())
    print(f"model {options.model} {digest}: {name} {primary} {means[primary]:.5g}{shown}")


def _fit(
    problem: Problem, name: str, sampled: Mapping[str, Any], folder: Path, predictions: Path
) -> Trial:
    """Fit one family on each fold, then once on all rows; of a large table first on a sample."""
    family = families.of_task(problem.job.settings["task"])[name]
    settings = {of: value for of, value in sampled.items() if of != "balance"}
    balance, seed = str(sampled.get("balance", "none")), problem.job.seed

    fitting = _Fitting(problem, family, settings, balance)
    train, judged = problem.folds[0]
    if size := rungs.size(train):
        sample = problem.sample(train, size)
        document = problem.encoding(sample)
        model = fitting.fit(document, sample, seed)
        answer = model.predict(problem.matrix(document, judged))
        answers = Answers([judged], [answer], problem.labels)
        rung = rungs.rung(size, problem.value(answers), predictions)
        if rung.is_last:
            notes = {"stopped": rung.sentence}
            trial = Trial([], "folds", answers, sample, notes)
            return _saved(problem, folder, family, document, model, trial)
    values, counted, first = fitting.judged()
    # The rows of validation_data are for judging alone: the model that they judged is the model.
    if first is not None and len(problem.folds) == 1 and len(train) == len(problem.fitted):
        document, model = first
    else:
        first = None
        document = problem.encoding(problem.fitted)
        final = replace(fitting, settings={**settings, **counted})
        model = final.fit(document, problem.fitted, seed)
    is_one = len(problem.folds) == 1
    rows = [judged for _, judged in problem.folds] * (len(values) // len(problem.folds))
    answers = Answers(rows, values, problem.labels)
    notes = {"trees": f"{of} boosted trees"} if (of := counted.get("n_estimators")) else {}
    trial = Trial([], "seeds" if is_one else "folds", answers, problem.fitted, notes)
    return _saved(problem, folder, family, document, model, trial)


# A model, and the document of the numbers that it takes.
_Model = tuple[dict[str, Any], Fitted]


@dataclass(frozen=True)
class _Fitting:
    """Fits of one family with these settings."""

    problem: Problem
    family: Family
    settings: Mapping[str, Any]
    balance: str

    def numbers(self, document: Mapping[str, Any], rows: Rows, seed: int) -> Numbers:
        """The rows that are fitted; nothing else refers to them, so that a family may free them."""
        return sampling.balanced(self.problem.numbers(document, rows), self.balance, seed)

    def fit(self, document: Mapping[str, Any], rows: Rows, seed: int) -> Fitted:
        """Fit all of these."""
        return self.family.fit(self.numbers(document, rows, seed), self.settings, seed)

    def judged(self) -> tuple[list[NDArray[np.float64]], Mapping[str, Any], _Model | None]:
        """The answers to the rows that judge, of each fold, or of one set of rows by each seed;
        what the folds decide for the fit of all rows; and the first model where it may be the last.
        """
        problem, seed = self.problem, self.problem.job.seed
        train, _ = problem.folds[0]
        if len(problem.folds) > 1:
            if self.family.grow is None:
                return *self._plain([seed], {}), None
            return *self._grown([(*fold, fold[1]) for fold in problem.folds]), None
        seeds = [seed + more for more in range(SEEDS_OF_MANY if rungs.size(train) else SEEDS)]
        left, aside = problem.aside(train)
        counted: Mapping[str, int] = {}
        if self.family.grow is not None and len(aside):
            _, counted = self._grown([(left, aside, aside)], 1 + len(seeds))
        models: list[_Model] = []
        return *self._plain(seeds, counted, models), models[0]

    def _plain(
        self,
        seeds: Sequence[int],
        counted: Mapping[str, int],
        first: list[_Model] | None = None,
    ) -> tuple[list[NDArray[np.float64]], Mapping[str, int]]:
        problem, values = self.problem, list[NDArray[np.float64]]()
        fitting = replace(self, settings={**self.settings, **counted})
        is_drawn = self.family.seeded or self.balance in sampling.DRAWN
        for train, judged in problem.folds:
            document = problem.encoding(train)
            for seed in seeds if is_drawn else seeds[:1]:
                model = fitting.fit(document, train, seed)
                values.append(model.predict(problem.matrix(document, judged)))
                if first is not None and not first:
                    first.append((document, model))
        return (values if is_drawn else values * len(seeds)), counted

    def _grown(
        self, folds: Sequence[tuple[Rows, Rows, Rows]], parts: int = 1
    ) -> tuple[list[NDArray[np.float64]], Mapping[str, int]]:
        """Trees of rows that are fitted, rows that watch, and rows that are answered, in so many
        parts of the time of a trial.
        """
        problem, grow, seed = self.problem, self.family.grow, self.problem.job.seed
        assert grow is not None
        documents = [problem.encoding(train) for train, _, _ in folds]
        growing = [
            grow(
                self.numbers(document, train, seed),
                problem.numbers(document, watching, are_fitted=False),
                problem.job.metric,
                self.settings,
                seed,
            )
            for document, (train, watching, _) in zip(documents, folds, strict=True)
        ]
        most = int(self.settings.get("n_estimators", trees.MOST))
        fewest = min(most, trees.fewest(float(self.settings.get("learning_rate", trees.RATE))))
        patience = trees.patience(min(len(train) for train, _, _ in folds))
        seconds = MOST_OF_TIME * problem.job.seconds / parts
        counts, of_all = trees.grow(growing, most, patience, seconds, fewest)
        values = []
        for of, count, document, fold in zip(growing, counts, documents, folds, strict=True):
            values.append(of.cut(count).predict(problem.matrix(document, fold[2])))
        return values, {"n_estimators": of_all}


def _saved(
    problem: Problem,
    folder: Path,
    family: Family,
    document: dict[str, Any],
    model: Fitted,
    trial: Trial,
) -> Trial:
    """Write the folder of a single model, compare it, and judge what it answers."""
    folder.mkdir(parents=True, exist_ok=True)
    file = model.save(folder)
    folders.write_json(folder / COLUMNS, document)
    member: dict[str, Any] = {"file": file, "weight": 1.0}
    folders.write(problem, folder, [member])
    rows = problem.matrix(document, problem.folds[0][1][:COMPARED])
    original, served = model.predict(rows), Members(folder).predict(rows.astype(np.float64))
    folders.compare(original, served, problem.spread, in_steps=family.in_steps)
    if problem.task == "binary":
        seed = problem.job.seed
        calibration, answers, sentence = calibrate(trial.answers, problem.value, seed)
        if calibration is not None:
            folders.write(problem, folder, [{**member, "calibration": dict(calibration)}])
            notes = {**trial.notes, "calibration": sentence}
            trial = replace(trial, answers=answers, notes=notes)
    return _judged(problem, trial)


def _judged(problem: Problem, trial: Trial) -> Trial:
    folds = zip(trial.answers.rows, trial.answers.values, strict=True)
    return replace(trial, folds=[problem.score(*fold) for fold in folds])


@dataclass(frozen=True)
class _Member:
    """Another trial of this search, as an ensemble takes it."""

    folder: Path
    answers: Answers
    family: str


def _members(
    problem: Problem, numbers: Sequence[int], folder: Path, predictions: Path
) -> list[_Member]:
    """Those of these trials that were fitted to all rows, the best first."""
    members = []
    for number in numbers:
        model = rungs.of_trial(folder, number)
        settings = json.loads((model / SETTINGS).read_text(encoding="utf-8"))
        if "stopped" not in settings[FACT]["notes"]:
            answers = Answers.load(rungs.of_trial(predictions, number), problem.labels)
            members.append(_Member(model, answers, settings["hyperparameters"]["family"]))
    if len(members) < 2:
        stop("few-members", f"{len(members)} trials were fitted to all rows", "two or more")
    return members


def _vote(problem: Problem, numbers: Sequence[int], folder: Path, predictions: Path) -> Trial:
    """The trials that answer best together, by what they answered to rows they did not fit."""
    members = _members(problem, numbers, folder, predictions)
    weights = ensembles.choose([of.answers for of in members], problem.value)
    of_folders = {members[at].folder: weight for at, weight in weights.items()}
    folders.write(problem, folder, ensembles.gather(of_folders, folder))
    chosen = [members[at].answers for at in weights]
    together = ensembles.mean(chosen, list(weights.values()))
    over = "seeds" if len(problem.folds) == 1 else "folds"
    return _judged(problem, Trial([], over, together, problem.fitted))


def _stack(problem: Problem, numbers: Sequence[int], folder: Path, predictions: Path) -> Trial:
    """A model of what the best of each family answer, judged by those that it was not fitted to."""
    members = _members(problem, numbers, folder, predictions)
    members = [members[at] for at in ensembles.stacked([of.family for of in members])]
    settings = problem.job.settings.get("stack") or {}
    kind = str(settings.get("stack_meta_learner_type", "none"))

    def fit(table: Any, labels: Any) -> Fitted:
        numbers = Numbers(
            table.astype(np.float32), labels, None, problem.task, len(problem.classes), (), False
        )
        try:
            return families.fit_meta(kind, numbers, problem.job.seed)
        except ValueError as error:
            stop("meta-model", str(error).splitlines()[0], "more rows of each class")

    def predictor(table: Any, labels: Any) -> ensembles.Predict:
        model = fit(table, labels)
        return lambda of: model.predict(of.astype(np.float32))

    beside = ensembles.beside([of.answers for of in members])
    crossed = ensembles.crossed(beside, predictor, problem.job.seed)
    meta = fit(*beside.all)
    of_folders = {of.folder: 1 / len(members) for of in members}
    entries = ensembles.gather(of_folders, folder)
    file = meta.save(folder)
    file = str((folder / file).rename(folder / f"meta{Path(file).suffix}").name)
    folders.write(problem, folder, entries, file)
    document = folders.encoding(folder)
    rows = problem.matrix(document, problem.folds[0][1][:COMPARED]).astype(np.float64)
    served = Members(folder)
    of_members = np.column_stack(served.answers(rows)).astype(np.float32)
    folders.compare(meta.predict(of_members), served.predict(rows), problem.spread)
    over = "seeds" if len(problem.folds) == 1 else "folds"
    return _judged(problem, Trial([], over, crossed, problem.fitted))


def _facts(
    problem: Problem,
    name: str,
    sampled: Mapping[str, Any],
    trial: Trial,
    members: Members,
    folder: Path,
) -> dict[str, Any]:
    """What the folder says about the training, beside the seconds."""
    tested, document = {}, folders.encoding(folder)
    if len(problem.test):
        rows = problem.matrix(document, problem.test)
        tested = problem.score(problem.test, members.predict(rows.astype(np.float64)))
    plain = {of: value for of, value in sampled.items() if of != "members"}
    values = {column.name: problem.table.frame[column.name] for column in problem.table.columns}
    return {
        "seed": problem.job.seed,
        "hyperparameters": {"family": name, **plain},
        FACT: {
            "metric": problem.job.metric,
            "validation": problem.sentence,
            "over": trial.over,
            "folds": [dict(fold) for fold in trial.folds],
            "rows": {"fitted": len(trial.fitted), "test": len(problem.test)},
            "test": tested,
            "trained_on": content(values, problem.labels_of(trial.fitted), trial.fitted),
            "columns": [{**vars(column), "used": column.used} for column in problem.table.columns],
            "guardrails": guardrails.report(problem, document),
            "notes": dict(trial.notes),
        },
    }


if __name__ == "__main__":
    main()
