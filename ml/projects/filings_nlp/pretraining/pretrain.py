"""Pretrain the encoder on the texts of filings by masked language modelling.

    python -m ml.projects.filings_nlp.pretraining.pretrain --data DIR --base OUT_DIR …

`--corpus DIR` instead of `--data` streams a prepared corpus, the output of jobs/corpus.yml.
`train.py --base` fine-tunes the encoder. Pretraining uses no labels and no test texts; validation
texts only select the best epoch.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ml.projects.filings_nlp.corpus import TRAIN, VALIDATION
from ml.projects.filings_nlp.pretraining.prepare import SHARD, prepare, refusing
from ml.projects.filings_nlp.tokens import PADDING, UNKNOWN, Vocabulary
from ml.projects.filings_nlp.train import cosine
from ml.projects.filings_nlp.transformer import MaskedWords, Transformer, write
from ml.toolkit.torch.distributed import Device, Metrics, distributed
from ml.toolkit.torch.epochs import train_epochs
from ml.toolkit.torch.loading import Batch, Batches, Rows, Shards
from ml.toolkit.torch.updates import Updates
from ml.toolkit.training.tracking import tracking

SETTINGS: dict[str, Any] = {
    "epochs": 20,
    "batch": 128,  # sentences per step, over all processes
    "learning_rate": 0.003,
    "width": 64,
    "layers": 2,
    "heads": 4,
}
# Streaming of a corpus: four shards are shuffled together while the next eight are prefetched.
STREAM = {"block": SHARD, "blocks": 4, "read_ahead": 12}
# Share of a sentence's words that are masked (Devlin et al., BERT, 2018).
MASKED = 0.15
METRIC = "validation_masked_loss"
_NO_TARGET = -100  # cross_entropy ignores this target


def main(arguments: Sequence[str] | None = None) -> None:
    """Read, pretrain, log, write."""
    parser = argparse.ArgumentParser(description="Pretrain the encoder of a model of filings.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, help="the folder of the data asset")
    source.add_argument(
        "--corpus", type=Path, help="a folder that prepare.py wrote: it is streamed"
    )
    parser.add_argument("--base", type=Path, required=True, help="the folder to write")
    parser.add_argument("--checkpoints", type=Path, help="a folder that survives a restart")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    for name, usual in SETTINGS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(usual), default=usual)
    settings = vars(parser.parse_args(arguments))
    data, corpus, folder, checkpoints = map(settings.pop, ("data", "corpus", "base", "checkpoints"))
    seed: int = settings.pop("seed")
    device: Device = settings.pop("device")
    loading = STREAM if corpus else {"block": 1}
    with ExitStack() as context:
        if corpus is None:
            corpus = Path(context.enter_context(tempfile.TemporaryDirectory()))
            with refusing():
                prepare(data, corpus)
        checkpoints = checkpoints or Path(context.enter_context(tempfile.TemporaryDirectory()))
        pretrain(corpus, settings, seed, checkpoints, folder, loading, device)


def pretrain(
    corpus: Path,
    settings: Mapping[str, Any],
    seed: int,
    kept: Path,
    folder: Path,
    loading: Mapping[str, Any],
    device: Device = "auto",
) -> None:
    """Write the encoder of the epoch with the lowest validation loss into `folder`.

    `kept` is the folder of the checkpoints; `loading` has keyword arguments of `Batches`.
    """
    with distributed(seed=seed, device=device) as world, ExitStack() as context:
        kept = Path(world.gather(str(kept))[0])
        vocabulary = Vocabulary.load(corpus)
        shape = {name: settings[name] for name in ("width", "layers", "heads")}
        bare = MaskedWords(Transformer(len(vocabulary), **shape))
        model, best = world.wrap(bare), copy.deepcopy(bare)
        world.seed(seed)
        optimiser = torch.optim.AdamW(model.parameters(), settings["learning_rate"])
        source, batch = Shards(corpus / TRAIN), settings["batch"]
        batches = Batches(source, world, batch=batch, seed=seed, transform=masked, **loading)
        total = settings["epochs"] * len(batches)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda step: cosine(step, total, 0.1)
        )
        updates = Updates(world, model, optimiser, clip=1.0, schedule=schedule)
        # The validation mask is the same in every epoch.
        sentences = Shards(corpus / VALIDATION).column("target")
        watched = masked({"target": sentences}, np.random.default_rng(seed))
        mine = {name: rows[world.rank :: world.size] for name, rows in watched.items()}

        def loss(batch: Batch) -> tuple[Tensor, float]:
            target = batch["target"].to(world.device)
            logits = model(batch["sentences"].to(world.device))
            total = cross_entropy(logits.transpose(1, 2), target, reduction="sum")
            return total, int((target != _NO_TARGET).sum())

        def validate(metrics: Metrics) -> None:
            bare.eval()
            with torch.no_grad():
                for i in range(0, len(mine["target"]), settings["batch"]):
                    part = {name: rows[i : i + settings["batch"]] for name, rows in mine.items()}
                    target = torch.from_numpy(part["target"]).to(world.device)
                    logits = bare(torch.from_numpy(part["sentences"]).to(world.device))
                    total = cross_entropy(logits.transpose(1, 2), target, reduction="sum")
                    metrics.add(METRIC, float(total), int((target != _NO_TARGET).sum()))

        tracker = context.enter_context(tracking()) if world.first else None
        if tracker:
            tracker.parameters({**settings, "seed": seed})
        progress = train_epochs(
            world,
            model,
            updates,
            batches,
            {"model": bare, "best": best, "optimiser": optimiser, "schedule": schedule},
            kept,
            loss=loss,
            validate=validate,
            metric=METRIC,
            epochs=settings["epochs"],
            on_best=lambda: best.load_state_dict(bare.state_dict()),
            report=lambda metrics, step: tracker.metrics(metrics, step) if tracker else None,
        )
        if world.first:
            facts = {"shape": shape, "seed": seed, METRIC: progress.best}
            digest = write(folder, best.encoder, vocabulary, facts)
            print(f"base {folder} {digest}: {METRIC} {progress.best:.4f}")


def masked(rows: Rows, draw: np.random.Generator) -> Rows:
    """Return `sentences` with random words masked (UNKNOWN), and those words as `target`."""
    words = rows["target"].astype(np.int64)
    hidden = (draw.random(words.shape) < MASKED) & (words != PADDING)
    # Every sentence has at least one target, so that a small batch has a loss.
    none = ~hidden.any(axis=1)
    hidden[none, 0] = True
    target = np.where(hidden, words, _NO_TARGET)
    return {"target": target, "sentences": np.where(hidden, UNKNOWN, words)}


if __name__ == "__main__":
    main()
