"""Draw synthetic images of shelves with masks of their gaps.

A store has its own furniture, products, camera and light. The same seed gives the same pixels. The
images include hard cases: the shelf's back visible above low products, products as dark as the
back, a single product at the back of a gap, and signs in front of gaps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

Colour = tuple[int, ...]
# Brightness factors of the light. A store has all of them, one more often than the others.
LIGHTS = (0.42, 0.8, 1.15)
# Supersampling factor, for smooth edges.
_FINE = 2
# Minimum width of a gap as a share of the image width; narrower spaces are not gaps.
_NARROWEST = 0.055


@dataclass(frozen=True)
class Store:
    """The properties that all images of a store share."""

    boards: int
    wall: Colour
    board: Colour
    back: Colour
    holes: int
    products: tuple[tuple[Colour, float, float, int], ...]
    gaps: float
    light: int
    tilt: float

    @classmethod
    def generate(cls, name: str, seed: int) -> Store:
        """Return the random store for a name and seed."""
        draw = _random(name, seed)
        wall = draw.integers(120, 225, 3)
        back = np.clip(wall * draw.uniform(0.25, 0.6) + draw.integers(-12, 12, 3), 15, 150)
        products = []
        for _ in range(int(draw.integers(7, 13))):
            colour = draw.integers(20, 245, 3)
            if draw.random() < 0.2:
                colour = back * draw.uniform(0.8, 1.25)  # as dark as an empty shelf
            size = draw.uniform(0.055, 0.14), draw.uniform(0.5, 0.93)
            products.append((_colour(colour), *size, int(draw.integers(4))))
        return cls(
            boards=int(draw.integers(3, 5)),
            wall=_colour(wall),
            board=_colour(draw.integers(90, 235) + draw.integers(-20, 20, 3)),
            back=_colour(back),
            holes=int(draw.integers(3)),
            products=tuple(products),
            gaps=float(draw.uniform(0.14, 0.26)),
            light=int(draw.integers(len(LIGHTS))),
            tilt=float(draw.uniform(-2.5, 2.5)),
        )


@dataclass(frozen=True)
class Shelf:
    """An image and its gaps."""

    name: str
    image: Image.Image
    gaps: NDArray[np.uint8]  # gap number of each pixel, from 1; 0 means no gap


def shelves(store: str, count: int, size: int, seed: int) -> Iterator[Shelf]:
    """Yield `count` images of a store, `size` × `size` pixels."""
    about = Store.generate(store, seed)
    for number in range(count):
        yield _drawn(f"{store}_{number:03}", about, size, seed)


def _drawn(name: str, store: Store, size: int, seed: int) -> Shelf:
    draw = _random(name, seed)
    side = size * _FINE
    image = Image.new("RGB", (side, side), store.wall)
    mask = Image.new("L", (side, side), 0)
    pens = ImageDraw.Draw(image), ImageDraw.Draw(mask)
    top, gaps = int(side * draw.uniform(0.0, 0.07)), 0
    height = (side - top) // store.boards
    thick = max(3, int(side * 0.022))
    for board in range(store.boards):
        above = top + board * height
        gaps = _row(pens, draw, store, above, above + height - thick, side, gaps)
        below = above + height
        pens[0].rectangle((0, below - thick, side, below), fill=store.board)
        for x in range(int(draw.integers(6, 20)), side, int(side * 0.11)):
            pens[0].rectangle((x, below - thick, x + side // 18, below - 1), fill=(240, 240, 225))
    turn = store.tilt + draw.uniform(-1, 1)
    image = image.rotate(turn, Image.Resampling.BILINEAR, fillcolor=store.wall)
    mask = mask.rotate(turn, Image.Resampling.NEAREST)
    image = image.resize((size, size), Image.Resampling.BOX)
    mask = mask.resize((size, size), Image.Resampling.NEAREST)
    image = image.filter(ImageFilter.GaussianBlur(draw.uniform(0, 0.7)))
    light = store.light if draw.random() < 0.5 else int(draw.integers(len(LIGHTS)))
    return Shelf(name, _lit(image, draw, LIGHTS[light]), np.asarray(mask))


def _row(
    pens: tuple[ImageDraw.ImageDraw, ImageDraw.ImageDraw],
    draw: np.random.Generator,
    store: Store,
    above: int,
    below: int,
    side: int,
    gaps: int,
) -> int:
    """Draw one board with its products; return the number of gaps drawn so far.

    `above` and `below` are the row's y coordinates; `gaps` is the number before this row.
    """
    pen, mask = pens
    pen.rectangle((0, above, side, below), fill=store.back)
    for step in range(0, side, 9) if store.holes else ():
        if store.holes == 1:
            pen.line((step, above, step, below), fill=_shade(store.back, 0.85))
        else:
            for y in range(above + 5, below, 10):
                pen.point((step, y), fill=_shade(store.back, 0.6))
    pen.rectangle((0, above, side, above + (below - above) // 8), fill=_shade(store.back, 0.6))
    x = -int(draw.integers(0, 12))
    while x < side:
        if draw.random() < store.gaps:
            end = x + int(side * draw.uniform(0.07, 0.3))
            first, last = max(0, x), min(side, end)
            if last - first >= _NARROWEST * side:
                gaps += 1
                mask.rectangle((first, above, last, below), fill=gaps)
                if draw.random() < 0.25:  # a single product at the back of the gap
                    _product(pen, draw, store, (first + last) // 2, below - 4, below - above, 0.55)
                if draw.random() < 0.15:
                    _sign(pens, draw, first, above, last, below)
            x = end
        colour, wide, high, motif = store.products[int(draw.integers(len(store.products)))]
        for _ in range(int(draw.integers(1, 6))):
            width, height = int(wide * side), int(high * (below - above))
            _package(pen, colour, motif, x, below - height, x + width, below)
            x += width + int(draw.integers(0, 5))
    return gaps


def _product(
    pen: ImageDraw.ImageDraw,
    draw: np.random.Generator,
    store: Store,
    x: int,
    below: int,
    room: int,
    scale: float,
) -> None:
    colour, wide, high, motif = store.products[int(draw.integers(len(store.products)))]
    width, height = int(wide * scale * room * 3), int(high * scale * room)
    _package(pen, _shade(colour, 0.5), motif, x, below - height, x + width, below)


def _package(
    pen: ImageDraw.ImageDraw, colour: Colour, motif: int, x: int, above: int, right: int, below: int
) -> None:
    """Draw a package by `motif`: 0 box, 1 box with a label, 2 bottle, 3 can."""
    edge, middle = _shade(colour, 0.6), (above + below) // 2
    right, below = max(right, x + 8), max(below, above + 20)
    if motif == 2:
        neck = (right - x) // 3
        pen.rectangle((x + neck, above, right - neck, middle), fill=colour, outline=edge)
        above += (below - above) // 3
    pen.rectangle((x, above, right, below), fill=colour, outline=edge)
    if motif == 1:
        pen.rectangle((x + 3, middle - 5, right - 3, middle + 9), fill=_shade(colour, 1.6))
    elif motif == 3:
        for y in range(above + 6, below, 12):
            pen.line((x, y, right, y), fill=_shade(colour, 1.35), width=3)


def _sign(
    pens: tuple[ImageDraw.ImageDraw, ImageDraw.ImageDraw],
    draw: np.random.Generator,
    left: int,
    above: int,
    right: int,
    below: int,
) -> None:
    """Draw a sign in front of a gap, which hides a part of it."""
    x = int(draw.integers(left, max(left + 1, right - 20)))
    box = (x, above, x + 26, above + (below - above) // 3)
    pens[0].rectangle(box, fill=(235, 60, 40))
    pens[1].rectangle(box, fill=0)


def _lit(image: Image.Image, draw: np.random.Generator, light: float) -> Image.Image:
    """Return the image with a random light gradient, colour temperature and sensor noise."""
    pixels = np.asarray(image, dtype=np.float64)
    across = np.linspace(-1, 1, pixels.shape[1])[None, :, None]
    along = np.linspace(-1, 1, pixels.shape[0])[:, None, None]
    slope = draw.uniform(-0.18, 0.18, 2)
    warm = 1 + draw.uniform(-0.09, 0.09) * np.array([1.0, 0.0, -1.0])
    light *= draw.uniform(0.85, 1.15)
    pixels = pixels * light * warm * (1 + slope[0] * across + slope[1] * along)
    pixels += draw.normal(0, draw.uniform(2, 7), pixels.shape)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def _shade(colour: Colour, factor: float) -> Colour:
    return _colour(np.array(colour) * factor)


def _colour(values: NDArray[np.generic]) -> Colour:
    return tuple(int(number) for number in np.clip(values, 0, 255))


def _random(name: str, seed: int) -> np.random.Generator:
    return np.random.default_rng(
        [seed, *np.frombuffer(sha256(name.encode()).digest()[:8], dtype=np.uint32).tolist()]
    )
