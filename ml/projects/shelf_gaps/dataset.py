"""Read a folder of images with Pascal VOC annotations, and split it by store.

    JPEGImages/NAME.jpg               the images; .jpeg, .png and .webp too
    Annotations/NAME.xml              the gaps: a `bndbox` in pixels for each `object` named `gap`;
                                      other objects are ignored
    ImageSets/Main/STORE.txt          the names of the store's images, one per line
    SegmentationObject/NAME.png       optional masks: the pixels of the annotation's object k have
                                      the value k; a gap without a mask fills its box

Alternatively, a folder has `recipe.json`, from which `shelves` draws such a folder:
`{"seed": 0, "size": 160, "stores": {"north": 25, …}}`.

A hash of its name assigns a store to a split, so that adding stores does not move others. Test
stores are never in training.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ml.projects.shelf_gaps.images import FORMATS, decoded, letterboxed, planes_of
from ml.projects.shelf_gaps.shelves import shelves
from ml.serving.scoring.messages import BadRequest
from ml.toolkit.data.tables import DataRefused, Flaw

TRAIN, VALIDATION, TEST = "train", "validation", "test"
# Tenths of the stores for training and for validation; the rest is the test.
_TRAIN, _VALIDATION = 6, 2
RECIPE = "recipe.json"
LABEL = "gap"
_IMAGES, _ANNOTATIONS = "JPEGImages", "Annotations"
_STORES, _MASKS = Path("ImageSets/Main"), "SegmentationObject"
_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
# Mean luminance (0 to 1) below which an image is dim, and above which it is bright.
_DIM, _BRIGHT = 0.25, 0.42


@dataclass(frozen=True)
class Picture:
    """An image of a store with its gaps."""

    name: str
    store: str
    file: Path
    masks_file: Path | None  # None: masks fill their boxes
    boxes: NDArray[np.float64]  # (n, 4): x1, y1, x2, y2 in pixels of the image
    # Per box: its object number in the annotation and in `masks_file`, from 1.
    objects: Sequence[int]

    @property
    def annotation(self) -> Path:
        """The annotation file of the image."""
        return self.file.parent.parent / _ANNOTATIONS / f"{self.name}.xml"

    def sample(self, size: int) -> Sample:
        """Return the image letterboxed to `size` × `size`, with its boxes and masks."""
        image = letterboxed(decoded(self.file.read_bytes(), size), size)
        boxes = self.boxes * image.scale
        masks = np.zeros((len(boxes), size, size), dtype=np.uint8)
        if self.masks_file is not None:
            with Image.open(self.masks_file) as opened:
                side = (round(image.width * image.scale), round(image.height * image.scale))
                values = np.asarray(opened.resize(side, Image.Resampling.NEAREST))
            for mask, number in zip(masks, self.objects, strict=True):
                mask[: values.shape[0], : values.shape[1]] = values == number
        for mask, (left, above, right, below) in zip(masks, boxes.round().astype(int), strict=True):
            if not mask.any():
                mask[above:below, left:right] = 1
        return Sample(image.pixels, boxes, masks, image.scale, image.brightness)


@dataclass(frozen=True)
class Sample:
    """A letterboxed picture with its boxes and masks, for the network."""

    pixels: NDArray[np.uint8]  # (size, size, 3)
    boxes: NDArray[np.float64]  # (n, 4): x1, y1, x2, y2 in `pixels`
    masks: NDArray[np.uint8]  # (n, size, size): 0 or 1
    scale: float  # side in `pixels` / side of the image
    brightness: float  # mean luminance, 0 to 1

    @property
    def planes(self) -> NDArray[np.float32]:
        """The network's input (3, size, size), from 0 to 1."""
        return planes_of(self.pixels)


Splits = Mapping[str, Sequence[Picture]]


@contextmanager
def opened(folder: Path) -> Iterator[Splits]:
    """Yield the pictures by split. Files drawn from a recipe exist only within the context.

    Raises DataRefused with every problem of the folder.
    """
    if not (folder / RECIPE).is_file():
        yield read(folder)
        return
    with tempfile.TemporaryDirectory() as drawn:
        draw(folder / RECIPE, Path(drawn))
        yield read(Path(drawn))


def lighting(brightness: float) -> str:
    """Return `dim`, `normal` or `bright` for a mean luminance from 0 to 1."""
    if brightness < _DIM:
        return "dim"
    return "bright" if brightness > _BRIGHT else "normal"


def split_of(store: str) -> str:
    """Return the split of a store's images, by a hash of the store's name."""
    tenth = int.from_bytes(sha256(store.encode()).digest()[:4], "big") % 10
    return TRAIN if tenth < _TRAIN else VALIDATION if tenth < _TRAIN + _VALIDATION else TEST


def read(folder: Path) -> Splits:
    """Return the pictures of a VOC folder by split; raise DataRefused with every problem."""
    findings: list[Flaw] = []
    splits: dict[str, list[Picture]] = {TRAIN: [], VALIDATION: [], TEST: []}
    stores = _stores(folder, findings)
    files = {path.stem: path for path in sorted((folder / _IMAGES).glob("*"))}
    for name, store in sorted(stores.items()):
        file = files.get(name)
        if file is None or file.suffix.lower() not in _SUFFIXES:
            expected = f"{_IMAGES}/{name} with one of {', '.join(_SUFFIXES)}"
            hint = f"add the image, or delete {name} from {_STORES}/{store}.txt"
            findings.append(Flaw("no-image", folder / _IMAGES, 0, f"no {name}", expected, hint))
            continue
        if (gaps := _gaps(folder / _ANNOTATIONS / f"{name}.xml", findings)) is not None:
            masks = folder / _MASKS / f"{name}.png"
            picture = Picture(name, store, file, masks if masks.is_file() else None, *gaps)
            splits[split_of(store)].append(picture)
    if not findings:
        findings += [
            Flaw(
                "no-store",
                folder / _STORES,
                0,
                f"no image is in the split {split}",
                "stores in each split, which a hash of their names decides",
                "add stores; `split_of` in dataset.py returns the split of a store",
            )
            for split, pictures in splits.items()
            if not pictures
        ] or [
            Flaw(
                "no-gap",
                folder / _ANNOTATIONS,
                0,
                f"no image of the {split} has an object `{LABEL}`",
                "at least one gap in each split",
                f"name the objects `{LABEL}` in the annotations",
            )
            for split, pictures in splits.items()
            if not any(len(picture.boxes) for picture in pictures)
        ]
    if findings:
        raise DataRefused(findings)
    return splits


def draw(recipe: Path, folder: Path) -> None:
    """Draw the images of a recipe file into `folder`, in VOC layout.

    Raises DataRefused for an invalid recipe.
    """
    try:
        document = json.loads(recipe.read_text(encoding="utf-8"))
        seed, size = int(document["seed"]), int(document["size"])
        stores = {str(name): int(count) for name, count in document["stores"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        actual, expected = f"{type(error).__name__}: {error}", "seed, size and stores"
        hint = 'for example {"seed": 0, "size": 160, "stores": {"north": 25}}'
        raise DataRefused([Flaw("wrong-recipe", recipe, 0, actual, expected, hint)]) from None
    for name in (_IMAGES, _ANNOTATIONS, _MASKS, _STORES):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for store, count in stores.items():
        names = []
        for shelf in shelves(store, count, size, seed):
            shelf.image.save(folder / _IMAGES / f"{shelf.name}.jpg", quality=90)
            masks = Image.fromarray(shelf.gaps)
            masks.save(folder / _MASKS / f"{shelf.name}.png")
            tree = ElementTree.Element("annotation")
            ElementTree.SubElement(tree, "filename").text = f"{shelf.name}.jpg"
            for number in range(1, int(shelf.gaps.max()) + 1):
                _add_box(tree, shelf.gaps == number)
            ElementTree.ElementTree(tree).write(folder / _ANNOTATIONS / f"{shelf.name}.xml")
            names.append(shelf.name)
        (folder / _STORES / f"{store}.txt").write_text("\n".join(names) + "\n", encoding="utf-8")


def _add_box(tree: ElementTree.Element, mask: NDArray[np.bool_]) -> None:
    down, across = np.nonzero(mask)
    gap = ElementTree.SubElement(tree, "object")
    ElementTree.SubElement(gap, "name").text = LABEL
    box = ElementTree.SubElement(gap, "bndbox")
    corners = {"xmin": across.min(), "ymin": down.min(), "xmax": across.max(), "ymax": down.max()}
    for name, value in corners.items():
        # Add 1 to the maxima, because a box ends after its last pixel.
        ElementTree.SubElement(box, name).text = str(int(value) + (name in ("xmax", "ymax")))


def _stores(folder: Path, findings: list[Flaw]) -> dict[str, str]:
    """Return image name → store; append problems to `findings`."""
    stores: dict[str, str] = {}
    for path in sorted((folder / _STORES).glob("*.txt")):
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            findings.append(Flaw("wrong-list", path, 0, str(error), "names of images, in UTF-8"))
            continue
        if not any(map(str.split, lines)):
            hint = "write one name a line, or delete the file"
            findings.append(Flaw("wrong-list", path, 0, "no name", "names of images", hint))
        for line, text in enumerate(lines, start=1):
            # VOC may write a flag after the name: whether the image has the class.
            name = text.split()[0] if text.split() else ""
            if not name:
                continue
            if stores.setdefault(name, path.stem) != path.stem:
                actual, hint = (
                    f"{name} is also listed in {stores[name]}.txt",
                    "delete it from one of the lists",
                )
                findings.append(Flaw("duplicate-image", path, line, actual, "one store", hint))
    if not stores and not findings:
        expected = "a file STORE.txt for each store with the names of its images"
        hint = f"see dataset.py for the layout of the folder, or add a {RECIPE}"
        findings.append(Flaw("no-stores", folder / _STORES, 0, "no list", expected, hint))
    return stores


def _gaps(path: Path, findings: list[Flaw]) -> tuple[NDArray[np.float64], Sequence[int]] | None:
    """Return the gaps' boxes (n, 4) and object numbers in an annotation.

    For an invalid file, return None and append the problem to `findings`.
    """
    try:
        tree = ElementTree.parse(path).getroot()
        if tree.tag != "annotation":
            raise ValueError(f"the element `{tree.tag}`")
        gaps = {
            number: [
                float(gap.findtext(f"bndbox/{name}", ""))
                for name in ("xmin", "ymin", "xmax", "ymax")
            ]
            for number, gap in enumerate(tree.iter("object"), start=1)
            if gap.findtext("name", "").strip() == LABEL
        }
    except (OSError, ElementTree.ParseError, ValueError) as error:
        line = error.position[0] if isinstance(error, ElementTree.ParseError) else 0
        expected = "an `annotation` with `object`s, each with the four numbers of a `bndbox`"
        findings.append(Flaw("wrong-annotation", path, line, str(error), expected))
        return None
    result = np.array([*gaps.values()], dtype=np.float64).reshape(-1, 4)
    # NaN coordinates fail these comparisons too.
    if not ((result[:, :2] >= 0) & (result[:, :2] < result[:, 2:])).all():
        actual = "a box with a negative coordinate, or without area"
        expected, hint = "0 ≤ xmin < xmax, 0 ≤ ymin < ymax", "annotate the image again"
        findings.append(Flaw("wrong-annotation", path, 0, actual, expected, hint))
        return None
    return result, [*gaps]


def check_images(pictures: Sequence[Picture]) -> None:
    """Raise DataRefused for damaged images and invalid boxes or masks, before training starts."""
    findings = []
    for picture in pictures:
        try:
            image = decoded(picture.file.read_bytes())
        except (BadRequest, OSError) as error:
            actual = error.actual if isinstance(error, BadRequest) else str(error)
            expected, hint = f"a whole image: {', '.join(FORMATS)}", "export the image again"
            findings.append(Flaw("wrong-image", picture.file, 0, actual, expected, hint))
            continue
        size = (image.width, image.height)
        pixels = f"{image.width} × {image.height} pixels"
        if (picture.boxes[:, 2:] > size).any():
            actual = f"a box outside of {pixels}"
            findings.append(Flaw("wrong-annotation", picture.annotation, 0, actual, "boxes inside"))
        if picture.masks_file and (actual := _fault_of_masks(picture.masks_file, size)):
            expected, hint = f"one channel of {pixels}", "export the masks at the image's size"
            findings.append(Flaw("wrong-masks", picture.masks_file, 0, actual, expected, hint))
    if findings:
        raise DataRefused(findings)


def _fault_of_masks(file: Path, size: tuple[int, int]) -> str:
    """Return the problem of a masks file, or "" if it matches the image's (width, height)."""
    try:
        with Image.open(file) as masks:
            masks.load()
            size_text = f"{'×'.join(map(str, masks.size))} pixels, {len(masks.getbands())} channels"
            return "" if masks.size == size and len(masks.getbands()) == 1 else size_text
    # Image decoders may raise any exception.
    except Exception:
        return "not a readable image"
