"""Compare training by two gloo processes of one thread with one process of one or two threads.

All run the same steps of the same rows in micro-batches. With gradient accumulation, the processes
synchronise once per step and exchange 25 MB of gradients, for steps of few or many rows. The 512
rows of a micro-batch correspond to the tokens of one BERT input.

It also prints the scaling that 64 GPUs would reach by a model of ring all-reduce. A step takes its
computation, plus the part of the all-reduce (2 (n - 1) / n of the gradients' bytes over the slowest
link) that does not overlap with the last micro-batch's backward pass. The computation time is from
data sheets, not measured.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time

WIDTH, LAYERS, MICRO = 1024, 6, 4
# Rows of a step; the returned ratio is that of the last number.
ROWS = (1024, 4096)
# Azure's GPUs: dense bfloat16 TFLOP/s from NVIDIA's data sheets, at a utilisation of 40 %
# (MosaicML's and Meta's published trainings report 35 to 50 %), and Gbit/s of a node's network from
# Azure's pages of the VM sizes (ND H100 v5: 8 × 400, ND A100 v4: 8 × 200, NC A100 v4: 80).
CLUSTERS = {
    "ND H100 v5": (989e12, 8, 8 * 400e9 / 8),
    "ND A100 v4": (312e12, 8, 8 * 200e9 / 8),
    "NC A100 v4, one card a node": (312e12, 1, 80e9 / 8),
}
UTILISATION, LINK_EFFICIENCY = 0.4, 0.8
# BERT-base with a head: number of weights, and tokens of a GPU's micro-batch (32 inputs of 512).
WEIGHTS, TOKENS = 110e6, 32 * 512


def train(rows_a_step: int, steps: int) -> float:
    """Run training steps as one process of the process group; return the seconds."""
    import torch
    from torch import nn

    from ml.toolkit.torch.distributed import distributed
    from ml.toolkit.torch.updates import Updates

    with distributed(seed=1) as world:
        layers: list[nn.Module] = []
        for _ in range(LAYERS):
            layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
        model = world.wrap(nn.Sequential(*layers))
        updates = Updates(world, model, torch.optim.SGD(model.parameters(), lr=1e-4))
        rows = torch.randn(rows_a_step, WIDTH)[world.rank :: world.size]
        parts = rows.split(len(rows) // MICRO)

        def step() -> None:
            for number, part in enumerate(parts):
                with updates.micro_batch(last=number == len(parts) - 1):
                    updates.backward(model(part).square().sum(), len(part))
            updates.step()

        for _ in range(2):
            step()
        world.barrier()
        began = time.perf_counter()
        for _ in range(steps):
            step()
        world.barrier()
        return time.perf_counter() - began


def _run(processes: int, threads: int, rows: int, steps: int) -> float:
    """Run training steps by processes with a number of threads each; return the seconds."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = []
    for rank in range(processes):
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_PORT": port}
        environment = os.environ | {name: str(value) for name, value in variables.items()}
        environment |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, "-m", "benchmarks.two_processes", str(rows), str(steps)]
        started.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        )
    outputs = [process.communicate()[0] for process in started]
    assert all(process.returncode == 0 for process in started)
    return max(float(output) for output in outputs)


def efficiency(flops: float, per_node: int, link: float, gpus: int, micro: int) -> float:
    """Return the share of linear scaling by the model in this module's docstring."""
    micro_batch = 6 * WEIGHTS * TOKENS / (flops * UTILISATION)  # 6 FLOP per weight and token
    nodes = max(2, gpus // per_node)
    gradients = 2 * (nodes - 1) / nodes * 4 * WEIGHTS / (link * LINK_EFFICIENCY)
    hidden = 2 / 3 * micro_batch  # the time of the backward pass
    computed = micro * micro_batch
    return computed / (computed + max(0.0, gradients - hidden))


def main(quick: bool) -> float:
    """Print all results; return one process's time over two's (goal: at least 1.6)."""
    steps, rounds = (5, 1) if quick else (10, 5)
    ways = {
        "one process, one thread": (1, 1),
        "one process, two threads": (1, 2),
        "two processes, one thread each": (2, 1),
    }
    ratio = 0.0
    for rows in ROWS:
        seconds: dict[str, list[float]] = {}
        for _ in range(rounds):
            for name, (processes, threads) in ways.items():
                seconds.setdefault(name, []).append(_run(processes, threads, rows, steps) / steps)
        alone, _, both = seconds.values()
        print(f"{LAYERS} layers of {WIDTH}, {rows} rows a step in {MICRO} micro-batches")
        for name, values in seconds.items():
            median = statistics.median(values)
            times = statistics.median(alone) / median
            print(f"{name:32} {median * 1e3:8.1f} ms a step {times:6.2f} ×")
        ratio = statistics.median(
            single / double for single, double in zip(alone, both, strict=True)
        )
    print("64 GPUs by the model, not measured (share of linear, 1 and 4 micro-batches a step):")
    for name, cluster in CLUSTERS.items():
        shares = [f"{efficiency(*cluster, gpus=64, micro=micro):6.1%}" for micro in (1, 4)]
        print(f"{name:32} {'  '.join(shares)}")
    return ratio


if __name__ == "__main__":
    print(train(*map(int, sys.argv[1:])))
