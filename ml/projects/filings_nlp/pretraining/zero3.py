"""Pretrain the encoder like pretrain.py, but with Accelerate and DeepSpeed ZeRO-3.

    python -m ml.projects.filings_nlp.pretraining.zero3 --data DIR --base OUT_DIR [--zero-stage 3 …]

ZeRO-3 shards parameters, gradients and optimiser states over the processes (jobs/train-zero3.yml).
It has not been run on GPUs. Stage 0 is data parallelism and also runs on CPUs. No checkpoints are
written.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.utils import is_deepspeed_available, set_seed
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from ml.projects.filings_nlp.corpus import TRAIN
from ml.projects.filings_nlp.pretraining.prepare import prepare, refusing
from ml.projects.filings_nlp.pretraining.pretrain import SETTINGS, masked
from ml.projects.filings_nlp.tokens import Vocabulary
from ml.projects.filings_nlp.transformer import MaskedWords, Transformer, write
from ml.toolkit.torch.loading import Shards
from ml.toolkit.training.tracking import tracking

METRIC = "train_masked_loss"


def main(arguments: Sequence[str] | None = None) -> None:
    """Read, pretrain, log, write."""
    parser = argparse.ArgumentParser(description="Pretrain the encoder with DeepSpeed ZeRO-3.")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data asset")
    parser.add_argument("--base", type=Path, required=True, help="the folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--zero-stage", type=int, choices=[0, 3], default=3)
    parser.add_argument("--precision", choices=["no", "bf16"], default="bf16")
    for name, usual in SETTINGS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(usual), default=usual)
    settings = vars(parser.parse_args(arguments))
    if settings["zero_stage"] and not is_deepspeed_available():
        parser.error("--zero-stage 3 needs DeepSpeed, as in azureml:ml-acpt:1; elsewhere use 0")
    data, folder = settings.pop("data"), settings.pop("base")
    with tempfile.TemporaryDirectory() as temporary:
        corpus = Path(temporary)
        with refusing():
            prepare(data, corpus)
        pretrain(corpus, settings, folder)


def pretrain(corpus: Path, settings: Mapping[str, Any], folder: Path) -> None:
    """Write the encoder of the last epoch into `folder`.

    `corpus` is an output folder of prepare.py. `settings["batch"]` is the total over all processes.
    """
    plugin = None
    if settings["zero_stage"]:
        # `zero3_save_16bit_model` gathers the weights for the first process, which writes them.
        plugin = DeepSpeedPlugin(zero_stage=3, gradient_clipping=1.0, zero3_save_16bit_model=True)
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),
        mixed_precision=settings["precision"],
        deepspeed_plugin=plugin,
    )
    set_seed(settings["seed"])
    vocabulary = Vocabulary.load(corpus)
    draw = np.random.default_rng([settings["seed"], accelerator.process_index])

    def collate(sentences: Sequence[Any]) -> dict[str, torch.Tensor]:
        rows = masked({"target": np.stack(sentences)}, draw)
        return {name: torch.from_numpy(column) for name, column in rows.items()}

    shape = {name: settings[name] for name in ("width", "layers", "heads")}
    bare = MaskedWords(Transformer(len(vocabulary), **shape))
    model, optimiser, batches = accelerator.prepare(
        bare,
        torch.optim.AdamW(bare.parameters(), settings["learning_rate"]),
        DataLoader(
            [*Shards(corpus / TRAIN).column("target")],
            settings["batch"] // accelerator.num_processes,
            shuffle=True,
            collate_fn=collate,
        ),
    )
    with tracking() if accelerator.is_main_process else nullcontext() as tracker:
        for epoch in range(settings["epochs"]):
            losses = []
            for batch in batches:
                logits = model(batch["sentences"])
                loss = cross_entropy(logits.transpose(1, 2).float(), batch["target"])
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimiser.step()
                optimiser.zero_grad()
                losses.append(loss.detach())
            mean = float(accelerator.gather(torch.stack(losses)).mean())
            if tracker:
                tracker.metrics({METRIC: mean}, epoch + 1)
                print(f"epoch {epoch + 1}: {METRIC} {mean:.4f}", flush=True)
        weights = accelerator.get_state_dict(model)  # in every process: ZeRO-3 gathers them
        if tracker:
            gathered = MaskedWords(Transformer(len(vocabulary), **shape))
            gathered.load_state_dict({name: value.float() for name, value in weights.items()})
            facts = {"shape": shape, "seed": settings["seed"], METRIC: mean}
            print(f"base {folder} {write(folder, gathered.encoder, vocabulary, facts)}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
