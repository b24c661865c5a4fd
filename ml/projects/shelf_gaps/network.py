"""Mask R-CNN, built with torchvision, with a ResNet backbone of any size.

Its inputs are square images of one size (`images.letterboxed`), so the network does not resize.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import ml.projects.shelf_gaps.operators  # noqa: F401  torchvision needs it before

# isort: split
from torchvision.models import get_model
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.rpn import AnchorGenerator

# Background and gap.
CLASSES = 2
OPSET = 17
# Levels of the feature pyramid; each has anchors of one size.
LEVELS = 5


@dataclass(frozen=True)
class Network:
    """The settings of the network; each field is an argument of train.py."""

    backbone: str = "resnet18"  # a ResNet of torchvision
    channels: int = 64  # channels of the feature pyramid
    size: int = 160  # side of the input in pixels
    anchors: str = "12-20-32-48-80"  # size in pixels at each level of the pyramid
    ratios: str = "0.5-1-2"  # height / width of the anchors
    rpn_nms: float = 0.7  # IoU threshold of non-maximum suppression of proposals
    nms: float = 0.5  # IoU threshold of non-maximum suppression of boxes
    proposals: int = 150  # maximum per image; twice as many in training
    boxes: int = 50  # maximum per image
    least_score: float = 0.02  # boxes with a lower score are dropped

    def __post_init__(self) -> None:
        if len(_numbers(self.anchors)) != LEVELS:
            raise ValueError(
                f"anchors {self.anchors}, expected {LEVELS} sizes such as 8-16-32-64-128"
            )
        if not all(number > 0 for number in (*_numbers(self.anchors), *_numbers(self.ratios))):
            raise ValueError(f"anchors {self.anchors} and ratios {self.ratios}, expected above 0")
        if self.size % 32 or not 64 <= self.size <= 2048:
            raise ValueError(f"size {self.size}, expected a multiple of 32 from 64 to 2048")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Network:
        """Return the settings in `values`; ignore other keys, raise ValueError if invalid."""
        return cls(**{field.name: values[field.name] for field in fields(cls)})

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


def build(about: Network) -> MaskRCNN:
    """Return the network with random weights; nothing is downloaded."""
    body = get_model(about.backbone, weights=None)
    widths = [getattr(body, f"layer{number}")[-1].bn2.num_features for number in range(1, 5)]
    if hasattr(body.layer1[-1], "bn3"):  # a bottleneck
        widths = [getattr(body, f"layer{number}")[-1].bn3.num_features for number in range(1, 5)]
    pyramid = BackboneWithFPN(
        body,
        {f"layer{number + 1}": str(number) for number in range(4)},
        widths,
        about.channels,
        norm_layer=nn.BatchNorm2d,
    )
    sizes = tuple((size,) for size in _numbers(about.anchors))
    ratios = (_numbers(about.ratios),) * LEVELS
    hidden = 4 * about.channels
    return MaskRCNN(
        pyramid,
        rpn_anchor_generator=AnchorGenerator(sizes, ratios),
        min_size=about.size,
        max_size=about.size,
        _skip_resize=True,
        rpn_pre_nms_top_n_train=2 * about.proposals,
        rpn_pre_nms_top_n_test=about.proposals,
        rpn_post_nms_top_n_train=2 * about.proposals,
        rpn_post_nms_top_n_test=about.proposals,
        rpn_nms_thresh=about.rpn_nms,
        rpn_batch_size_per_image=128,
        box_head=TwoMLPHead(about.channels * 7 * 7, hidden),
        box_predictor=FastRCNNPredictor(hidden, CLASSES),
        box_nms_thresh=about.nms,
        box_score_thresh=about.least_score,
        box_detections_per_img=about.boxes,
        box_batch_size_per_image=64,
        mask_head=MaskRCNNHeads(about.channels, (about.channels,) * 2, 1),
        mask_predictor=MaskRCNNPredictor(about.channels, about.channels, CLASSES),
    )


class OneImage(nn.Module):  # type: ignore[misc]
    """The served network, which takes one image (3, size, size) from 0 to 1.

    It returns boxes (n, 4) in pixels, scores (n) and mask probabilities (n, 28, 28) inside the
    boxes.
    """

    def __init__(self, network: MaskRCNN) -> None:
        super().__init__()
        self.network = network.eval()

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the boxes, scores and masks of one image."""
        images, _ = self.network.transform([image])
        features = self.network.backbone(images.tensors)
        proposals, _ = self.network.rpn(images, features)
        answers, _ = self.network.roi_heads(features, proposals, images.image_sizes)
        return answers[0]["boxes"], answers[0]["scores"], answers[0]["masks"][:, 0]


def export(network: MaskRCNN, size: int, file: Path) -> None:
    """Write the network as ONNX with standard operators only (RoiAlign, NonMaxSuppression)."""
    with torch.no_grad(), warnings.catch_warnings():
        # Ignore tracer warnings: `parity` compares the outputs.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            OneImage(network),
            (torch.rand(3, size, size),),
            str(file),
            # The dynamo exporter cannot export operators without a shape function.
            dynamo=False,
            opset_version=OPSET,
            input_names=["image"],
            output_names=["boxes", "scores", "masks"],
            dynamic_axes={name: {0: "boxes"} for name in ("boxes", "scores", "masks")},
        )


def _numbers(text: str) -> Sequence[float]:
    try:
        return tuple(float(number) for number in text.split("-"))
    except ValueError:
        raise ValueError(f"{text!r}, expected numbers such as 8-16-32") from None
