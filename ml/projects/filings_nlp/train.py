"""Train one model of filings: the whole loop, from the corpus to the files that serve.

    python -m ml.projects.filings_nlp.train --data DIR --model OUT_DIR [--checkpoints DIR …]

The same code trains in one process and in many (jobs/train-two.yml, jobs/train-elastic.yml,
jobs/train-gpu.yml), on CPUs and GPUs. With --checkpoints a training that was killed goes on where
it was.
"""

from __future__ import annotations

import argparse
import copy
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ml.measures.measurement import metric_values
from ml.projects.filings_nlp import export
from ml.projects.filings_nlp.corpus import TRAIN, VALIDATION, Corpus, Part, read, rows
from ml.projects.filings_nlp.metrics import METRICS
from ml.projects.filings_nlp.model import HierarchicalAttention
from ml.projects.filings_nlp.served import BATCH, Classifier
from ml.projects.filings_nlp.tokens import UNKNOWN, Encoded, Vocabulary, stack
from ml.toolkit.torch.checkpoints import Checkpoints
from ml.toolkit.torch.distributed import Device, Metrics, World, distributed
from ml.toolkit.torch.health import Guard
from ml.toolkit.torch.loading import Batches, Rows, Shards, write_shards
from ml.toolkit.torch.updates import Updates
from ml.toolkit.training.model_folder import seal
from ml.toolkit.training.timing import latency
from ml.toolkit.training.tracking import tracking

# Hyperparameters with their usual values: arguments of this program.
SETTINGS: dict[str, Any] = {
    "epochs": 14,
    "batch": 16,  # documents of a step, of all processes together
    "micro_batches": 1,  # of each process, accumulated before a step
    "learning_rate": 0.006,
    "warm_up": 0.05,  # of all steps
    "weight_decay": 0.01,
    "width": 32,
    "dropout": 0.05,
    "forgotten": 0.01,  # of the words, read as unknown ones
    "clip": 1.0,
    "precision": "float32",  # or bfloat16, float16
    "sampling": "natural",  # or balanced: all events come equally often
    "patience": 3,  # epochs without a better validation loss
}
Report = Callable[[Mapping[str, float], int], None]


@dataclass
class Progress:
    """What is known of the epochs that were validated; a part of every checkpoint."""

    epochs: int = 0
    waited: int = 0
    best: float | None = None
    seconds: float = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Its fields."""
        return dict(vars(self))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        vars(self).update(state)


@dataclass(frozen=True)
class Fitted:
    """A model with the weights of its best epoch."""

    model: HierarchicalAttention
    vocabulary: Vocabulary
    loss: float
    seconds: float
    steps: int


def fit(
    corpus: Corpus,
    settings: Mapping[str, Any],
    seed: int,
    folder: Path,
    report: Report = lambda metrics, step: None,
    device: Device = "auto",
) -> Fitted | None:
    """The model; None in every process but the first. `folder` holds the checkpoints: what is there
    already is gone on from.
    """
    with distributed(seed=seed, device=device) as world, ExitStack() as stack_:
        began = time.perf_counter()
        folder = Path(world.gather(str(folder))[0])  # a temporary one is the first process's
        part, classes = corpus.parts[TRAIN], corpus.classes
        vocabulary = Vocabulary.learn(part.documents)
        documents = [vocabulary.encode(document) for document in part.documents]
        watched = [vocabulary.encode(document) for document in corpus.parts[VALIDATION].documents]
        labels = corpus.numbers(TRAIN)
        bare = HierarchicalAttention(
            len(vocabulary), len(classes), settings["width"], settings["dropout"]
        )
        if settings["sampling"] == "balanced":
            shares = np.bincount(labels, minlength=len(classes)) / len(labels)
            bare.prior += torch.from_numpy(np.log(shares * len(classes))).float()
        model = world.wrap(bare)
        best = copy.deepcopy(bare)
        world.seed(seed)
        optimiser = torch.optim.AdamW(
            model.parameters(), settings["learning_rate"], weight_decay=settings["weight_decay"]
        )
        source = Path(stack_.enter_context(tempfile.TemporaryDirectory()))
        write_shards(source, [{"row": np.arange(len(labels)), "label": labels}])
        batches = Batches(
            Shards(source),
            world,
            batch=settings["batch"],
            micro_batches=settings["micro_batches"],
            seed=seed,
            block=1,
            balanced="label" if settings["sampling"] == "balanced" else None,
            transform=lambda of, draw: stacked(of, documents, settings["forgotten"], draw),
        )
        total = settings["epochs"] * len(batches)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda step: cosine(step, total, settings["warm_up"])
        )
        updates = Updates(
            world,
            model,
            optimiser,
            precision=settings["precision"],
            clip=settings["clip"],
            schedule=schedule,
        )
        progress, metrics = Progress(), Metrics(world)
        state = {"model": model, "best": best, "optimiser": optimiser, "schedule": schedule}
        state |= {"updates": updates, "batches": batches, "progress": progress, "metrics": metrics}
        checkpoints = stack_.enter_context(Checkpoints(folder, world, state, every_s=60))
        step, guard = checkpoints.restore(), Guard(checkpoints)
        earlier = progress.seconds
        while progress.epochs < settings["epochs"] and progress.waited < settings["patience"]:
            model.train()
            # A checkpoint may be of the end of an epoch that was not validated yet.
            if batches.step < len(batches) or batches.epoch < progress.epochs:
                for micro_batches in batches:
                    for batch in micro_batches:
                        with updates.micro_batch(last=batch is micro_batches[-1]):
                            here = {name: of.to(world.device) for name, of in batch.items()}
                            answer = model(here["sentences"], here["places"])
                            loss = cross_entropy(answer.logits, here["label"], reduction="sum")
                            updates.backward(loss, len(here["label"]))
                    update = updates.step()
                    step += 1
                    guard.check(step, update)
                    if update.taken:
                        metrics.add("train_loss", update.loss * update.items, update.items)
                    if batches.step < len(batches):
                        checkpoints.after(step)
            validate(world, updates, bare, watched, corpus, metrics)
            measured = metrics.reduce()
            progress.epochs = batches.epoch + 1
            progress.waited += 1
            if progress.best is None or measured["validation_log_loss"] < progress.best:
                progress.best, progress.waited = measured["validation_log_loss"], 0
                best.load_state_dict(bare.state_dict())
            # The first process's clock: what is kept has to be alike in all of them.
            progress.seconds = world.gather(earlier + time.perf_counter() - began)[0]
            if world.first:
                rates = {**batches.rates(), "learning_rate": schedule.get_last_lr()[0]}
                report({**measured, **rates}, step)
            checkpoints.after(step, metric=measured["validation_log_loss"])
        checkpoints.finish()
        if not world.first:
            return None
        assert progress.best is not None
        return Fitted(best.eval(), vocabulary, progress.best, progress.seconds, step)


def validate(
    world: World,
    updates: Updates,
    model: HierarchicalAttention,
    documents: Sequence[Encoded],
    corpus: Corpus,
    metrics: Metrics,
) -> None:
    """Count this process's share of validation."""
    mine = slice(world.rank, None, world.size)
    labels = torch.from_numpy(corpus.numbers(VALIDATION)[mine])
    with updates.autocast():
        answered = logits(model, documents[mine])
    loss = cross_entropy(answered, labels, reduction="sum")
    metrics.add("validation_log_loss", float(loss), len(labels))
    metrics.add("validation_accuracy", float((answered.argmax(1) == labels).sum()), len(labels))


def logits(model: HierarchicalAttention, documents: Sequence[Encoded]) -> Tensor:
    """The model's answers outside of training, on the CPU: (documents, classes)."""
    model.eval()
    answered = [model.prior.new_empty(0, len(model.prior)).cpu()]
    for at in range(0, len(documents), BATCH):
        batch = map(torch.from_numpy, stack(documents[at : at + BATCH]))
        with torch.no_grad():
            answer = model(*(of.to(model.prior.device) for of in batch))
        answered.append(answer.logits.float().cpu())
    return torch.cat(answered)


def stacked(
    of: Rows, documents: Sequence[Encoded], forgotten: float, draw: np.random.Generator
) -> Rows:
    """The documents of some rows, of whose words a few are unknown: what a new word does has to be
    learnt.
    """
    batch = stack([documents[row] for row in of["row"].tolist()])
    unknown = (draw.random(batch.sentences.shape) < forgotten) & (batch.sentences > UNKNOWN)
    sentences = np.where(unknown, UNKNOWN, batch.sentences)
    # The labels first: by the length of the first column the loader counts its samples.
    return {"label": of["label"], "sentences": sentences, "places": batch.places}


def cosine(step: int, total: int, warm_up: float) -> float:
    """The learning rate of a step by the highest one: up in a line, down by half a cosine."""
    rising = max(1.0, warm_up * total)
    return min(1.0, (step + 1) / rising) * (1 + math.cos(math.pi * min(1.0, step / total))) / 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Read, check, split, train, log, save: one training by the arguments of the command line."""
    parser = argparse.ArgumentParser(description="Train one model of filings.")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data asset")
    parser.add_argument("--model", type=Path, required=True, help="the folder to write")
    parser.add_argument("--checkpoints", type=Path, help="a folder that survives a restart")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument(
        "--shuffled",
        choices=["true", "false"],
        default="false",
        help="true: train on shuffled labels, a model that gates have to refuse",
    )
    for name, usual in SETTINGS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(usual), default=usual)
    settings = vars(parser.parse_args(arguments))
    data, folder, kept, seed = (settings.pop(of) for of in ("data", "model", "checkpoints", "seed"))
    is_shuffled, device = settings.pop("shuffled") == "true", settings.pop("device")
    corpus = read(data)
    if is_shuffled:
        corpus = corpus.shuffled(seed)
    with ExitStack() as stack_:
        kept = kept or Path(stack_.enter_context(tempfile.TemporaryDirectory()))
        tracker = None

        def report(metrics: Mapping[str, float], step: int) -> None:
            nonlocal tracker
            if tracker is None:
                tracker = stack_.enter_context(tracking())
                tracker.parameters({**settings, "seed": seed, "shuffled": is_shuffled})
            tracker.metrics(metrics, step)
            text = " ".join(f"{name}={value:.4g}" for name, value in metrics.items())
            print(f"step {step}: {text}", flush=True)

        fitted = fit(corpus, settings, seed, kept, report, device)
        if fitted is None:
            return
        examples = [stack(of) for of in _examples(fitted.vocabulary, corpus.parts[VALIDATION])]
        exported = export.write(folder, fitted.model, fitted.vocabulary, corpus.classes, examples)
        facts = {"seed": seed, "seconds": fitted.seconds, "hyperparameters": settings}
        facts |= {"shuffled": is_shuffled, "onnx": exported}
        digest = seal(folder, facts)
        classifier, part = Classifier(folder), corpus.parts[VALIDATION]
        scores = classifier.probabilities(classifier.encode(part.documents))
        values = metric_values("multiclass", rows(part, scores), corpus.classes, METRICS)
        measured = {f"{VALIDATION}_{name}": value for name, value in values.items()}
        took = latency(classifier.read, part.documents[:40]).as_metrics()
        report({**measured, **took, "training_seconds": fitted.seconds}, fitted.steps + 1)
    print(f"onnx: at most {exported['largest_difference']:.1g} from the model")
    print(f"model {folder} {digest}")


def _examples(vocabulary: Vocabulary, part: Part) -> list[list[Encoded]]:
    """What the export is compared on: documents together and alone, empty, of unknown words."""
    documents = [vocabulary.encode(document) for document in part.documents[:32]]
    nothing = vocabulary.encode({})
    unknown = vocabulary.encode({"notes": "Ordnungsgemäß."})
    return [documents, *([of] for of in documents[:4]), [nothing], [unknown]]


if __name__ == "__main__":
    main()
