"""Compare the latency of a model in ONNX Runtime and in eager PyTorch, with one thread each.

Both predict the same encoded documents one by one, alternately. The benchmark prints the median
times for a filing of the corpus and for one that is twenty times as long.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch

from ml.projects.filings_nlp import corpus, export
from ml.projects.filings_nlp.model import HierarchicalAttention
from ml.projects.filings_nlp.served import GRAPH
from ml.projects.filings_nlp.tokens import SECTIONS, Batch, Vocabulary, stack
from ml.projects.filings_nlp.train import SETTINGS
from ml.serving.scoring.onnx import Graph

ROUNDS = 300
LONGER = 20


def main(quick: bool = False) -> float:
    """Return the time in ONNX Runtime divided by that in PyTorch, for a filing of the corpus."""
    torch.set_num_threads(1)
    filings = corpus.read(corpus.SCHEMA.parent / "filings").splits[corpus.TEST].documents
    vocabulary = Vocabulary.learn(filings)
    torch.manual_seed(0)
    model = HierarchicalAttention(len(vocabulary), 6, SETTINGS["width"]).eval()
    long = {name: " ".join(filing[name] for filing in filings[:LONGER]) for name in SECTIONS}
    encoded = [vocabulary.encode(filing) for filing in (*filings[:10], long)]
    batches = [stack([example]) for example in encoded]
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        export.write(Path(folder), model, vocabulary, ["0"] * 6, batches)
        graph = Graph(Path(folder) / GRAPH)

        def eager(batch: Batch) -> object:
            with torch.inference_mode():
                answer = model(*map(torch.from_numpy, batch))
                return answer.logits.softmax(-1).numpy()

        def served(batch: Batch) -> object:
            return graph.run(batch._asdict())

        for title, sample in (
            ("a filing", batches[:10]),
            (f"one {LONGER} times as long", batches[10:]),
        ):
            words = sum(int((batch.sentences > 0).sum()) for batch in sample) // len(sample)
            ours, theirs = _times(sample, (served, eager), ROUNDS // (10 if quick else 1))
            print(f"{title}, {words} words: ONNX Runtime {ours:.2f} ms, PyTorch {theirs:.2f} ms")
            ratios.append(ours / theirs)
    return ratios[0]


def _times(
    batches: Sequence[Batch], answer: Sequence[Callable[[Batch], object]], rounds: int
) -> list[float]:
    """Return the median milliseconds of each function; they alternate to have the same load."""
    taken: list[list[float]] = [[] for _ in answer]
    for number in range(rounds + 5):
        batch = batches[number % len(batches)]
        for function, times in zip(answer, taken, strict=True):
            began = time.perf_counter()
            function(batch)
            times.append(1000 * (time.perf_counter() - began))
    return [median(times[5:]) for times in taken]
