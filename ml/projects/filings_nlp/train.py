"""Train one model of filings, from the corpus to the files of the served model.

    python -m ml.projects.filings_nlp.train --data DIR --model OUT_DIR [--checkpoints DIR …]

It runs in one or several processes (jobs/train-two.yml, jobs/train-elastic.yml,
jobs/train-gpu.yml), on CPUs and GPUs. With `--checkpoints`, an interrupted training resumes. With
`--base`, it fine-tunes a pretrained encoder by LoRA (jobs/lora.yml).
"""

from __future__ import annotations

import argparse
import copy
import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ml.measures.measurement import metric_values
from ml.projects.filings_nlp import export, search
from ml.projects.filings_nlp.corpus import TRAIN, VALIDATION, Corpus, Split, read, rows
from ml.projects.filings_nlp.metrics import METRICS
from ml.projects.filings_nlp.model import HierarchicalAttention
from ml.projects.filings_nlp.served import BATCH, Classifier
from ml.projects.filings_nlp.tokens import UNKNOWN, Encoded, Vocabulary, stack
from ml.projects.filings_nlp.transformer import ADAPTED, Pretrained
from ml.toolkit.torch import adapters
from ml.toolkit.torch.distributed import Device, Metrics, World, distributed
from ml.toolkit.torch.epochs import Report, train_epochs
from ml.toolkit.torch.loading import Batch, Batches, Rows, Shards, write_shards
from ml.toolkit.torch.updates import Updates
from ml.toolkit.training.model_folder import seal
from ml.toolkit.training.timing import latency
from ml.toolkit.training.tracking import tracking

# The subfolder of a LoRA model that holds its base model.
BASE = "base"
# Hyperparameters with their defaults; each is a command-line argument.
SETTINGS: dict[str, Any] = {
    "epochs": 14,
    "batch": 16,  # documents per step, over all processes
    "micro_batches": 1,  # per process and step: gradient accumulation
    "learning_rate": 0.006,
    "warm_up": 0.05,  # share of all steps
    "weight_decay": 0.01,
    "width": 32,
    "layers": 1,  # convolutions over the words of a sentence, 1 or 2
    "kernel_1": 3,  # kernel size of the first convolution, in words; odd
    "kernel_2": 3,
    "search_epochs": 0,  # epochs of the architecture search for `layers` and the kernels
    "dropout": 0.05,
    "forgotten": 0.01,  # share of the words that training replaces by the unknown word
    "clip": 1.0,
    "rank": 8,  # of the LoRA adapters, with --base
    "precision": "float32",
    "strategy": "ddp",  # fsdp: parameters and optimiser states are sharded over the processes
    "sampling": "natural",  # balanced: all events are sampled equally often
    "patience": 3,  # epochs without a better validation loss
}
_CHOICES = {
    "precision": ["float32", "bfloat16", "float16"],
    "strategy": ["ddp", "fsdp"],
    "sampling": ["natural", "balanced"],
}


@dataclass(frozen=True)
class Fitted:
    """A trained model with the weights of its best epoch."""

    model: HierarchicalAttention  # in eval mode; its encoder has adapters if `base` was given
    vocabulary: Vocabulary
    loss: float  # validation log loss of the best epoch
    seconds: float
    steps: int


def fit(
    corpus: Corpus,
    settings: dict[str, Any],
    seed: int,
    folder: Path,
    report: Report = lambda metrics, step: None,
    device: Device = "auto",
    base: Pretrained | None = None,
) -> Fitted | None:
    """Train a model; return it in the first process and None in the others.

    `folder` holds the checkpoints, from which an interrupted training resumes. With `base`, the
    pretrained encoder is frozen; only its LoRA adapters and the later layers are trained and
    checkpointed. With `search_epochs`, an architecture search first updates `settings`.
    """
    with distributed(seed=seed, device=device) as world, ExitStack() as context:
        folder = Path(world.gather(str(folder))[0])  # all processes use the first one's folder
        split, classes = corpus.splits[TRAIN], corpus.classes
        vocabulary = base.vocabulary if base else Vocabulary.learn(split.documents)
        documents = [vocabulary.encode(document) for document in split.documents]
        watched = [vocabulary.encode(document) for document in corpus.splits[VALIDATION].documents]
        labels = corpus.numbers(TRAIN)
        source = Path(context.enter_context(tempfile.TemporaryDirectory()))
        write_shards(source, [{"row": np.arange(len(labels)), "label": labels}])

        def loaded() -> Batches:
            return Batches(
                Shards(source),
                world,
                batch=settings["batch"],
                micro_batches=settings["micro_batches"],
                seed=seed,
                block=1,
                balanced="label" if settings["sampling"] == "balanced" else None,
                transform=lambda part, draw: stacked(part, documents, settings["forgotten"], draw),
            )

        if settings["search_epochs"]:
            shared = search.shared(
                len(vocabulary), len(classes), settings["width"], settings["dropout"]
            )
            searched, metrics = search.searched(
                world,
                shared,
                loaded(),
                watched,
                torch.from_numpy(corpus.numbers(VALIDATION)),
                settings,
                folder / "search",
                lambda updates, metrics: validate(world, updates, shared, watched, corpus, metrics),
            )
            settings.update(searched)
            if world.first:
                report(metrics, 0)
            world.seed(seed, shared=True)  # same result as a training without the search
        encoder = adapters.lora(base.encoder(), ADAPTED, rank=settings["rank"]) if base else None
        width = base.shape["width"] if base else settings["width"]
        kernels = [settings["kernel_1"], settings["kernel_2"]][: settings["layers"]]
        bare = HierarchicalAttention(
            len(vocabulary), len(classes), width, settings["dropout"], encoder, kernels
        )
        if settings["sampling"] == "balanced":
            shares = np.bincount(labels, minlength=len(classes)) / len(labels)
            bare.prior += torch.from_numpy(np.log(shares * len(classes))).float()
        unsharded = copy.deepcopy(bare) if world.first else None  # FSDP models cannot be copied
        model = world.wrap(bare, settings["strategy"])
        trained = adapters.trained(bare)
        best = copy.deepcopy(trained)
        world.seed(seed)
        optimiser = torch.optim.AdamW(
            [parameter for parameter in model.parameters() if parameter.requires_grad],
            settings["learning_rate"],
            weight_decay=settings["weight_decay"],
        )
        batches = loaded()
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
        state = {"model": trained, "best": best, "optimiser": optimiser, "schedule": schedule}
        if base:
            state["base"] = adapters.Base(base.digest)

        def loss(batch: Batch) -> tuple[Tensor, float]:
            on_device = {name: value.to(world.device) for name, value in batch.items()}
            answer = model(on_device["sentences"], on_device["places"])
            label = on_device["label"]
            return cross_entropy(answer.logits, label, reduction="sum"), len(label)

        progress = train_epochs(
            world,
            model,
            updates,
            batches,
            state,
            folder,
            loss=loss,
            validate=lambda metrics: validate(world, updates, bare, watched, corpus, metrics),
            metric="validation_log_loss",
            epochs=settings["epochs"],
            patience=settings["patience"],
            on_best=lambda: best.load_state_dict(trained.state_dict()),
            report=lambda metrics, step: report(
                {**metrics, "learning_rate": schedule.get_last_lr()[0]}, step
            ),
        )
        trained.load_state_dict(best.state_dict())
        weights = world.weights(bare)
        if unsharded is None:
            return None
        assert progress.best is not None
        unsharded.load_state_dict(weights)
        return Fitted(unsharded.eval(), vocabulary, progress.best, progress.seconds, progress.steps)


def validate(
    world: World,
    updates: Updates,
    model: HierarchicalAttention,
    documents: Sequence[Encoded],
    corpus: Corpus,
    metrics: Metrics,
) -> None:
    """Add this process's share of the validation loss and accuracy to `metrics`.

    All processes run the same number of documents, which FSDP requires; padding documents are not
    counted.
    """
    labels = torch.from_numpy(corpus.numbers(VALIDATION)[world.rank :: world.size])
    longest = -(-len(documents) // world.size)
    mine = [documents[min(world.rank + i * world.size, len(documents) - 1)] for i in range(longest)]
    with updates.autocast():
        answered = logits(model, mine)[: len(labels)]
    loss = cross_entropy(answered, labels, reduction="sum")
    metrics.add("validation_log_loss", float(loss), len(labels))
    metrics.add("validation_accuracy", float((answered.argmax(1) == labels).sum()), len(labels))


def logits(model: HierarchicalAttention, documents: Sequence[Encoded]) -> Tensor:
    """Return the model's logits in eval mode, on the CPU: (documents, classes)."""
    model.eval()
    answered = [model.prior.new_empty(0, len(model.prior)).cpu()]
    for start in range(0, len(documents), BATCH):
        batch = map(torch.from_numpy, stack(documents[start : start + BATCH]))
        with torch.no_grad():
            answer = model(*(tensor.to(model.prior.device) for tensor in batch))
        answered.append(answer.logits.float().cpu())
    return torch.cat(answered)


def stacked(
    part: Rows, documents: Sequence[Encoded], forgotten: float, draw: np.random.Generator
) -> Rows:
    """Return a batch of the documents `part["row"]`, with random words replaced by UNKNOWN.

    Each known word is replaced with probability `forgotten`, so that the model learns to handle
    unknown words.
    """
    batch = stack([documents[row] for row in part["row"].tolist()])
    unknown = (draw.random(batch.sentences.shape) < forgotten) & (batch.sentences > UNKNOWN)
    sentences = np.where(unknown, UNKNOWN, batch.sentences)
    # Labels first, because the loader takes the number of samples from the first column.
    return {"label": part["label"], "sentences": sentences, "places": batch.places}


def cosine(step: int, total: int, warm_up: float) -> float:
    """Return the learning rate factor of a step, 0 to 1: linear warm-up and cosine decay."""
    rising = max(1.0, warm_up * total)
    return min(1.0, (step + 1) / rising) * (1 + math.cos(math.pi * min(1.0, step / total))) / 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Read and split the data; train, log, export and save one model."""
    parser = argparse.ArgumentParser(description="Train one model of filings.")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data asset")
    parser.add_argument("--model", type=Path, required=True, help="the folder to write")
    parser.add_argument("--checkpoints", type=Path, help="a folder that survives a restart")
    parser.add_argument("--base", type=Path, help="a folder of pretrain.py: adapt it by LoRA")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument(
        "--shuffled",
        choices=["true", "false"],
        default="false",
        help="true: train on shuffled labels, to test that the gates reject the model",
    )
    parser.add_argument(
        "--int8", choices=["true", "false"], default="false", help="true: serve an int8 graph"
    )
    for name, usual in SETTINGS.items():
        option, choices = f"--{name.replace('_', '-')}", _CHOICES.get(name)
        parser.add_argument(option, type=type(usual), default=usual, choices=choices)
    settings = vars(parser.parse_args(arguments))
    if (settings["strategy"], settings["precision"]) == ("fsdp", "float16"):
        parser.error("--strategy fsdp does not support --precision float16: use bfloat16")
    if settings["search_epochs"] and settings["base"]:
        parser.error("--search-epochs has no effect on the encoder of --base")
    data, folder, checkpoints, seed = (
        settings.pop(key) for key in ("data", "model", "checkpoints", "seed")
    )
    is_shuffled, device = settings.pop("shuffled") == "true", settings.pop("device")
    is_int8 = settings.pop("int8") == "true"
    start = settings.pop("base")
    base = Pretrained.load(start) if start else None
    corpus = read(data)
    if is_shuffled:
        corpus = corpus.shuffled(seed)
    with ExitStack() as context:
        checkpoints = checkpoints or Path(context.enter_context(tempfile.TemporaryDirectory()))
        tracker = None

        def report(metrics: Mapping[str, float], step: int) -> None:
            nonlocal tracker
            if tracker is None:
                tracker = context.enter_context(tracking())
                tracker.parameters({**settings, "seed": seed, "shuffled": is_shuffled})
            tracker.metrics(metrics, step)
            text = " ".join(f"{name}={value:.4g}" for name, value in metrics.items())
            print(f"step {step}: {text}", flush=True)

        fitted = fit(corpus, settings, seed, checkpoints, report, device, base)
        if fitted is None:
            return
        facts = {"seed": seed, "seconds": fitted.seconds, "hyperparameters": settings}
        adapter = save_adapted(folder, fitted.model, base) if base else {}
        examples = [stack(part) for part in _examples(fitted.vocabulary, corpus.splits[VALIDATION])]
        exported = export.write(folder, fitted.model, fitted.vocabulary, corpus.classes, examples)
        sizes = export.quantize(folder) if is_int8 else {}
        exported |= sizes
        facts |= {"shuffled": is_shuffled, "onnx": exported, "adapter": adapter}
        digest = seal(folder, facts)
        classifier, split = Classifier(folder), corpus.splits[VALIDATION]
        scores = classifier.probabilities(classifier.encode(split.documents))
        values = metric_values("multiclass", rows(split, scores), corpus.classes, METRICS)
        measured = {f"{VALIDATION}_{name}": value for name, value in values.items()}
        took = latency(classifier.read, split.documents[:40]).as_metrics()
        if is_int8:  # what int8 costs in the primary metric
            measured |= {**sizes, "int8_log_loss": values["log_loss"] - fitted.loss}
        measured |= {**took, **adapter, "training_seconds": fitted.seconds}
        report(measured, fitted.steps + 1)
    print(f"onnx: at most {exported['largest_difference']:.1g} from the model")
    print(f"model {folder} {digest}")


def save_adapted(folder: Path, model: HierarchicalAttention, base: Pretrained) -> dict[str, float]:
    """Write the adapters and a copy of the base, and merge the adapters into `model.encoder`.

    Return the size of the adapters and the share of trained parameters.
    """
    folder.mkdir(parents=True, exist_ok=True)
    share = adapters.trained_share(model)
    size = adapters.save_adapter(folder, model.encoder)
    base.copy(folder / BASE)
    model.encoder = adapters.merged(model.encoder)
    return {**size, "trained_share": share}


def _examples(vocabulary: Vocabulary, split: Split) -> list[list[Encoded]]:
    """Return the batches that test the export: many documents, one, an empty one, unknown words."""
    documents = [vocabulary.encode(document) for document in split.documents[:32]]
    nothing = vocabulary.encode({})
    unknown = vocabulary.encode({"notes": "Ordnungsgemäß."})
    return [documents, *([document] for document in documents[:4]), [nothing], [unknown]]


if __name__ == "__main__":
    main()
