"""The operators that are registered where torchvision's own cannot be loaded."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import numpy as np
import pytest

if not find_spec("torchvision"):
    pytest.skip("torchvision is not installed: make images", allow_module_level=True)

import torch
from onnx import TensorProto, helper
from onnxruntime import InferenceSession

from ml.projects.shelf_gaps import operators

import torchvision  # isort: skip
from torchvision.ops import roi_align as through_torchvision  # isort: skip

# torchvision's own formula in Python, without its compiler.
REFERENCE = sys.modules["torchvision.ops.roi_align"]


def boxes(count: int, side: float, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(count, 2, generator=generator) * side
    return torch.cat([corner, corner + 1 + torch.rand(count, 2, generator=generator) * side], dim=1)


def plainly(boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> list[int]:
    """Non-maximum suppression as its definition reads."""
    kept: list[int] = []
    for at in scores.argsort(descending=True, stable=True).tolist():
        overlaps = torchvision.ops.box_iou(boxes[at : at + 1], boxes[kept])[0] if kept else []
        if all(of <= threshold for of in overlaps):
            kept.append(at)
    return kept


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("threshold", [0.3, 0.7])
def test_suppression(seed: int, threshold: float) -> None:
    """By its definition, on boxes of which many overlap; none of none."""
    many, scores = (
        boxes(120, 40, seed),
        torch.rand(120, generator=torch.Generator().manual_seed(seed)),
    )
    found = operators.nms(many, scores, threshold).tolist()
    assert found == plainly(many, scores, threshold) and 5 < len(found) < 120
    assert found == torchvision.ops.nms(many, scores, threshold).tolist()
    assert operators.nms(many[:0], scores[:0], threshold).tolist() == []


def by_onnx_runtime(
    features: torch.Tensor, rois: torch.Tensor, sampling_ratio: int, aligned: bool
) -> np.ndarray:
    """The operator RoiAlign of the standard, to bins of 4 × 5 at half the scale."""
    names = ("features", "rois", "images")
    node = helper.make_node(
        "RoiAlign",
        names,
        ["pooled"],
        output_height=4,
        output_width=5,
        spatial_scale=0.5,
        sampling_ratio=max(0, sampling_ratio),
        coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
    )
    kinds = (TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.INT64)
    inputs = [helper.make_tensor_value_info(*of, None) for of in zip(names, kinds, strict=True)]
    output = helper.make_tensor_value_info("pooled", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "pooling", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=9)
    session = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    values = (features, rois[:, 1:], rois[:, 0].long())
    return session.run(None, {name: of.numpy() for name, of in zip(names, values, strict=True)})[0]


@pytest.mark.parametrize("sampling_ratio", [2, 1, -1])
@pytest.mark.parametrize("aligned", [False, True])
def test_pooling_is_that_of_onnx(sampling_ratio: int, aligned: bool) -> None:
    """For regions that reach out of the image too: what lies outside is nothing."""
    features = torch.rand(2, 3, 20, 24)
    rois = torch.cat([torch.arange(12)[:, None] % 2, boxes(12, 30, 1) - 6], dim=1)
    ours = operators.roi_align(features, rois, 0.5, 4, 5, sampling_ratio, aligned)
    assert ours.shape == (12, 3, 4, 5)
    theirs = by_onnx_runtime(features, rois, sampling_ratio, aligned)
    assert np.abs(ours.numpy() - theirs).max() < 5e-6


@pytest.mark.parametrize("sampling_ratio", [2, -1])
def test_gradients_of_pooling(sampling_ratio: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of torchvision's formula in Python, for regions in the image."""
    # torchvision compiles it on its first call, which takes a C++ compiler.
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    features = torch.rand(2, 3, 20, 24, requires_grad=True)
    rois = torch.cat([torch.arange(9)[:, None] % 2, boxes(9, 15, 1)], dim=1)
    gradients = []
    for of in (operators.roi_align, REFERENCE._roi_align):
        features.grad = None
        of(features, rois, 0.5, 4, 5, sampling_ratio, False).square().sum().backward()
        gradients.append(features.grad)
    assert torch.allclose(gradients[0], gradients[1], atol=5e-5)


def test_torchvision_calls_them() -> None:
    """Under its own names: a network of torchvision needs nothing else."""
    features, rois = torch.rand(1, 2, 8, 8), torch.tensor([[0.0, 1.0, 1.0, 6.0, 6.0]])
    ours = operators.roi_align(features, rois, 1.0, 2, 2, 2, False)
    assert torch.allclose(through_torchvision(features, rois, (2, 2), 1.0, 2), ours, atol=1e-6)


def test_half_precision_keeps_coordinates() -> None:
    """Under autocast features may be bfloat16; where they are sampled is not."""
    features = torch.rand(1, 2, 64, 64)
    rois = torch.tensor([[0.0, 33.3, 12.7, 57.1, 49.9]])
    half = operators.roi_align(features.bfloat16(), rois, 1.0, 7, 7, 2, False)
    assert half.dtype == torch.bfloat16
    whole = operators.roi_align(features.bfloat16().float(), rois, 1.0, 7, 7, 2, False)
    assert np.abs((half.float() - whole).numpy()).max() < 0.01


def test_nothing_is_registered_where_the_library_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine where torchvision is whole, its own operators stay."""
    monkeypatch.setattr(operators, "_loads", lambda: True)
    assert operators._register() is None
    assert (operators.REGISTERED is None) is bool(torchvision.extension._load_library("_C"))
