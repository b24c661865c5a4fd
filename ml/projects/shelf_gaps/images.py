"""Images as training and the endpoint take them: decoded within bounds, upright, in one square.

Any content results in an image, or in a BadRequest that says what is wrong with it.
"""

from __future__ import annotations

import base64
import binascii
import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from ml.serving.scoring.messages import BadRequest

# A photograph of a phone is smaller; as base64 the bytes fit into what an endpoint accepts.
MOST_BYTES = 6 * 2**20
MOST_PIXELS = 40_000_000
# The fewest pixels of a side: a smaller image shows nothing of a shelf.
LEAST_PIXELS = 32
FORMATS = ("JPEG", "PNG", "WEBP")
_ORIENTATION = 0x0112  # EXIF's tag
_UPRIGHT = range(5, 9)  # a camera that was held upright; other values say nothing
# The padding of an image that is not square.
_GREY = 114


@dataclass(frozen=True)
class Letterboxed:
    """An image in the upper left of the square that the network takes."""

    pixels: NDArray[np.uint8]  # (size, size, 3)
    scale: float  # side in the square / side of the upright image
    width: int  # of the upright image, in pixels
    height: int  # of the upright image, in pixels
    brightness: float  # mean luminance, 0 to 1

    def planes(self) -> NDArray[np.float32]:
        """Return the network's input: (3, size, size), from 0 to 1."""
        return planes_of(self.pixels)


@dataclass(frozen=True)
class Upright:
    """A decoded image in RGB, rotated as its EXIF orientation says."""

    image: Image.Image  # may be smaller: a large JPEG is decoded at a lower resolution
    width: int  # of the image as sent, upright
    height: int  # of the image as sent, upright


def planes_of(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Convert (size, size, 3) from 0 to 255 to (3, size, size) from 0 to 1."""
    return np.ascontiguousarray(pixels.transpose(2, 0, 1), dtype=np.float32) / np.float32(255)


def of_base64(text: str) -> bytes:
    """Return the bytes of an image in base64; raises BadRequest for other text."""
    if len(text) > MOST_BYTES * 4 // 3 + 4:
        raise BadRequest("image", f"{len(text)} characters", f"at most {MOST_BYTES} bytes of image")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest("image", "no base64", "the bytes of an image file in base64") from None


def decoded(content: bytes, size: int = 0) -> Upright:
    """Decode an image; with `size` a large JPEG is decoded no larger than that square needs.

    Raises BadRequest: too many bytes or pixels (before they are decoded), too few, another format,
    content that ends early or is damaged.
    """
    if len(content) > MOST_BYTES:
        raise BadRequest("image", f"{len(content)} bytes", f"at most {MOST_BYTES}")
    expected = f"a whole image as {', '.join(FORMATS)}"
    try:
        # Reads only the header: `load` reads the pixels.
        image: Image.Image = Image.open(io.BytesIO(content), formats=FORMATS)
        width, height = image.size
        _check_size(width, height)
        if size:
            image.draft("RGB", (2 * size, 2 * size))
        image.load()
        if image.mode.startswith("I"):  # 16 bits: RGB would cut them at 255
            image = image.point(lambda value: value / 257).convert("L")
        if image.getexif().get(_ORIENTATION, 1) in _UPRIGHT:
            width, height = height, width
        return Upright(ImageOps.exif_transpose(image).convert("RGB"), width, height)
    except Image.DecompressionBombError:
        raise BadRequest("image", "too many pixels", f"at most {MOST_PIXELS}") from None
    except BadRequest:
        raise
    # The content is untrusted, and decoders may raise any exception.
    except Exception as error:
        kind = "no image" if isinstance(error, UnidentifiedImageError) else "a damaged image"
        raise BadRequest("image", kind, expected) from None


def letterboxed(upright: Upright, size: int) -> Letterboxed:
    """Fit the whole image into a square of `size` pixels a side."""
    sides = (upright.width, upright.height)
    scale = size / max(sides)
    width, height = (max(1, round(side * scale)) for side in sides)
    square = Image.new("RGB", (size, size), (_GREY,) * 3)
    square.paste(upright.image.resize((width, height), Image.Resampling.BILINEAR), (0, 0))
    pixels = np.asarray(square)
    luminance = pixels[:height, :width].mean(axis=(0, 1)) @ (0.299, 0.587, 0.114) / 255
    return Letterboxed(pixels, scale, *sides, round(float(luminance), 6))


def _check_size(width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        actual = f"{width} × {height} pixels"
        raise BadRequest("image", actual, f"at most {MOST_PIXELS}")
    if min(width, height) < LEAST_PIXELS:
        actual = f"{width} × {height} pixels"
        raise BadRequest("image", actual, f"at least {LEAST_PIXELS} a side")
