"""Folders of images: drawn ones, Pascal VOC of one's own, and what is wrong with others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ml.projects.shelf_gaps import edges
from ml.projects.shelf_gaps.dataset import (
    TEST,
    TRAIN,
    VALIDATION,
    check_images,
    draw,
    lighting,
    opened,
    read,
    split_of,
)
from ml.projects.shelf_gaps.shelves import shelves
from ml.toolkit.data.tables import DataRefused
from tests.conftest import ROOT

ANNOTATION = (
    "<annotation><object><name>gap</name><bndbox><xmin>{}</xmin><ymin>10</ymin>"
    "<xmax>60</xmax><ymax>50</ymax></bndbox></object></annotation>"
)


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    """A folder of somebody's own, without masks: an image of a store of each split."""
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (tmp_path / name).mkdir(parents=True)
    for store in ("castle", "bridge", "north"):
        Image.new("RGB", (200, 100), "gray").save(tmp_path / f"JPEGImages/{store}1.jpg")
        (tmp_path / f"Annotations/{store}1.xml").write_text(ANNOTATION.format(20))
        (tmp_path / f"ImageSets/Main/{store}.txt").write_text(f"{store}1  1\n\n")
    return tmp_path


def test_the_same_seed_draws_the_same_pixels() -> None:
    """Of an image, whatever else is drawn; another seed draws another."""
    one, *_ = shelves("castle", 1, 64, 0)
    _, again = shelves("castle", 2, 64, 0)
    same, *_ = shelves("castle", 3, 64, 0)
    other, *_ = shelves("castle", 1, 64, 1)
    assert one.image.tobytes() == same.image.tobytes() != other.image.tobytes()
    assert again.image.tobytes() != one.image.tobytes()
    assert np.array_equal(one.gaps, same.gaps)


def test_a_recipe_is_drawn(recipe: Path) -> None:
    """Every store in its split, each box around its mask."""
    with opened(recipe) as splits:
        assert {name: len(of) for name, of in splits.items()} == {TRAIN: 4, VALIDATION: 4, TEST: 4}
        check_images([of for pictures in splits.values() for of in pictures])
        boxes = 0
        for picture in splits[TRAIN]:
            sample = picture.sample(64)
            for box, mask in zip(sample.boxes, sample.masks, strict=True):
                down, across = np.nonzero(mask)
                found = (across.min(), down.min(), across.max() + 1, down.max() + 1)
                assert np.abs(box - found).max() <= 1.5
                boxes += 1
        assert boxes >= 4
        folder = splits[TRAIN][0].file.parent
    assert not folder.exists()


def test_the_shipped_recipe() -> None:
    """200 images train, and no store is in two splits."""
    recipe = json.loads((ROOT / "ml/projects/shelf_gaps/data/shelf_gaps/recipe.json").read_text())
    counts = {TRAIN: 0, VALIDATION: 0, TEST: 0}
    for store, count in recipe["stores"].items():
        counts[split_of(store)] += count
    assert counts == {TRAIN: 200, VALIDATION: 100, TEST: 100}


def test_a_folder_of_ones_own(voc: Path) -> None:
    """A gap without a mask fills its box; boxes are scaled with the image."""
    (picture,) = read(voc)[TEST]
    sample = picture.sample(100)
    assert (picture.store, picture.boxes.tolist()) == ("north", [[20, 10, 60, 50]])
    assert sample.boxes.tolist() == [[10, 5, 30, 25]] and sample.scale == 0.5
    assert sample.masks.sum() == 20 * 20 and sample.masks[0, 5, 10] == 1
    assert lighting(sample.brightness) == "bright" and lighting(0.1) == "dim"


def test_a_store_stays_where_it_is(voc: Path) -> None:
    """Whatever other stores there are."""
    before = {of.name: split for split, pictures in read(voc).items() for of in pictures}
    for name in ("market", "lake", "river"):
        (voc / f"ImageSets/Main/{name}.txt").write_text(f"{name}1\n")
        Image.new("RGB", (64, 64)).save(voc / f"JPEGImages/{name}1.png")
        (voc / f"Annotations/{name}1.xml").write_text("<annotation/>")
    after = {of.name: split for split, pictures in read(voc).items() for of in pictures}
    assert before.items() < after.items()


def unlisted(folder: Path) -> None:
    (folder / "ImageSets/Main/north.txt").unlink()


def twice(folder: Path) -> None:
    (folder / "ImageSets/Main/north.txt").write_text("castle1\n")


BROKEN = [
    (lambda of: (of / "Annotations/castle1.xml").write_text("<annotation>"), "castle1.xml:1"),
    (lambda of: (of / "Annotations/castle1.xml").unlink(), "No such file"),
    (lambda of: (of / "Annotations/castle1.xml").write_text(ANNOTATION.format(99)), "xmin < xmax"),
    (lambda of: (of / "Annotations/castle1.xml").write_text(ANNOTATION.format("x")), "bndbox"),
    (
        lambda of: (of / "Annotations/castle1.xml").write_text(ANNOTATION.format("nan")),
        "xmin < xmax",
    ),
    (lambda of: (of / "Annotations/castle1.xml").write_text(ANNOTATION.format(-9)), "0 ≤ xmin"),
    (lambda of: (of / "Annotations/castle1.xml").write_text("<html/>"), "the element `html`"),
    (
        lambda of: (of / "Annotations/north1.xml").write_text(
            ANNOTATION.format(20).replace("gap", "bottle")
        ),
        "no image of the test has an object `gap`",
    ),
    (lambda of: (of / "ImageSets/Main/north.txt").write_bytes("é".encode("latin-1")), "UTF-8"),
    (lambda of: (of / "ImageSets/Main/market.txt").write_text("\n"), "market.txt: no name"),
    (lambda of: (of / "JPEGImages/castle1.jpg").unlink(), "no castle1"),
    (unlisted, "no image is in the split test"),
    (twice, "castle1 is also listed in castle"),
    (lambda of: [path.unlink() for path in (of / "ImageSets/Main").glob("*")], "no-stores"),
]


@pytest.mark.parametrize(("change", "told"), BROKEN)
def test_what_is_wrong_with_a_folder(voc: Path, change: object, told: str) -> None:
    """The file, what it has and what is expected."""
    change(voc)
    with pytest.raises(DataRefused) as refused:
        read(voc)
    assert told in str(refused.value) and "expected: " in str(refused.value)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"seed": 0}', '{"seed":0,"size":64,"stores":{"a":"b"}}']
)
def test_what_is_no_recipe(tmp_path: Path, text: str) -> None:
    """A sentence with an example."""
    (tmp_path / "recipe.json").write_text(text)
    with pytest.raises(DataRefused, match="wrong-recipe"):
        draw(tmp_path / "recipe.json", tmp_path / "out")


def test_damaged_images_are_told_before_training(voc: Path) -> None:
    """All of them, and boxes outside of an image."""
    pictures = [of for split in read(voc).values() for of in split]
    (voc / "JPEGImages/castle1.jpg").write_bytes(b"no image")
    Image.new("RGB", (50, 50)).save(voc / "JPEGImages/north1.jpg")
    with pytest.raises(DataRefused) as refused:
        check_images(pictures)
    assert "castle1.jpg: no image" in str(refused.value)
    assert "a box outside of 50 × 50 pixels" in str(refused.value)


@pytest.mark.parametrize(
    ("image", "told"),
    [
        (Image.new("L", (200, 100)), ""),
        (Image.new("L", (100, 100)), "100×100 pixels, 1 channels"),
        (Image.new("RGB", (200, 100)), "200×100 pixels, 3 channels"),
        (None, "not a readable image"),
    ],
)
def test_masks_fit_their_image(voc: Path, image: Image.Image | None, told: str) -> None:
    file = voc / "SegmentationObject/north1.png"
    file.parent.mkdir()
    if image:
        image.save(file)
    else:
        file.write_bytes(b"no image")
    (picture,) = read(voc)[TEST]
    if not told:
        check_images([picture])
        return
    with pytest.raises(DataRefused) as refused:
        check_images([picture])
    assert f"north1.png: {told}" in str(refused.value)


def test_other_objects_are_no_gaps(voc: Path) -> None:
    """Of real shelves products have boxes too; a mask has the number of its object."""
    product = "<object><name>bottle</name><bndbox><xmin>1</xmin></bndbox></object>"
    text = ANNOTATION.format(20).replace("<object>", f"{product}<object>")
    (voc / "Annotations/north1.xml").write_text(text)
    (voc / "SegmentationObject").mkdir()
    masks = np.zeros((100, 200), np.uint8)
    masks[20:40, 30:50] = 2
    masks[60:80, 30:50] = 1
    Image.fromarray(masks).save(voc / "SegmentationObject/north1.png")
    (picture,) = read(voc)[TEST]
    sample = picture.sample(200)
    assert picture.boxes.tolist() == [[20, 10, 60, 50]] and picture.objects == [2]
    assert np.array_equal(sample.masks[0][:100], masks == 2)


def test_edges_see_something(recipe: Path) -> None:
    """The baseline finds gaps, and of a grey or a small image says nothing or boxes in it."""
    for pixels in (np.full((160, 160, 3), 90, np.uint8), np.zeros((64, 64, 3), np.uint8)):
        boxes = edges.gaps(pixels)
        assert boxes.shape[1] == 5 and (boxes[:, 4] <= 1).all() and (boxes[:, 4] >= 0).all()
    found = [len(edges.gaps(np.asarray(of.image))) for of in shelves("castle", 6, 160, 0)]
    assert sum(found) > 0
