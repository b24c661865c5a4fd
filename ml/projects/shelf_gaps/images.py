"""Decode and letterbox images, for training and the endpoint.

Size limits apply before decoding. Invalid content raises BadRequest with the reason.
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

# Larger than a phone's photograph; as base64, it fits into the endpoint's request limit.
MOST_BYTES = 6 * 2**20
MOST_PIXELS = 40_000_000
# Minimum side in pixels.
LEAST_PIXELS = 32
FORMATS = ("JPEG", "PNG", "WEBP")
_ORIENTATION = 0x0112  # EXIF's tag
_UPRIGHT = range(5, 9)  # orientations that swap width and height
# Grey level of the padding.
_GREY = 114


@dataclass(frozen=True)
class Letterboxed:
    """An image scaled into the upper left of a padded square, the network's input."""

    pixels: NDArray[np.uint8]  # (size, size, 3)
    scale: float  # side in the square / side of the upright image
    width: int  # of the upright image, in pixels
    height: int  # of the upright image, in pixels
    brightness: float  # mean luminance, 0 to 1

    def planes(self) -> NDArray[np.float32]:
        """Return the network's input (3, size, size), from 0 to 1."""
        return planes_of(self.pixels)


@dataclass(frozen=True)
class Upright:
    """A decoded RGB image, rotated by its EXIF orientation."""

    image: Image.Image  # may be smaller: a large JPEG is decoded at a lower resolution
    width: int  # of the image as sent, upright
    height: int  # of the image as sent, upright


def planes_of(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Convert pixels (size, size, 3) of 0 to 255 to planes (3, size, size) of 0 to 1."""
    return np.ascontiguousarray(pixels.transpose(2, 0, 1), dtype=np.float32) / np.float32(255)


def of_base64(text: str) -> bytes:
    """Decode base64 to the bytes of an image file; raise BadRequest if invalid or too long."""
    if len(text) > MOST_BYTES * 4 // 3 + 4:
        raise BadRequest("image", f"{len(text)} characters", f"at most {MOST_BYTES} bytes of image")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest(
            "image", "invalid base64", "the bytes of an image file in base64"
        ) from None


def decoded(content: bytes, size: int = 0) -> Upright:
    """Return the decoded, upright image of a file's content.

    With `size`, a large JPEG is decoded at the lowest resolution that suffices for a square of that
    side. Raises BadRequest for too many or too few pixels, too many bytes, another format, and
    truncated or damaged content.
    """
    if len(content) > MOST_BYTES:
        raise BadRequest("image", f"{len(content)} bytes", f"at most {MOST_BYTES}")
    expected = f"a whole image as {', '.join(FORMATS)}"
    try:
        # `open` reads only the header, so the size is checked before decoding.
        image: Image.Image = Image.open(io.BytesIO(content), formats=FORMATS)
        width, height = image.size
        _check_size(width, height)
        if size:
            image.draft("RGB", (2 * size, 2 * size))
        image.load()
        if image.mode.startswith("I"):  # 16 bits: conversion to RGB would clip at 255
            image = image.point(lambda value: value / 257).convert("L")
        if image.getexif().get(_ORIENTATION, 1) in _UPRIGHT:
            width, height = height, width
        return Upright(ImageOps.exif_transpose(image).convert("RGB"), width, height)
    except Image.DecompressionBombError:
        raise BadRequest("image", "too many pixels", f"at most {MOST_PIXELS}") from None
    except BadRequest:
        raise
    # The content is untrusted, and image decoders may raise any exception.
    except Exception as error:
        kind = "no image" if isinstance(error, UnidentifiedImageError) else "a damaged image"
        raise BadRequest("image", kind, expected) from None


def letterboxed(upright: Upright, size: int) -> Letterboxed:
    """Scale the image into the upper left of a square of `size` pixels; pad the rest in grey."""
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
