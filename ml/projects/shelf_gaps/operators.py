"""Fallback for torchvision's operators `nms` and `roi_align` if its native library cannot load.

A CUDA build of torchvision with a CPU build of torch cannot load its library. `import torchvision`
then fails, because the operators that it extends do not exist. Import this module first: it
registers the two operators of Mask R-CNN, written in torch, under torchvision's names, which ONNX
export needs. It registers nothing if the native library loads.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

# torchvision only needs the schema of `qnms`; Mask R-CNN never calls it, so it has no kernel.
_SIGNATURES = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, int pooled_height, "
    "int pooled_width, int sampling_ratio, bool aligned) -> Tensor",
)


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Return the indices of the boxes (n, 4) after non-maximum suppression, highest score first.

    A box is suppressed if its IoU with a selected box exceeds the threshold.
    """
    order = scores.argsort(descending=True, stable=True)
    sorted_boxes = boxes[order].float()
    left_top = torch.maximum(sorted_boxes[:, None, :2], sorted_boxes[None, :, :2])
    right_bottom = torch.minimum(sorted_boxes[:, None, 2:], sorted_boxes[None, :, 2:])
    shared = (right_bottom - left_top).clamp(min=0).prod(dim=2)
    area = (sorted_boxes[:, 2:] - sorted_boxes[:, :2]).prod(dim=1)
    overlaps = (shared / (area[:, None] + area[None] - shared) > iou_threshold).numpy()
    suppressed = torch.zeros(len(order), dtype=torch.bool).numpy()
    selected = []
    for index in range(len(order)):
        if not suppressed[index]:
            selected.append(index)
            suppressed |= overlaps[index]
    return order[torch.tensor(selected, dtype=torch.int64)]


def roi_align(
    features: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    """Pool features (n, c, h, w) in regions of interest, as torchvision's `roi_align` does.

    `rois` is (k, 5): image number, x1, y1, x2, y2. Each bin is the mean of `sampling_ratio`²
    points, or of about one point per pixel if `sampling_ratio` is not positive. Returns
    (k, c, pooled_height, pooled_width).
    """
    # Compute in float32, like torchvision's operator under autocast.
    kind, features, rois = features.dtype, features.float(), rois.float()
    start = rois[:, 1:3] * spatial_scale - (0.5 if aligned else 0.0)
    size = rois[:, 3:5] * spatial_scale - (0.5 if aligned else 0.0) - start
    if not aligned:
        size = size.clamp(min=1.0)
    image, bins = rois[:, 0].long(), (pooled_height, pooled_width)
    if sampling_ratio > 0:
        points = (sampling_ratio, sampling_ratio)
        return _pooled(features, image, start, size, bins, points).to(kind)
    needed = (size.flip(1) / size.new_tensor(bins)).ceil().long().clamp(min=1)
    pooled = features.new_zeros(len(rois), features.shape[1], *bins)
    for rows, columns in needed.unique(dim=0).tolist():
        ids = (needed == needed.new_tensor((rows, columns))).all(dim=1).nonzero()[:, 0]
        part = _pooled(features, image[ids], start[ids], size[ids], bins, (rows, columns))
        pooled = pooled.index_copy(0, ids, part)
    return pooled.to(kind)


def _pooled(
    features: Tensor,
    image: Tensor,
    start: Tensor,
    size: Tensor,
    bins: tuple[int, int],
    points: tuple[int, int],
) -> Tensor:
    """Return `roi_align` for rois with the same number of points (down, across) in every bin."""
    height, width = features.shape[2:]

    def places(count: int, axis: int, end: int) -> tuple[Tensor, Tensor]:
        """Return the sampling positions per roi and axis in grid_sample's range, and a mask.

        The mask is False outside of the image.
        """
        steps = (torch.arange(count, dtype=start.dtype, device=start.device) + 0.5) / count
        place = start[:, axis, None] + steps * size[:, axis, None]
        return 2 * place.clamp(0, end - 1) / max(end - 1, 1) - 1, (place >= -1) & (place <= end)

    rows, columns = bins[0] * points[0], bins[1] * points[1]
    (x, x_in), (y, y_in) = places(columns, 0, width), places(rows, 1, height)
    grid = torch.stack(
        (x[:, None, :].expand(-1, rows, -1), y[:, :, None].expand(-1, -1, columns)), dim=-1
    )
    inside = (y_in[:, :, None] & x_in[:, None, :])[:, None].float()
    pooled = features.new_zeros(len(image), features.shape[1], *bins)
    for number in image.unique().tolist():
        ids = (image == number).nonzero()[:, 0]
        # Sample all rois of an image in one call, so that its features are not copied per roi.
        sampled = F.grid_sample(
            features[number : number + 1],
            grid[ids].reshape(1, -1, columns, 2),
            padding_mode="border",
            align_corners=True,
        )
        sampled = sampled.view(-1, len(ids), rows, columns).transpose(0, 1) * inside[ids]
        pooled = pooled.index_copy(0, ids, F.avg_pool2d(sampled, points))
    return pooled


def _loads() -> bool:
    """Return True if torchvision's native library loads with the installed torch."""
    package = importlib.util.find_spec("torchvision")
    for folder in (package.submodule_search_locations or ()) if package else ():
        for library in Path(folder).glob("_C*"):
            try:
                torch.ops.load_library(library)
            except OSError:
                continue
            return True
    return False


# Named functions, because TorchScript, which the export uses, does not support lambdas.
def _pass() -> None:
    pass


def _are_there() -> bool:
    return True


def _register() -> torch.library.Library | None:
    if _loads():
        return None
    library = torch.library.Library("torchvision", "DEF")
    for signature in _SIGNATURES:
        library.define(signature)
    library.impl("nms", nms, "CPU")
    library.impl("roi_align", roi_align, "CompositeImplicitAutograd")
    # Both modules check for the native library before each call. They are imported by name, because
    # the function `torchvision.ops.roi_align` hides the module.
    for module in map(
        importlib.import_module, ("torchvision.ops.boxes", "torchvision.ops.roi_align")
    ):
        vars(module).update(_assert_has_ops=_pass, _has_ops=_are_there)
    return library


# The reference keeps the operators registered. None if torchvision's native library loads.
REGISTERED = _register()
