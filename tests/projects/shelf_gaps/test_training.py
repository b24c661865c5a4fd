"""From a folder of images to a model that is measured and served, by small networks."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if not find_spec("torchvision"):
    pytest.skip("torchvision is not installed: make images", allow_module_level=True)

import torch
from werkzeug.test import EnvironBuilder
from werkzeug.wrappers import Request

from ml.measures.evaluation import read_evaluation, read_requests
from ml.projects.shelf_gaps import evaluate, occlusion
from ml.projects.shelf_gaps.dataset import TRAIN, opened
from ml.projects.shelf_gaps.detector import Detections, Detector
from ml.projects.shelf_gaps.endpoint import score
from ml.projects.shelf_gaps.images import Letterboxed
from ml.projects.shelf_gaps.network import Network, build, export
from ml.projects.shelf_gaps.parity import agreement
from ml.projects.shelf_gaps.pictures import Pictures, augmented, network_batch
from ml.projects.shelf_gaps.train import main
from ml.toolkit.training.model_folder import unseal
from policies.supply_chain.formats import formats
from tests.projects.shelf_gaps.conftest import ARGUMENTS, SIZE

REQUESTS = Path(score.__file__).with_name("requests.jsonl")


def noise(size: int, seed: int) -> Letterboxed:
    pixels = np.random.default_rng(seed).integers(0, 255, (size, size, 3), dtype=np.uint8)
    return Letterboxed(pixels, 1.0, size, size, 0.5)


@pytest.mark.parametrize(
    "about",
    [
        Network(channels=16, size=96, boxes=30, proposals=60),
        # The reference's backbone, anchors of other sizes and ratios, another size of image.
        Network("resnet50", 16, 64, "16-24-32-48-64", "0.75-1.5", 0.4, 0.3, proposals=40),
    ],
    ids=["resnet18", "resnet50"],
)
def test_the_export_says_what_the_network_says(about: Network, tmp_path: Path) -> None:
    """99 of 100 boxes, of images that it was not traced with; of standard operators alone."""
    torch.manual_seed(0)
    network = build(about)
    # At random all scores are alike: these lie apart.
    torch.nn.init.normal_(network.roi_heads.box_predictor.cls_score.weight, std=0.3)
    export(network, about.size, tmp_path / "model.onnx")
    facts = {"hyperparameters": {"size": about.size}}
    (tmp_path / "settings.json").write_text(json.dumps(facts))
    detector = Detector(tmp_path)
    images = [noise(about.size, seed) for seed in range(3)]
    assert sum(len(detector.detect(of).boxes) for of in images) >= 15
    assert agreement(network, detector, images) >= 0.99
    assert formats(tmp_path)["model.onnx"] == "onnx"
    # And it would be told if they differed.
    with torch.no_grad():
        network.roi_heads.box_predictor.bbox_pred.bias += 0.5
    assert agreement(network, detector, images) < 0.5


@pytest.mark.parametrize(
    "wrong",
    [{"anchors": "8-16"}, {"anchors": "8-16-x-32-64"}, {"ratios": "0-1"}, {"size": 100}],
)
def test_what_cannot_be_built(wrong: dict[str, Any]) -> None:
    """A ValueError with what is expected."""
    with pytest.raises(ValueError, match="expected"):
        Network.from_mapping({**Network().as_dict(), **wrong})


def test_pictures_and_their_changes(recipe: Path) -> None:
    """Boxes stay where their gaps are, however a picture is changed; a seed gives one change."""
    with opened(recipe) as splits:
        rows = Pictures(splits[TRAIN], SIZE).take(np.arange(4))
    for seed in range(10):
        new = augmented(rows, np.random.default_rng(seed))
        same = augmented(rows, np.random.default_rng(seed))
        assert all(np.array_equal(of, same[name]) for name, of in new.items())
        images, targets = network_batch({name: torch.from_numpy(of) for name, of in new.items()})
        assert images[0].shape == (3, SIZE, SIZE) and 0 <= float(images[0].min()) <= 1
        for target in targets:
            assert len(target["boxes"]) == len(target["labels"]) == len(target["masks"])
            for box, mask in zip(target["boxes"].numpy(), target["masks"].numpy(), strict=True):
                down, across = np.nonzero(mask)
                around = (across.min(), down.min(), across.max() + 1, down.max() + 1)
                assert np.abs(box - around).max() <= 2.5
    assert not np.array_equal(new["pixels"], rows["pixels"])


def test_a_training_that_was_stopped_goes_on(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after an epoch and started again, it ends with the same weights."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")

    def run(name: str) -> str:
        folders = ("--model", str(tmp_path / name), "--checkpoints", str(tmp_path / "kept" / name))
        main(["--data", str(recipe), *folders, *ARGUMENTS])
        return unseal(tmp_path / name)[0]["measured"]

    whole = run("whole")
    add = "ml.projects.shelf_gaps.train.Checkpoints.after_step"
    after, ends = _resolve(add), iter([False] * 3 + [True])

    def leaving(self: Any, step: int, metric: float | None = None) -> None:
        after(self, step, 0.0 if step == 3 else metric)  # with a metric it is kept
        self.finish()
        if next(ends):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(add, leaving)
        with pytest.raises(KeyboardInterrupt):
            run("stopped")
    assert run("stopped") == whole
    ours, theirs = ((tmp_path / of / "model.onnx").read_bytes() for of in ("whole", "stopped"))
    assert ours == theirs


def _resolve(path: str) -> Any:
    from ml.toolkit.torch.checkpoints import Checkpoints

    return getattr(Checkpoints, path.rpartition(".")[2])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--anchors", "8-16"], "5 sizes"),
        (["--epochs", "0"], "at least 1"),
        (["--batch", "500"], "batch of 500 rows"),
        (["--backbone", "resnet"], "Unknown model"),
    ],
)
def test_what_cannot_be_trained(
    arguments: list[str],
    told: str,
    recipe: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2 and a sentence."""
    with pytest.raises(SystemExit) as ended:
        main(["--data", str(recipe), "--model", str(tmp_path), *arguments])
    assert ended.value.code == 2 and told in capsys.readouterr().err


def test_the_evaluation(trained: Path, recipe: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Both splits beside the baseline, slices, requests of every image, what is watched."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    folder = tmp_path / "evaluation"
    evaluate.main(["--data", str(recipe), "--model", str(trained), "--evaluation", str(folder)])
    evaluation = read_evaluation(folder)
    assert evaluation.task == "detection" and evaluation.primary_metric == "map_50"
    assert {*evaluation.metrics} == {*evaluation.baseline} == {"validation", "test"}
    assert {*evaluation.slices} == {"store", "lighting"}
    assert {of.feature for of in evaluation.contributions} == {*occlusion.REGIONS}
    assert evaluation.explanation.error < 1e-9
    assert [of.value for of in evaluation.leakage] == [0.0]
    requests = read_requests(folder / "requests.jsonl", evaluation.requests or "")
    assert (
        len(requests) == 4
        and base64.b64decode(str(requests[0].request["image"]))[:2] == b"\xff\xd8"
    )
    reference = json.loads((folder / "reference.json").read_text())
    assert {*reference["predictions"]} == {"gaps", "expected_gaps", "empty", "image/brightness"}
    chosen = json.loads((folder / "looked_at" / "chosen.json").read_text())
    assert len(chosen["worst"]) == 3 and all(
        (folder / "looked_at" / f"{name}.img").is_file()
        for name in chosen["worst"] + chosen["best"]
    )


def asked(body: Any = None, **options: Any) -> Request:
    """A request as Azure ML's server hands it over."""
    return Request(EnvironBuilder("/score", method="POST", json=body, **options).get_environ())


@pytest.fixture(scope="module")
def opened_endpoint(trained: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AZUREML_MODEL_DIR", str(trained))
        patch.delenv("MODEL_DIGEST", raising=False)
        score.init()


@pytest.mark.usefixtures("opened_endpoint")
def test_the_endpoint_answers() -> None:
    """Base64 and a form say the same; boxes lie in the image."""
    sample = json.loads(REQUESTS.read_text().partition("\n")[0])
    answer = score.run(asked(sample))
    assert isinstance(answer, dict)
    content = base64.b64decode(sample["image"])
    form = {"image": (io.BytesIO(content), "shelf.jpg")}
    assert score.run(asked(data=form)) == answer
    assert answer["image"] == {
        "width": 160,
        "height": 160,
        "brightness": pytest.approx(0.4, abs=0.4),
    }
    for x1, y1, x2, y2, of in answer["boxes"]:
        assert 0 <= x1 <= x2 <= 160 and 0 <= y1 <= y2 <= 160 and 0 <= of <= 1
    assert answer["expected_gaps"] == pytest.approx(sum(of[4] for of in answer["boxes"]), abs=1e-4)


@pytest.mark.usefixtures("opened_endpoint")
@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (lambda: asked({"image": "no base64!"}), "invalid base64"),
        (lambda: asked({"image": base64.b64encode(b"GIF89a" * 9).decode()}), "no image"),
        (lambda: asked({"picture": "x"}), "an unknown field"),
        (lambda: asked({}), "nothing"),
        (lambda: asked([1]), "list"),
        (lambda: asked(data=b"\xff\xd8\xff"), "not JSON"),
        (lambda: asked(data={"other": "x", "file": (io.BytesIO(b"x"), "a")}), "a file named"),
        (lambda: asked(data={"image": "x" * 600_000, "b": (io.BytesIO(b""), "b")}), "a form that"),
        (lambda: asked(data=b"x" * (score.MOST_BODY + 1)), "bytes"),
    ],
)
def test_what_the_endpoint_refuses(request_: Any, told: str) -> None:
    """Status 400 and a sentence."""
    answer: Any = score.run(request_())
    assert answer.status_code == 400
    assert told in json.loads(answer.get_data())["error"]["message"]


def test_answers_of_boxes() -> None:
    """Certain boxes are gaps; their masks say how much of the image is empty."""
    boxes = np.array([[0, 0, 50, 20, 0.9], [0, 0, 10, 10, 0.5], [0, 0, 99, 99, 0.2]])
    answer = Detections(boxes, np.array([0.5, 1.0, 1.0])).of_size(100, 100)
    assert answer["gaps"] == 2 and answer["expected_gaps"] == 1.6 and answer["empty"] == 0.06
    nothing = Detections(np.zeros((0, 5)), np.zeros(0)).of_size(100, 100)
    assert nothing == {"gaps": 0, "expected_gaps": 0.0, "empty": 0.0, "boxes": []}


class Bright:
    """A model that expects as many gaps as the square is bright: what adds up is known."""

    size = 64

    def detect(self, image: Letterboxed) -> Detections:
        return self.detected(image.planes(), 1.0, 64, 64)

    def detected(self, planes: Any, scale: float, width: int, height: int) -> Detections:
        box = [[8, 8, 24, 24, float(planes.mean())]]
        return Detections(np.array(box), np.ones(1))


def test_occlusion_adds_up() -> None:
    """Contributions are the share of brightness that each region has."""
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[8:24, 8:24] = 255
    image = replace(noise(64, 0), pixels=pixels)
    model: Any = Bright()
    of = occlusion.shares(model, [image], [model.detect(image)]).contributions
    blurred = occlusion._painted(pixels).mean() / 255
    assert of.values.sum() == pytest.approx(pixels.mean() / 255 - blurred, abs=1e-6)
    assert of.error < 1e-6
