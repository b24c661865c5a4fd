"""The endpoint: takes the sections of a filing; returns the predicted event and its evidence.

Sections may be empty or missing, and any language is accepted. The field `read` of the reply has
the number of sentences and the share of words unknown to the model.
"""

from __future__ import annotations

from ml.projects.filings_nlp.served import Classifier
from ml.projects.filings_nlp.tokens import MOST_CHARACTERS, SECTIONS
from ml.serving.scoring.messages import BadRequest, Schema, Text, parse, refusal, reply
from ml.serving.scoring.model import ServedModel, open_model

REQUEST: Schema = {name: Text(longest=MOST_CHARACTERS, optional=True) for name in SECTIONS}
# Number of sentences in a response: those with the largest weights.
NAMED = 3

model: ServedModel
classifier: Classifier


def init() -> None:
    """Verify the model's files against the manifest, then load the model."""
    global model, classifier
    model = open_model()
    classifier = Classifier(model.folder)


def run(body: str) -> object:
    """Return the event, the class probabilities, and the weights of sections and sentences.

    Returns status 400 for a request that violates the schema.
    """
    try:
        document = parse(body, REQUEST).texts
    except BadRequest as error:
        return refusal(error)
    read = classifier.read(document)
    weights = {
        (name, index): float(section * weight)
        for name, section, sentences in zip(SECTIONS, read.sections, read.sentences, strict=True)
        for index, weight in enumerate(sentences)
        if weight > 0
    }
    most = sorted(weights, key=lambda place: -weights[place])[:NAMED]
    return reply(
        model,
        {
            # The format of a table model's response, which gates and canaries parse.
            "predictions": [classifier.classes[int(read.probabilities.argmax())]],
            "classes": classifier.classes,
            "probabilities": [read.probabilities.tolist()],
            "sections": dict(zip(SECTIONS, read.sections.tolist(), strict=True)),
            "sentences": [
                {"section": name, "sentence": index + 1, "weight": weights[name, index]}
                for name, index in most
            ],
            "read": {"sentences": read.count, "unknown_words": read.unknown},
        },
    )
