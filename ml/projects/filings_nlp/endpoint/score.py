"""The endpoint: the sections of a filing as text → the event that follows, and where it was read.

A section may be empty or left out, and a text of any language has an answer: `read` says how many
sentences it is based on, and which share of their words the model knows nothing of.
"""

from __future__ import annotations

from ml.projects.filings_nlp.served import Classifier
from ml.projects.filings_nlp.tokens import MOST_CHARACTERS, SECTIONS
from ml.serving.scoring.messages import BadRequest, Schema, Text, parse, refusal, reply
from ml.serving.scoring.model import ServedModel, open_model

REQUEST: Schema = {name: Text(longest=MOST_CHARACTERS, optional=True) for name in SECTIONS}
# Number of sentences that a response names: those with the largest weights.
NAMED = 3

model: ServedModel
classifier: Classifier


def init() -> None:
    """Verify the model's files, then load it."""
    global model, classifier
    model = open_model()
    classifier = Classifier(model.folder)


def run(body: str) -> object:
    """Return the event with its probabilities, the weights of the sections and the sentences with
    the largest weights; status 400 for a request that breaks the schema.
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
            # The form of a table model's response, in which gates and canaries read probabilities.
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
