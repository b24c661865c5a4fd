"""ml.release.evidence.served: the answers of a server beside the predictions of the evaluation."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from ml.backends.base import Backend
from ml.backends.endpoints import Answer, DeploymentSpec, Endpoints, Server
from ml.backends.model_registry import Version
from ml.core.errors import Problem, UserError
from ml.measures.evaluation import Prediction, Request, content, read_evaluation
from ml.measures.forecasting import actuals
from ml.measures.measurement import Features, Rows, Training, evaluate
from ml.measures.schema import Evaluation, KeptPredictions
from ml.measures.tasks import Task
from ml.release.canary import canary
from ml.release.evidence import served
from ml.release.evidence.recomputation import read_predictions, with_predictions
from ml.release.evidence.served import Evaluated, ParityCheck, parity_check
from ml.release.rollout import apply as applying
from ml.serving.scoring.table import with_fields_of
from policies.promotion.evidence import Evidence, Served

COUNT, CLASSES = 40, ("high", "low", "middle")
RNG = np.random.default_rng(0)
SCORES: dict[Task, np.ndarray] = {
    "binary": RNG.random(COUNT),
    "regression": 1e4 * RNG.normal(size=COUNT),
    "multiclass": RNG.dirichlet(np.ones(3), COUNT),
    # Two boxes an image, of the first three none.
    "detection": np.concatenate(
        [
            np.full((3, 2, 5), np.nan),
            np.tile([[1, 2, 30, 40, 0.9], [5, 5, 60, 80, 0.4]], (COUNT - 3, 1, 1)),
        ]
    ),
    "forecasting": RNG.normal(20, 1, (COUNT, 4, 1)) + np.array([0, -1, 1]),
}
PRIMARY: dict[Task, str] = {"binary": "brier", "multiclass": "accuracy", "regression": "mae"}
PRIMARY |= {"detection": "map_50", "forecasting": "mase"}
LABELS: dict[Task, Any] = {
    "binary": np.arange(COUNT) % 2,
    "regression": SCORES["regression"] + 1,
    "multiclass": np.array(CLASSES)[np.arange(COUNT) % 3],
    "detection": [np.array([[1.0, 2.0, 30.0, 41.0]])] * COUNT,
    "forecasting": [actuals([19, 21, 20], [20, 21, 19, 20], 1)] * COUNT,
}
TASKS = [*SCORES]


def written(folder: Path, task: Task) -> Evaluation:
    """An evaluation whose requests are the numbers of its rows."""
    ids = [f"r{at}" for at in range(COUNT)]
    slices = {"side": ["left", "right"] * (COUNT // 2)}
    requests = [{"row": at} for at in range(COUNT)]
    rows = Rows(ids, LABELS[task], SCORES[task], slices, requests=requests)
    other = replace(rows, ids=[f"v{at}" for at in range(COUNT)], requests=())
    evaluate(
        folder,
        {"validation": other, "test": rows},
        Training(Rows(["t1", "t2", "t3"], LABELS[task][:3]), {}, [0.1, 0.2], seconds=1),
        Features(["x"], RNG.normal(size=(COUNT, 1))),
        "a network",
        task=task,
        primary_metric=PRIMARY[task],
        model="tiny",
        digest="sha256:" + "a" * 64,
        classes=CLASSES if task in ("multiclass", "ranking") else (),
        baseline={} if task in ("ranking", "detection", "forecasting") else None,
    )
    return read_evaluation(folder)


def answer(task: Task, at: int) -> Any:
    """What a table's endpoint says of a row."""
    of = SCORES[task][at]
    if task == "detection":
        return {"predictions": [of[~np.isnan(of[:, 4])].tolist()]}
    if task == "forecasting":
        return {"predictions": [of.tolist()]}
    if task != "multiclass":
        return {"predictions": [float(of)]}
    label = CLASSES[int(of.argmax())]
    return {"predictions": [label], "classes": CLASSES, "probabilities": [[*map(float, of)]]}


def asked(task: Task, change: Callable[[dict[str, Any]], object] = lambda of: None) -> Any:
    """A server of which the answer to row 7 is changed."""

    def ask(request: Mapping[str, object]) -> Answer:
        number = int(str(request["row"]))
        body = answer(task, number)
        body = {name: [*of] for name, of in body.items()}
        if number == 7 and (other := change(body)) is not None:
            return other if isinstance(other, Answer) else Answer(200, other)
        return Answer(200, body)

    return ask


@pytest.mark.parametrize("task", TASKS)
def test_the_same_answers(task: Task, tmp_path: Path) -> None:
    """Every row is asked, and none differs, but by rounding."""
    asks = parity_check(tmp_path, written(tmp_path, task), "predictions/0")
    assert asks.run(asked(task)) == {
        **{"rows": COUNT, "differing": 0, "largest": 0.0, "example": None},
        "prediction": "predictions/0",
    }


def no_answer(of: dict[str, Any]) -> object:
    raise OSError("reset by peer")


OTHERS: list[tuple[Task, Callable[[dict[str, Any]], object], float]] = [
    ("binary", lambda of: {"predictions": [of["predictions"][0] + 0.01]}, 0.01),
    ("binary", lambda of: {"predictions": ["0"]}, 1),
    ("binary", lambda of: {"predictions": [True]}, 1),
    ("binary", lambda of: {"predictions": []}, 1),
    ("binary", lambda of: {"predictions": [float("nan")]}, 1),
    ("binary", lambda of: "no JSON", 1),
    ("binary", lambda of: [], 1),
    ("binary", lambda of: Answer(400, of), 1),
    ("binary", no_answer, 1),
    ("regression", lambda of: {"predictions": [of["predictions"][0] * 1.001]}, 0.001),
    ("regression", lambda of: {"predictions": ["many"]}, 1e9),
    ("forecasting", lambda of: {"predictions": [of["predictions"][0][:3]]}, 1),
    ("forecasting", lambda of: {"predictions": [np.multiply(of["predictions"][0], 1.01)]}, 0.005),
    ("forecasting", lambda of: {"predictions": [[[1, 3, 2]] * 4]}, 1),
    ("forecasting", lambda of: {"predictions": [20.0]}, 1),
    ("multiclass", lambda of: {**of, "predictions": ["another"]}, 1),
    ("multiclass", lambda of: {**of, "probabilities": [[0.0, 0.0, 0.0]]}, 0.3),
    ("multiclass", lambda of: {**of, "probabilities": [[float("nan")] * 3]}, 0.3),
    ("multiclass", lambda of: {**of, "probabilities": [["much", 0, 0]]}, 1),
    ("multiclass", lambda of: {**of, "probabilities": [[1.0]]}, 1),
    ("multiclass", lambda of: {**of, "classes": ["a", "b", "c"]}, 1),
]
BOXES: list[tuple[Callable[[dict[str, Any]], object], float]] = [
    (lambda of: {"predictions": [[[1, 2, 30, 40, 0.8], [5, 5, 60, 80, 0.4]]]}, 0.1),
    (lambda of: {"predictions": [[[1, 2, 30, 48, 0.9], [5, 5, 60, 80, 0.4]]]}, 0.1),
    (lambda of: {"predictions": [of["predictions"][0][:1]]}, 1),
    (lambda of: {"predictions": [[]]}, 1),
    (lambda of: {"predictions": [3]}, 1),
    (lambda of: {"predictions": [[[1, 2, 30, 40]] * 2]}, 1),
    (lambda of: {"predictions": [[[1, 2, "x", 40, 0.9]]]}, 1),
    (lambda of: {"predictions": []}, 1),
]


@pytest.mark.parametrize(("change", "least"), BOXES)
def test_other_boxes(
    change: Callable[[dict[str, Any]], object], least: float, tmp_path: Path
) -> None:
    """Scores by their difference, places by the size of what is in the image, one missing as 1."""
    test_another_answer("detection", change, least, tmp_path)


@pytest.mark.parametrize(("task", "change", "least"), OTHERS)
@pytest.mark.attack("A server answers otherwise than the model was evaluated")
def test_another_answer(
    task: Task, change: Callable[[dict[str, Any]], object], least: float, tmp_path: Path
) -> None:
    """One row of all: it is counted, told by its unit, and as large as it is."""
    found = parity_check(tmp_path, written(tmp_path, task), "predictions/0").run(
        asked(task, change)
    )
    assert (found["rows"], found["differing"]) == (COUNT, 1)
    assert float(str(found["largest"])) >= least * 0.999
    assert str(found["example"]).startswith("for r7 of test the server predicts ")


def test_no_row_of_the_request_is_told(tmp_path: Path) -> None:
    """The sentence goes into git with the evidence: it has the unit and the answers."""
    asks = parity_check(tmp_path, written(tmp_path, "binary"), "predictions/0")
    assert '"row"' not in str(asks.run(lambda _: Answer(500, {}))["example"])


def reason(folder: Path, evaluation: Evaluation, pointer: str = "predictions/0") -> str:
    """Why a server cannot be asked."""
    asks = parity_check(folder, evaluation, pointer)
    assert asks.run(asked("binary")) == {"reason": asks.reason} and not asks.rows
    return asks.reason


def test_what_cannot_be_asked_says_what_to_do(tmp_path: Path) -> None:
    """No pointer, no requests, and files that are not those of the evidence."""
    evaluation = written(tmp_path, "binary")
    assert parity_check(tmp_path, evaluation, "predictions/0").reason == ""
    assert "`traffic.prediction` in release.yml" in reason(tmp_path, evaluation, "")
    assert "`Rows.requests`" in reason(tmp_path, replace(evaluation, requests=None))
    assert "requests.jsonl is not the file" in reason(tmp_path, replace(evaluation, requests="b"))
    other = replace(evaluation, predictions=KeptPredictions("predictions.csv", "b" * 64, 1))
    assert "predictions.csv is not the file" in reason(tmp_path, other)
    path = tmp_path / "requests.jsonl"
    text = path.read_text().replace('"r7"', '"r70"').encode()
    path.write_bytes(text)
    renamed = replace(evaluation, requests=sha256(text).hexdigest())
    assert "has no row 'r70'" in reason(tmp_path, renamed)


def test_numbers_are_compared_by_their_size() -> None:
    """A target in millionths differs as one in millions does; near zero the usual size counts."""

    def largest(scale: float, served: float) -> float:
        sizes = [0.0, 1.0, -1.0, 2.0]
        rows = [
            Evaluated(
                Request("test", f"r{at}", {"row": at}),
                Prediction(f"r{at}", "test", {}, "0", repr(of * scale)),
            )
            for at, of in enumerate(sizes)
        ]
        answers = [of * scale for of in sizes]
        answers[0] = served * scale
        asks = ParityCheck(rows, "regression", "y")
        found = asks.run(lambda request: Answer(200, {"y": answers[int(str(request["row"]))]}))
        return float(str(found["largest"]))

    for scale in (1e-6, 1.0, 1e6):
        assert largest(scale, 0.01) == pytest.approx(0.01)
        assert largest(scale, 1e-15) < 1e-12


class Green:
    """A deployment before it gets traffic."""

    def __init__(self, task: Task, change: Callable[[dict[str, Any]], object]) -> None:
        self.ask = asked(task, change)

    def score(self, server: object, body: Mapping[str, object]) -> Answer:
        """Its answer."""
        return self.ask(body)

    def failure(
        self, slot: Path, code: str, what: str, expected: str = "", hint: str = ""
    ) -> UserError:
        """The error, without a log."""
        return UserError(Problem(code, what, expected, hint))


def checked(
    folder: Path, change: Callable[[dict[str, Any]], object], pointer: str = "predictions/0"
) -> int:
    """What apply says of the deployment."""
    asks = parity_check(folder, written(folder, "binary"), pointer)
    endpoints, server = cast(Endpoints, Green("binary", change)), Server(folder, 1, 1)
    return canary.run_parity_check(endpoints, server, asks, 1e-6)


@pytest.mark.attack(
    "A deployment answers otherwise than the server that was asked for the evidence"
)
def test_the_deployment_is_asked_before_it_gets_traffic(tmp_path: Path) -> None:
    """A rounding is none; another answer is a fault of it, and what cannot be asked is not."""
    assert checked(tmp_path, lambda of: {"predictions": [of["predictions"][0] + 1e-9]}) == COUNT
    with pytest.raises(UserError, match=r"prediction-mismatch.*for r7 of test the server predicts"):
        checked(tmp_path, lambda of: {"predictions": [of["predictions"][0] + 1e-5]})
    with pytest.raises(UserError, match=r"predictions-unverified.*traffic\.prediction"):
        checked(tmp_path, lambda of: None, pointer="")
    assert "prediction-mismatch" in applying.FAULTS_OF_GREEN
    assert "predictions-unverified" not in applying.FAULTS_OF_GREEN


def champion_on(
    folder: Path, task: Task, monkeypatch: pytest.MonkeyPatch, ask: Any, **changes: object
) -> tuple[Evidence, Evidence]:
    """The candidate's evidence, and the champion's with the candidate's rows asked of it."""

    backend = SimpleNamespace(candidate=lambda deployment: nullcontext(SimpleNamespace(score=ask)))
    own = Evidence(evaluation=written(folder, task))
    version = Version("tiny", "1", "sha256:" + "a" * 64, "tiny", "run", "")
    kept = version.evidence_folder
    kept.mkdir(parents=True)
    text = content([Request("test", "r0", {"row": 0, **changes})])
    (kept / "requests.jsonl").write_bytes(text)
    hashed = sha256(text).hexdigest()
    evaluation = replace(own.evaluation, requests=hashed, primary_metric="other")
    theirs = Evidence(evaluation=evaluation, serving=Served(prediction="predictions/0"))
    monkeypatch.setattr(served, "model_deployment", lambda *_: None)
    spec = cast(DeploymentSpec, None)
    return own, served.champion_on(cast(Backend, backend), own, folder, version, theirs, spec)


@pytest.mark.parametrize("task", SCORES)
def test_a_champion_answers_the_candidates_rows(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metrics of what its serving says: those of the same answers are the same."""
    own, theirs = champion_on(tmp_path, task, monkeypatch, asked(task))
    mine = with_predictions(own, read_predictions(tmp_path / "predictions.csv", own.evaluation))
    assert theirs.outcomes["test"] == mine.outcomes["test"]
    assert theirs.labels["test"] == mine.labels["test"] and theirs.mismatches == ()
    again, before = theirs.evaluation, own.evaluation
    assert again.metrics["test"] == before.metrics["test"] and again.slices == before.slices
    assert (again.primary_metric, theirs.data) == (before.primary_metric, own.data)


def test_of_a_ranking_what_comes_first_is_compared(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is the right one; a metric of later places cannot follow from it."""
    monkeypatch.setitem(SCORES, "ranking", SCORES["multiclass"])
    monkeypatch.setitem(LABELS, "ranking", LABELS["multiclass"])
    monkeypatch.setitem(PRIMARY, "ranking", "gain_at_1")
    first = asked("multiclass")
    own, theirs = champion_on(tmp_path / "a", "ranking", monkeypatch, first)
    mine = with_predictions(own, read_predictions(tmp_path / "a/predictions.csv", own.evaluation))
    assert (
        theirs.outcomes["test"] == mine.outcomes["test"]
        and theirs.labels["test"] == mine.labels["test"]
    )
    first_place = own.evaluation.metrics["test"]["gain_at_1"]
    assert theirs.evaluation.metrics["test"] == {"gain_at_1": first_place}
    shutil.rmtree(own_home)
    monkeypatch.setitem(PRIMARY, "ranking", "mean_rank")
    with pytest.raises(ValueError, match="mean_rank needs more than the champion's answers"):
        champion_on(tmp_path / "b", "ranking", monkeypatch, first)


def test_a_champion_gets_the_fields_that_it_knows(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that the data have no more cannot be asked, and neither can answers that say less."""
    with pytest.raises(ValueError, match="its requests have the field age"):
        champion_on(tmp_path / "a", "binary", monkeypatch, asked("binary"), age=3)
    shutil.rmtree(own_home)
    label = asked("binary", lambda of: {"predictions": ["1"]})
    with pytest.raises(ValueError, match='for r7 its own server returns "1" at `predictions/0`'):
        champion_on(tmp_path / "b", "binary", monkeypatch, label)


def test_a_table_is_asked_by_the_columns_of_before() -> None:
    """In their order, without those that are new."""
    table = {"input_data": {"columns": ["new", "b", "a"], "data": [[1, 2, 3], [4, 5, 6]]}}
    before = {"input_data": {"columns": ["a", "b"], "data": [[0, 0]]}}
    asks = {"input_data": {"columns": ["a", "b"], "data": [[3, 2], [6, 5]]}}
    assert with_fields_of(table, before) == asks
    with pytest.raises(ValueError, match="its requests have the column new"):
        with_fields_of(before, table)


@pytest.mark.attack("An evaluation says otherwise of rows that it does not have asked")
def test_every_row_may_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A promoted row without a request refuses, and beyond the first the rows are drawn."""
    evaluation = written(tmp_path, "binary")
    path = tmp_path / "requests.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    fewer = replace(evaluation, requests=sha256(path.read_bytes()).hexdigest())
    assert "`Rows.requests` needs one per row" in reason(tmp_path, fewer)
    path.write_bytes(b"".join(lines))
    monkeypatch.setattr(served, "FIRST", 10)
    monkeypatch.setattr(served, "DRAWN", 10)
    asks = [parity_check(tmp_path, evaluation, "predictions/0").rows for _ in range(4)]
    assert {len(rows) for rows in asks} == {20} and len({str(rows[10:]) for rows in asks}) > 1
    assert len({str(rows[:10]) for rows in asks}) == 1


@pytest.mark.attack("A model that crashes its library is served to be measured")
def test_no_server_is_started_with_a_faulty_model(tmp_path: Path) -> None:
    """The file and its fault are named; a file that is whole, or no model, is no reason."""
    (tmp_path / "words.json").write_text("{}")
    served.refuse_faulty(tmp_path)
    (tmp_path / "model.json").write_text('{"learner": {}, "version": [3, 2, 0]}')
    with pytest.raises(UserError, match=r"model\.json: xgboost-json: learner: there is no"):
        served.refuse_faulty(tmp_path)
