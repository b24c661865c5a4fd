"""The endpoint: {"question": …, "top": 3} → the FAQ entries that fit best.

The Azure ML inference server imports this file, calls `init` once per worker and `run` per request.
"""

from __future__ import annotations

from ml.projects.faq_matching.model import Ranker
from ml.serving.scoring.messages import BadRequest, Integer, Schema, Text, parse, refusal, reply
from ml.serving.scoring.model import ServedModel, open_model

REQUEST: Schema = {"question": Text(longest=2000), "top": Integer(lowest=1, highest=20, default=3)}

model: ServedModel
ranker: Ranker


def init() -> None:
    """Verify the model's files against the manifest, then load the model."""
    global model, ranker
    model = open_model()
    ranker = Ranker.load(model.folder)


def run(body: str) -> object:
    """Return the answers, best first, or status 400 for a request that violates the schema."""
    try:
        request = parse(body, REQUEST)
        best = ranker.rank(request.texts["question"], top=request.integers["top"])
    except BadRequest as error:
        return refusal(error)
    except ValueError:
        return refusal(BadRequest("question", "no words", "a question in words"))
    answers = [
        {
            "rank": rank,
            "score": answer.score,
            "entry_id": answer.entry_id,
            "question": answer.question,
            "answer": answer.answer,
        }
        for rank, answer in enumerate(best, start=1)
    ]
    return reply(model, {"answers": answers})
