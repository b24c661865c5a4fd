"""What may be sent as an image: everything ends in an image or in a sentence."""

from __future__ import annotations

import base64
import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageDraw

from ml.projects.shelf_gaps import images
from ml.projects.shelf_gaps.images import Upright, decoded, letterboxed, of_base64
from ml.serving.scoring.messages import BadRequest

RNG = np.random.default_rng(0)
NOISE = Image.fromarray(RNG.integers(0, 255, (60, 80, 3), dtype=np.uint8))


def saved(image: Image.Image, form: str = "JPEG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def png(width: int, height: int, rows: bytes = b"") -> bytes:
    """A PNG of a head that says any size, with whatever rows."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        whole = kind + content
        return struct.pack(">I", len(content)) + whole + struct.pack(">I", zlib.crc32(whole))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        pytest.param(b"", "no image", id="nothing"),
        pytest.param(b"<svg/>" * 50, "no image", id="foreign"),
        pytest.param(saved(NOISE, "GIF"), "no image", id="another format"),
        pytest.param(saved(NOISE, "TIFF"), "no image", id="tiff"),
        pytest.param(saved(NOISE)[:900], "a damaged image", id="truncated"),
        pytest.param(saved(NOISE, "PNG")[:900], "a damaged image", id="truncated png"),
        pytest.param(saved(NOISE)[:20], "no image", id="a head alone"),
        pytest.param(png(100, 100), "a damaged image", id="no pixels"),
        pytest.param(saved(NOISE.resize((1, 1))), "1 × 1 pixels", id="1 × 1"),
        pytest.param(saved(NOISE.resize((500, 8))), "500 × 8 pixels", id="a strip"),
        pytest.param(png(8000, 8000), "8000 × 8000 pixels", id="8,000 × 8,000"),
        pytest.param(png(20_000, 20_000), "too many pixels", id="20,000 × 20,000"),
        pytest.param(png(2**31 - 1, 2**31 - 1), "too many pixels", id="2³¹"),
        pytest.param(b"\0" * (images.MOST_BYTES + 1), "6291457 bytes", id="too long"),
    ],
)
def test_what_is_no_image(content: bytes, found: str) -> None:
    """A BadRequest, and no other exception, that says what was found."""
    with pytest.raises(BadRequest) as refused:
        decoded(content, 160)
    assert found in refused.value.actual and refused.value.field == "image"


def test_a_bomb_is_never_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few kilobytes that say 7,000 × 7,000 pixels are refused by their head."""
    bomb = png(7000, 7000, bytes(7000 * 3 * 100))
    assert len(bomb) < 10_000

    def load(self: object) -> None:
        raise AssertionError("it was decoded")

    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", load)
    with pytest.raises(BadRequest, match="7000 × 7000 pixels"):
        decoded(bomb)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "LA", "I;16"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    """Grey, palettes, CMYK and the rest; a CMYK JPEG keeps its colours."""
    form = "JPEG" if mode == "CMYK" else "PNG"
    red = Image.new("RGB", (64, 48), (200, 30, 40))
    sent = red.convert("L") if mode == "I;16" else red
    sent = red.quantize(4) if mode == "P" else sent.convert(mode)
    image = decoded(saved(sent, form)).image
    assert image.mode == "RGB" and image.size == (64, 48)
    if mode in ("CMYK", "P", "RGBA"):
        assert np.abs(np.asarray(image, dtype=int) - (200, 30, 40)).max() < 12


def test_a_photograph_is_upright() -> None:
    """EXIF says how the camera was held: what is at the top of the scene is at the top."""
    scene = Image.new("RGB", (64, 96), "white")
    ImageDraw.Draw(scene).rectangle((0, 0, 64, 30), fill="blue")
    exif = Image.Exif()
    exif[0x0112] = 6  # turn it by 90° to see it
    lying = saved(scene.rotate(90, expand=True), exif=exif)
    upright = decoded(lying)
    image = upright.image
    assert image.size == (upright.width, upright.height) == (64, 96)
    assert np.asarray(image)[10, 32, 2] > 200 > np.asarray(image)[10, 32, 0]
    assert np.asarray(image)[80, 32, 0] > 200


def test_an_orientation_that_is_none_turns_nothing() -> None:
    image, exif = Image.new("RGB", (60, 40)), Image.Exif()
    exif[0x0112] = 9
    written = io.BytesIO()
    image.save(written, "JPEG", exif=exif)
    upright = decoded(written.getvalue())
    assert (upright.width, upright.height) == upright.image.size == (60, 40)


def test_sixteen_bits_keep_their_brightness() -> None:
    values = np.full((40, 40), 32896, dtype=np.uint16)
    written = io.BytesIO()
    Image.fromarray(values).save(written, "PNG")
    assert np.asarray(decoded(written.getvalue()).image).max() == 128


def test_a_large_jpeg_is_decoded_smaller() -> None:
    """No larger than the network needs; boxes are in the pixels of what was sent all the same."""
    exif = Image.Exif()
    exif[0x0112] = 8
    for options, sides in (({}, (1600, 1200)), ({"exif": exif}, (1200, 1600))):
        large = saved(NOISE.resize((1600, 1200)), **options)
        small = decoded(large, 160)
        assert decoded(large).image.size == sides and max(small.image.size) <= 800
        assert (small.width, small.height) == sides
        assert letterboxed(small, 160).scale == 0.1


def test_a_letterbox() -> None:
    """The longer side fills the square, the rest is grey; brightness is of the image alone."""
    white = letterboxed(Upright(Image.new("RGB", (200, 100), "white"), 200, 100), 160)
    assert white.pixels.shape == (160, 160, 3) and white.scale == 0.8
    assert (white.pixels[:80] == 255).all() and (white.pixels[80:] == 114).all()
    assert white.brightness == 1.0 and (white.width, white.height) == (200, 100)
    planes = white.planes()
    assert planes.shape == (3, 160, 160) and planes.dtype == np.float32 and planes.max() == 1.0
    strip = Upright(Image.new("RGB", (5000, 40)), 5000, 40)
    assert letterboxed(strip, 64).pixels.shape == (64, 64, 3)


@pytest.mark.parametrize(
    "text", ["not base64!", "YWJ", "ü", "A" * (images.MOST_BYTES * 4 // 3 + 8)]
)
def test_other_text_is_no_base64(text: str) -> None:
    """Refused before anything is decoded."""
    with pytest.raises(BadRequest):
        of_base64(text)
    assert of_base64(base64.b64encode(b"abc").decode()) == b"abc"
