"""Train one Mask R-CNN, select its epoch on the validation images, and export it to ONNX.

python -m ml.projects.shelf_gaps.train --data DIR --model OUT_DIR [--epochs 16 …]

If started again with the same `--checkpoints`, it resumes.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from ml.measures.detection import padded
from ml.measures.measurement import Rows, metric_values
from ml.projects.shelf_gaps.dataset import TRAIN, VALIDATION, Picture, check_images, opened
from ml.projects.shelf_gaps.detector import FILE, Detector
from ml.projects.shelf_gaps.images import decoded, letterboxed
from ml.projects.shelf_gaps.network import Network, OneImage, build, export
from ml.projects.shelf_gaps.parity import agreement
from ml.projects.shelf_gaps.pictures import Pictures, augmented, network_batch
from ml.toolkit.data.tables import DataRefused
from ml.toolkit.torch.checkpoints import Checkpoints
from ml.toolkit.torch.distributed import Metrics, World, distributed
from ml.toolkit.torch.health import Guard, Watchdog, check_machines
from ml.toolkit.torch.loading import Batches, Shards
from ml.toolkit.torch.updates import Precision, Updates
from ml.toolkit.training.model_folder import seal
from ml.toolkit.training.timing import latency
from ml.toolkit.training.tracking import tracking

PRIMARY = "map_50"
# Minimum share of matching boxes between the export and the original (`parity`).
LEAST_AGREEMENT = 0.99
# Number of last validations whose spread measures the stability.
STEADY = 3
_TIMED = 20
# Watchdog timeout in seconds, longer than validation and export on CPUs.
STALLED_S = 1800.0


@dataclass(frozen=True)
class Schedule:
    """The training schedule; each field is a command-line argument, so a sweep can search it."""

    epochs: int = 16
    steps: int = 0  # above 0: stop after this many steps, for a smoke test
    batch: int = 4  # images per step over all processes
    learning_rate: float = 0.02  # decays to 0 along a cosine
    momentum: float = 0.9
    weight_decay: float = 1e-4
    warmup: int = 100  # steps of linear warm-up; at most a quarter of the training
    clip: float = 5.0  # maximum norm of the gradient
    # Epochs between validations. Validation also runs at the end and halfway through `steps`.
    measure_every: int = 2
    augment: str = "true"  # `true` or `false`
    precision: str = "float32"  # float32, bfloat16 or float16


class History:
    """The validation metrics so far, and the weights of the best epoch; part of a checkpoint."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self.measured: list[float] = []
        self.best = copy.deepcopy(network.state_dict())

    def add(self, value: float) -> None:
        """Add an epoch's primary metric; copy the weights if it is the best so far."""
        if not self.measured or value > max(self.measured):
            self.best = copy.deepcopy(self._network.state_dict())
        self.measured.append(value)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"measured": self.measured, "best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.measured, self.best = list(state["measured"]), state["best"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Read and check the data; train, export, compare and save the model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data asset")
    parser.add_argument("--model", type=Path, required=True, help="the folder to write")
    parser.add_argument("--checkpoints", type=Path, help="a folder that survives a restart")
    parser.add_argument("--seed", type=int, default=0)
    for kind in (Network, Schedule):
        for field in fields(kind):
            name, usual = f"--{field.name.replace('_', '-')}", field.default
            parser.add_argument(name, type=type(usual), default=usual)
    options = vars(parser.parse_args(arguments))
    schedule = Schedule(**{option.name: options[option.name] for option in fields(Schedule)})
    try:
        about = Network.from_mapping(options)
        if schedule.epochs < 1 or schedule.measure_every < 1 or schedule.batch < 1:
            raise ValueError("epochs, batch and measure-every are at least 1")
        if schedule.steps < 0:
            raise ValueError("steps are at least 0, which is all of them")
        with opened(options["data"]) as splits:
            check_images([picture for pictures in splits.values() for picture in pictures])
            with distributed(options["seed"]) as world, TemporaryDirectory() as passing:
                # By default, all processes use a temporary folder of the first process.
                folder = options["checkpoints"] or Path(world.gather(passing)[0])
                _train(world, about, schedule, splits, folder, options)
    except DataRefused as error:
        raise SystemExit(str(error)) from None
    except ValueError as error:
        parser.error(str(error))


def _train(
    world: World,
    about: Network,
    schedule: Schedule,
    splits: Any,
    folder: Path,
    options: dict[str, Any],
) -> None:
    network = build(about)
    model = world.wrap(network)
    world.seed(options["seed"])
    batches = Batches(
        cast(Shards, Pictures(splits[TRAIN], about.size)),
        world,
        batch=schedule.batch,
        seed=options["seed"],
        block=1,
        transform=augmented if schedule.augment == "true" else None,
    )
    optimiser = torch.optim.SGD(
        (parameter for parameter in network.parameters() if parameter.requires_grad),
        lr=schedule.learning_rate,
        momentum=schedule.momentum,
        weight_decay=schedule.weight_decay,
    )
    last = schedule.steps or schedule.epochs * len(batches)
    rates = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: _rate(step, last, schedule.warmup)
    )
    updates = Updates(
        world,
        model,
        optimiser,
        precision=cast(Precision, schedule.precision),
        clip=schedule.clip,
        schedule=rates,
    )
    history = History(network)
    state = {
        "network": network,
        "optimiser": optimiser,
        "rates": rates,
        "updates": updates,
        "batches": batches,
        "history": history,
    }
    hyperparameters = {
        option.name: options[option.name] for option in (*fields(Network), *fields(Schedule))
    }
    began = time.perf_counter()
    check_machines(world, folder)
    with (
        tracking() as tracker,
        Watchdog(world, STALLED_S) as watchdog,
        Checkpoints(folder, world, state, every_s=60, progress=watchdog.alive) as checkpoints,
    ):
        step, guard = checkpoints.restore(), Guard(checkpoints)
        if world.first and not step:
            tracker.parameters({**hyperparameters, "seed": options["seed"]})
        losses = Metrics(world)
        while step < last:
            model.train()
            for parts in batches:
                for number, batch in enumerate(parts, start=1):
                    there = {name: value.to(world.device) for name, value in batch.items()}
                    images, targets = network_batch(there)
                    with updates.micro_batch(last=number == len(parts)):
                        loss = sum(model(images, targets).values())
                    updates.backward(loss * len(images), len(images))
                    losses.add("train_loss", float(loss.detach()) * len(images), len(images))
                step += 1
                guard.check(step, updates.step())
                watchdog.beat()
                ended = batches.step == len(batches)
                measured = step in (last, schedule.steps // 2) or (
                    ended and (batches.epoch + 1) % schedule.measure_every == 0
                )
                if measured:
                    logged = {**losses.reduce(), **validation(network, splits[VALIDATION], about)}
                    history.add(logged[f"{VALIDATION}_{PRIMARY}"])
                    if world.first:
                        tracker.metrics(logged, step)
                        text = " ".join(f"{name}={value:.4f}" for name, value in logged.items())
                        print(f"epoch {batches.epoch + 1}, step {step}/{last}: {text}", flush=True)
                    model.train()
                    watchdog.beat()
                checkpoints.after_step(step, history.measured[-1] if measured else None)
                if step == last:
                    break
        if not world.first:
            return
        network.load_state_dict(history.best)
        seconds = time.perf_counter() - began
        facts = {
            "seed": options["seed"],
            "seconds": seconds,
            "hyperparameters": hyperparameters,
            "measured": history.measured[-STEADY:],
        }
        metrics = _save(network.cpu(), about, splits[VALIDATION], options["model"], facts)
        metrics["training_seconds"] = seconds
        if len(history.measured) > 1:
            metrics[f"{VALIDATION}_{PRIMARY}_std"] = float(np.std(facts["measured"], ddof=1))
        tracker.metrics(metrics, last + 1)


def validation(network: nn.Module, pictures: Sequence[Picture], about: Network) -> dict[str, float]:
    """Return the network's metrics on validation pictures, named such as `validation_map_50`."""
    single, device = OneImage(network), next(network.parameters()).device
    answers, truth = [], []
    with torch.inference_mode():
        for picture in pictures:
            sample = picture.sample(about.size)
            boxes, scores, _ = single(torch.from_numpy(sample.planes).to(device))
            answers.append(torch.cat([boxes, scores[:, None]], dim=1).double().cpu().numpy())
            truth.append(sample.boxes)
    rows = Rows([picture.name for picture in pictures], truth, padded(answers))
    return {
        f"{VALIDATION}_{name}": value for name, value in metric_values("detection", rows).items()
    }


def _save(
    network: nn.Module,
    about: Network,
    pictures: Sequence[Picture],
    folder: Path,
    facts: dict[str, Any],
) -> dict[str, float]:
    """Export and save the model; return its agreement with the original and its latency.

    Exits with `export-differs` if fewer than LEAST_AGREEMENT of the boxes match.
    """
    folder.mkdir(parents=True, exist_ok=True)
    export(network, about.size, folder / FILE)
    digest = seal(folder, facts)
    detector = Detector(folder)
    images = [
        letterboxed(decoded(picture.file.read_bytes(), about.size), about.size)
        for picture in pictures
    ]
    share = agreement(network, detector, images)
    if share < LEAST_AGREEMENT:
        raise SystemExit(
            f"error[export-differs]: ONNX Runtime gives {share:.2%} of the boxes of the network\n"
            f"  expected: at least {LEAST_AGREEMENT:.0%}, by IoU ≥ 0.99 and scores within 0.001\n"
            "  hint: train without --precision float16, in the environment with the locked packages"
        )
    print(f"model {folder} {digest}: the export has {share:.2%} of the network's boxes")
    timed = latency(detector.detect, images[:_TIMED]).as_metrics()
    return {"export_agreement": share, **timed}


def _rate(step: int, last: int, warmup: int) -> float:
    rising = min(1.0, (step + 1) / max(1, min(warmup, last // 4)))
    return rising * 0.5 * (1 + float(np.cos(np.pi * min(1.0, step / last))))


if __name__ == "__main__":
    main()
