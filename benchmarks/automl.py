"""Compare local AutoML with FLAML, AutoGluon and a loop of Optuna and LightGBM.

All get the same rows, cores (two by default) and seconds, one after another; the peers use their
own environment, `.venv/peers`. The benchmark compares the AUC on test rows (one-vs-rest, weighted
by class), the prediction time, and the latency of a row by the best model of a single family, as
in serving.

`adult` and `bank` (without `duration`, which leaks the target) are from UCI, if ../shared/data has
them. `breast_cancer`, `wine` and `digits` come with scikit-learn. `messy` and `wide` are generated
by make_classification: missing values, categories, skewed numbers, rare positives, 300 columns.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ml.measures.bootstrap import Values, bounds, drawn_times
from ml.measures.metrics import BINARY, Draws, ScoredRows
from ml.serving.scoring.model import MODEL_DIR

ROOT = Path(__file__).parents[1]
DATA = ROOT / "../shared/data"
OURS = "ours"
PEERS = ("flaml", "autogluon", "optuna-lightgbm")
TABLES = ("adult", "bank", "breast_cancer", "digits", "messy")
# Number of rows to measure the latency with, and bootstrap draws of the test rows.
ROWS, DRAWS = 200, 400
# Goal for the latency of a row by a single family, in microseconds.
LIMIT = 100.0
SPEC = """\
type: automl
display_name: benchmark
experiment_name: benchmark
task: classification
primary_metric: auc_weighted
target_column_name: {target}
training_data: {{type: mltable, path: train}}
{positive}
limits: {{max_trials: 1000, max_concurrent_trials: {cores}}}
"""


@dataclass(frozen=True)
class Result:
    """A contestant's test predictions, and seconds to fit, to predict the test, and for a row.

    `single` is (name, seconds per row) of the best model of a single family.
    """

    answers: NDArray[np.float64]
    fit: float
    predict: float
    row: float
    about: str = ""
    single: tuple[str, float] | tuple[()] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=60.0, help="for each fit: 60, 300 or 20")
    parser.add_argument("--tables", default=",".join(TABLES), help="names, with commas")
    parser.add_argument("--splits", default="0,1", help="seeds of the splits, with commas")
    parser.add_argument("--peers", default=",".join(PEERS), help="also autogluon-best")
    parser.add_argument("--cores", type=int, default=2, help="for each fit")
    parser.add_argument("--into", type=Path, help="keep answers there; those that are stay")


def main(
    quick: bool,
    seconds: float = 60.0,
    tables: str = ",".join(TABLES),
    splits: str = "0,1",
    peers: str = ",".join(PEERS),
    cores: int = 2,
    into: Path | None = None,
) -> float:
    """Print the comparison; return our mean rank divided by the best peer's."""
    if quick:
        seconds, tables, splits = min(seconds, 20.0), "breast_cancer,messy", "0"
    names = [OURS, *peers.split(",")]
    found: list[Mapping[str, Result]] = []
    values: list[Mapping[str, float]] = []
    with tempfile.TemporaryDirectory() as temporary:
        for table, split in ((t, s) for t in tables.split(",") for s in splits.split(",")):
            frame = READ[table]() if table in READ else _unknown(table)
            if frame is None:
                print(f"{table} is not on this machine: left out")
                continue
            folder = Path(temporary) / f"{table}-{split}"
            labels = write(frame, folder, int(split), quick)
            kept = into / f"{seconds:g}-{cores}-{table}-{split}" if into else folder / "results"
            found.append(
                {name: _cached(name, folder, kept / name, seconds, cores) for name in names}
            )
            values.append(_print(table, split, labels, found[-1]))
    return _conclude(values, found)


def _unknown(table: str) -> pd.DataFrame:
    raise SystemExit(f"error[no-such-table]: {table}\n  expected: some of {', '.join(READ)}")


# --- tables, whose last column is the target


def _adult() -> pd.DataFrame | None:
    file = DATA / "uci/adult.csv"
    if not file.is_file():
        return None
    return pd.read_csv(file, skipinitialspace=True, na_values=["?"])


def _bank() -> pd.DataFrame | None:
    files = [
        DATA / f"bank_marketing/bank_marketing_{part}_data.csv" for part in ("train", "validation")
    ]
    if not all(file.is_file() for file in files):
        return None
    return pd.concat([pd.read_csv(file) for file in files]).drop(columns="duration")


def _bundled(name: str) -> Callable[[], pd.DataFrame]:
    def load() -> pd.DataFrame:
        from sklearn import datasets

        bunch = getattr(datasets, f"load_{name}")(as_frame=True)
        frame: pd.DataFrame = bunch.data
        frame.columns = [str(column).replace(" ", "_") for column in frame.columns]
        return frame.assign(label=bunch.target.map(lambda label: f"class {label}"))

    return load


def _generated(rows: int, columns: int, informative: int, positives: float) -> pd.DataFrame:
    from sklearn.datasets import make_classification

    numbers, labels = make_classification(
        rows,
        columns,
        n_informative=informative,
        n_redundant=columns // 5,
        n_clusters_per_class=4,
        weights=[1 - positives],
        flip_y=0.02,
        class_sep=0.9,
        random_state=7,
    )
    frame = pd.DataFrame(numbers, columns=[f"x{index}" for index in range(columns)])
    return frame.assign(label=np.where(labels == 1, "yes", "no"))


def _messy() -> pd.DataFrame:
    """Return a table with missing values, two unordered categories, skewed and rounded numbers."""
    draw = np.random.default_rng(7)
    frame = _generated(8000, 24, 10, 0.15)
    for index, many in ((0, 60), (1, 9)):
        names = draw.permutation(many)
        codes = pd.qcut(frame[f"x{index}"], many, labels=False)
        frame[f"x{index}"] = [f"c{names[code]}" for code in codes]
    frame["x2"], frame["x3"] = np.exp(3 * frame["x2"]), frame["x3"].round()
    for index in range(0, 24, 3):
        frame.loc[draw.random(len(frame)) < 0.15, f"x{index}"] = None
    return frame


def _wide() -> pd.DataFrame:
    return _generated(3000, 300, 15, 0.5)


READ: Mapping[str, Callable[[], pd.DataFrame | None]] = {
    "adult": _adult,
    "bank": _bank,
    "breast_cancer": _bundled("breast_cancer"),
    "wine": _bundled("wine"),
    "digits": _bundled("digits"),
    "messy": _messy,
    "wide": _wide,
}


def write(frame: pd.DataFrame, folder: Path, seed: int, quick: bool) -> NDArray[np.int64]:
    """Write a train and a test set (a quarter of the rows); return the test's class numbers."""
    from sklearn.model_selection import train_test_split

    frame = frame.sample(min(len(frame), 2000), random_state=0) if quick else frame
    target = str(frame.columns[-1])
    classes = sorted(map(str, frame[target].unique()))
    train, test = train_test_split(frame, test_size=0.25, random_state=seed, stratify=frame[target])
    (folder / "train").mkdir(parents=True)
    train.to_parquet(folder / "train/rows.parquet", index=False)
    test.to_parquet(folder / "test.parquet", index=False)
    (folder / "train/MLTable").write_text(
        "paths: [{file: ./rows.parquet}]\ntransformations: [read_parquet]\n"
    )
    (folder / "about.json").write_text(json.dumps({"target": target, "classes": classes}))
    return np.asarray(test[target].map(classes.index), dtype=np.int64)


# --- contestants


def _cached(name: str, folder: Path, kept: Path, seconds: float, cores: int) -> Result:
    if not (kept / "times.json").is_file():
        kept.mkdir(parents=True, exist_ok=True)
        print(f"{folder.name}: {name} …", file=sys.stderr, flush=True)
        (_ours if name == OURS else _peer)(name, folder, kept, seconds, cores)
    times: dict[str, Any] = json.loads((kept / "times.json").read_text())
    return Result(np.load(kept / "answers.npy"), **times)


def _peer(name: str, folder: Path, kept: Path, seconds: float, cores: int) -> None:
    python = ROOT / ".venv/peers/bin/python"
    if not python.is_file():
        raise SystemExit(
            f"error[no-peers]: {python} is not there\n  expected: the peers' environment\n"
            "  hint: make bench ARGS=automl"
        )
    program = [str(python), str(ROOT / "benchmarks/automl_peers.py")]
    words = [name, str(folder), f"{seconds:g}", str(cores), str(kept)]
    _run([*program, *words], folder, {"PYTHONPATH": "", "OMP_NUM_THREADS": str(cores)})


def _run(
    command: Sequence[str], folder: Path, variables: Mapping[str, str], content: bytes = b""
) -> str:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **variables}, input=content, capture_output=True
    )
    if done.returncode:
        said = (done.stdout[-2000:] + done.stderr[-4000:]).decode(errors="replace")
        raise SystemExit(f"{' '.join(map(str, command[:2]))} …\n{said}")
    return done.stdout.decode()


# Run a plan as `ml run` does. It is passed directly, since a spec cannot state a timeout below a
# minute. Prints the trials with their model folders, the best first.
SEARCH = """
import json, pickle, sys
from dataclasses import replace
from ml.backends.local.backend import LocalBackend
plan, seconds = pickle.load(sys.stdin.buffer)
run = LocalBackend().run(replace(plan, timeout_s=seconds))
if run.status != "Completed":
    raise SystemExit(f"{run.name}: {run.status} {run.error}")
trials = [of for of in run.trials if of.status == "Completed" and plan.primary_metric in of.metrics]
trials.sort(key=lambda of: of.metrics[plan.primary_metric], reverse=True)
best = [of for of in trials if of.name == run.best]
print(json.dumps([
    {
        "settings": of.parameters["model"],
        "metrics": of.metrics,
        "model": str(of.outputs["best_model"]),
    }
    for of in best + [of for of in trials if of not in best]
]))
"""


def _ours(name: str, folder: Path, kept: Path, seconds: float, cores: int) -> None:
    """Run our AutoML search from a spec; save its predictions and times to `kept`."""
    from ml.specs.plan import planning
    from ml.specs.sdk import load

    about = json.loads((folder / "about.json").read_text())
    positive = f"positive_label: '{about['classes'][1]}'" if len(about["classes"]) == 2 else ""
    (folder / "pyproject.toml").touch()
    spec = folder / "search.yml"
    spec.write_text(SPEC.format(target=f"'{about['target']}'", positive=positive, cores=cores))
    plan = pickle.dumps((planning.plan(load.load(spec)), seconds))
    began = time.perf_counter()
    said = _run(
        [sys.executable, "-c", SEARCH],
        ROOT,
        {"MLOPS_HOME": str(folder / "home"), **_threads(cores)},
        plan,
    )
    fit = time.perf_counter() - began
    trials = json.loads(said.splitlines()[-1])
    (kept / "trials.json").write_text(json.dumps(trials, indent=1))
    test = pd.read_parquet(folder / "test.parquet").drop(columns=about["target"])
    table = test.astype(object).where(test.notna(), None)
    names, rows = list(map(str, table.columns)), table.values.tolist()
    best = Served(Path(trials[0]["model"]), names)
    np.save(kept / "answers.npy", np.asarray(best.answers(rows)))
    times: dict[str, Any] = {
        "fit": fit,
        "predict": best.seconds([rows] * 3),
        "row": best.seconds([[row] for row in rows[:ROWS]]),
        "about": f"{_family(trials[0])} of {len(trials)} trials",
    }
    single = [trial for trial in trials if not _family(trial).endswith("_ensemble")]
    if single:
        served = Served(Path(single[0]["model"]), names)
        row = served.seconds([[row] for row in rows[:ROWS]])
        times["single"] = (_family(single[0]), row)
    (kept / "times.json").write_text(json.dumps(times))


def _threads(cores: int) -> Mapping[str, str]:
    """Return the environment variables that limit trials to one core; {} for more cores."""
    return {"OMP_NUM_THREADS": "1"} if cores == 1 else {}


def _family(trial: Mapping[str, Any]) -> str:
    settings = trial["settings"]
    return str((json.loads(settings) if isinstance(settings, str) else settings)["family"])


class Served:
    """Predictions of a model folder from request bodies, as a score.py makes them."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        from ml.serving.scoring.table import Table

        os.environ[MODEL_DIR] = str(folder)
        # A folder with members does not use the project's functions.
        self._table = Table.open(lambda row: row, lambda folder: None, lambda model, rows: rows)
        self._names = names

    def answers(self, rows: Sequence[Any]) -> list[Any]:
        """Return the predictions for rows of JSON values."""
        return self._table.predict(self._body(rows))

    def seconds(self, tables: Sequence[Sequence[Any]]) -> float:
        """Return the median seconds to predict a table, after a warm-up."""
        took = []
        for body in [self._body(tables[0]), *map(self._body, tables)]:
            began = time.perf_counter()
            self._table.predict(body)
            took.append(time.perf_counter() - began)
        return float(np.median(took[1:]))

    def _body(self, rows: Sequence[Any]) -> bytes:
        return json.dumps({"input_data": {"columns": self._names, "data": rows}}).encode()


# --- results


def auc(labels: NDArray[np.int64], answers: NDArray[np.float64], times: Values) -> Values:
    """Return the AUC for each bootstrap draw, which weights rows by `times`.

    With several classes, it is one-vs-rest, weighted by the classes' shares.
    """
    if answers.ndim == 1:
        return _binary(labels == 1, answers, times)
    shares = np.bincount(labels, minlength=answers.shape[1]) / len(labels)
    areas = [_binary(labels == index, scores, times) for index, scores in enumerate(answers.T)]
    return np.asarray(np.average(areas, axis=0, weights=shares))


def _binary(ones: NDArray[np.bool_], scores: NDArray[np.float64], times: Values) -> Values:
    of_all = BINARY["auc"].of_all
    assert of_all is not None
    labels = np.where(ones, "1", "0")
    scored = ScoredRows(labels, labels, np.zeros(len(labels), dtype=np.int64), scores)
    return of_all(Draws(scored, times))


def compare(labels: NDArray[np.int64], results: Mapping[str, Result]) -> Iterator[tuple[str, Any]]:
    """Yield each contestant's name and AUC, with the interval of our AUC minus its AUC."""
    ones = np.ones((1, len(labels)))
    draws = list(drawn_times(len(labels), samples=DRAWS))

    def drawn(name: str) -> Values:
        return np.concatenate([auc(labels, results[name].answers, times) for times in draws])

    ours = drawn(OURS)
    for name, result in results.items():
        value = float(auc(labels, result.answers, ones)[0])
        yield name, (value, None if name == OURS else bounds(ours - drawn(name)))


def _print(
    table: str, split: str, labels: NDArray[np.int64], results: Mapping[str, Result]
) -> dict[str, float]:
    """Print a line for each contestant, the best first; return their AUC by name."""
    print(f"\n{table}, split {split}, {len(labels)} rows of the test")
    print(f"  {'':16}{'AUC':>8}{'ours less it, 95 %':>24}{'fit s':>8}{'test ms':>9}{'row µs':>9}")
    compared = dict(compare(labels, results))
    for name, (value, interval) in sorted(compared.items(), key=lambda item: -item[1][0]):
        result = results[name]
        interval_text = "" if interval is None else f"{interval[0]:+.4f} … {interval[1]:+.4f}"
        if interval is not None and not interval[0] <= 0 <= interval[1]:
            interval_text += " *"
        times = f"{result.fit:8.1f}{1e3 * result.predict:9.1f}{1e6 * result.row:9.0f}"
        print(f"  {name:16}{value:8.4f}{interval_text:>24}{times}  {result.about}".rstrip())
        if result.single:
            family, row = result.single
            print(f"  {'':16}its best of one family: {family}, {1e6 * row:.0f} µs a row")
    sys.stdout.flush()
    return {name: value for name, (value, _) in compared.items()}


def _conclude(
    values: Sequence[Mapping[str, float]], found: Sequence[Mapping[str, Result]]
) -> float:
    """Print mean ranks, Wilcoxon tests over tables and splits, and speeds; return the ratio."""
    from scipy.stats import rankdata, wilcoxon

    if not values:
        raise SystemExit("error[no-table]: none of the tables is on this machine")
    names = list(values[0])
    # AUCs that differ only by rounding are ties.
    table = np.array([[row[name] for name in names] for row in values]).round(5)
    ranks = dict(zip(names, rankdata(-table, axis=1).mean(axis=0), strict=True))
    print(f"\nmean over {len(values)} tests: rank, AUC, and how often ours is better or worse")
    for index, name in sorted(enumerate(names), key=lambda item: ranks[item[1]]):
        line = f"  {name:16}{ranks[name]:6.2f}{table[:, index].mean():9.4f}"
        if name != OURS:
            differences = table[:, names.index(OURS)] - table[:, index]
            line += f"{(differences > 0).sum():6}{(differences < 0).sum():4}"
            if differences.any():
                line += f"   p {wilcoxon(differences).pvalue:.3f} (Wilcoxon)"
        print(line)
    for name in names:
        if name != OURS:
            times = [results[name].predict / results[OURS].predict for results in found]
            print(f"  {name} takes {np.median(times):.1f} times as long to answer the test")
    rows = [1e6 * result.single[1] for results in found if (result := results[OURS]).single]
    print(f"  a row of one family: {max(rows):.0f} µs at most, the limit is {LIMIT:.0f}")
    return float(ranks[OURS] / min(rank for name, rank in ranks.items() if name != OURS))
