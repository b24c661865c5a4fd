"""The endpoint: takes an image; returns the boxes of its gaps.

The request is JSON, {"image": BASE64}, or multipart/form-data with the file `image`. The response:
{"gaps": 2, "expected_gaps": 2.1, "empty": 0.08, "boxes": [[x1, y1, x2, y2, score], …],
"image": {"width": …, "height": …, "brightness": …}}. Boxes are in pixels of the upright image.
"""

from __future__ import annotations

from azureml_inference_server_http.api.aml_request import (
    AMLRequest,
    rawhttp,
)

from ml.projects.shelf_gaps.detector import Detector
from ml.projects.shelf_gaps.images import MOST_BYTES, decoded, letterboxed, of_base64
from ml.serving.scoring.messages import BadRequest, Schema, Text, parse, refusal, reply
from ml.serving.scoring.model import ServedModel, open_model

FIELD = "image"
# Base64 has four characters per three bytes; a form adds some lines.
MOST_BODY = MOST_BYTES * 4 // 3 + 4096
REQUEST: Schema = {FIELD: Text(longest=MOST_BODY)}

model: ServedModel
detector: Detector


def init() -> None:
    """Verify the model's files against the manifest, then load the model."""
    global model, detector
    model = open_model()
    detector = Detector(model.folder)


@rawhttp  # type: ignore[untyped-decorator]
def run(request: AMLRequest) -> object:
    """Return the gaps, highest score first, or status 400 for a request without a valid image."""
    try:
        image = letterboxed(decoded(_content(request), detector.size), detector.size)
    except BadRequest as error:
        return refusal(error)
    about = {"width": image.width, "height": image.height, "brightness": image.brightness}
    answer = detector.detect(image).of_size(image.width, image.height)
    return reply(model, {**answer, "image": about})


def _content(request: AMLRequest) -> bytes:
    """Return the bytes of the request's image file; raise BadRequest if there is none."""
    length = request.content_length
    if length is None:
        raise BadRequest("", "no Content-Length", "a request with Content-Length")
    if length > MOST_BODY:
        raise BadRequest("", f"{length} bytes", f"at most {MOST_BODY}")
    if request.mimetype == "multipart/form-data":
        try:
            file = request.files.get(FIELD)
        except Exception:  # the form parser raises various errors, such as for too many parts
            raise BadRequest("", "a form that cannot be read", f"a file named `{FIELD}`") from None
        if file is None:
            raise BadRequest(FIELD, "nothing", f"a file named `{FIELD}` in the form")
        content: bytes = file.read()
        return content
    text = request.get_data(as_text=True)
    return of_base64(parse(text, REQUEST).texts[FIELD])
