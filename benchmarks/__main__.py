"""`make bench ARGS="NAME --quick"`: run a benchmark and print its result as `ratio R`."""

from __future__ import annotations

import argparse
import importlib
from importlib.util import find_spec

# Name → (module with `main(quick: bool) -> float`, meaning of the returned ratio). A module may
# have `add_arguments`, which adds options; `main` gets their values as keyword arguments.
BENCHMARKS = {
    "architecture": (
        "benchmarks.architecture",
        "share of seeds in which evolution beats random search at equal cost; at least 0.5",
    ),
    "automl": (
        "benchmarks.automl",
        "our mean rank over the best peer's of FLAML, AutoGluon, Optuna + LightGBM; at most 1",
    ),
    "automl-memory": (
        "benchmarks.automl_memory",
        "peak of a trial on a million rows over its imports, over 3 tables; at most 1",
    ),
    "azure-submit": (
        "benchmarks.azure_submit",
        "submit to running by `ml run --on azure` over a bare MLClient, stand-in; at most 1.1",
    ),
    "canary": (
        "benchmarks.canary",
        "upper end of the false-alarm rate's interval over the stated level; at most 1",
    ),
    "checkpoint": (
        "benchmarks.checkpoint",
        "milliseconds that torch.save of 403 MB blocks a training over ours; at least 60",
    ),
    "corpora": (
        "benchmarks.corpora",
        "CPU of preparing a corpus of filings by a row loop over that by columns; at least 4",
    ),
    "faq-recipe": (
        "benchmarks.faq_recipe",
        "our error at rank 1 over the reference recipe's, the worst data set; at most 0.7",
    ),
    "features": (
        "benchmarks.features",
        "the point-in-time join over polars' join_asof by event time; at most 1.5",
    ),
    "filings-onnx": (
        "benchmarks.filings_onnx",
        "one document of filings_nlp in ONNX Runtime over eager PyTorch; at most 0.5",
    ),
    "forecasting": (
        "benchmarks.forecasting",
        "our MASE over the best peer's, AutoETS, AutoTheta, mlforecast or FLAML; at most 1.05",
    ),
    "gpu": (
        "benchmarks.gpu",
        "rows in 16 GB of a GPU by bfloat16 and recomputed activations over float32; at least 2.4",
    ),
    "infra-preview": (
        "benchmarks.infra_preview",
        "CPU of previewing three stacks over running the three bare programs; at most 1.5",
    ),
    "loader": (
        "benchmarks.loader",
        "rows a second of our batches over a plain DataLoader's; at least 10",
    ),
    "modules": (
        "benchmarks.modules",
        "modules that four commands execute and YAML files they open, over bounds; at most 1",
    ),
    "propose": (
        "benchmarks.propose",
        "seconds of `ml release propose` on 30,000 rows over a plain bootstrap; at most 8",
    ),
    "races": (
        "benchmarks.races",
        "of two pipelines at once, how often the better model ends as champion; 1",
    ),
    "rollback": (
        "benchmarks.rollback",
        "seconds from `ml release rollback` to its first answer, over 5; at most 1",
    ),
    "router": (
        "benchmarks.router",
        "requests a second through the router over the server alone, four callers; at least 0.5",
    ),
    "segments": (
        "benchmarks.segments",
        "CPU of LightGBM in segments of 100 trees over that without; at most 1.5",
    ),
    "serving": (
        "benchmarks.serving",
        "the fast server's requests a second over azureml-inference-server-http's; at least 4",
    ),
    "small-trials": (
        "benchmarks.small_trials",
        "a subprocess for each no-op trial over a sweep of them; at least 8",
    ),
    "spec-check": (
        "benchmarks.spec_check",
        "checking 100 specs over bare SDK loads of the same files; at most 1.25",
    ),
    "sweep-bookkeeping": (
        "benchmarks.sweep_bookkeeping",
        "milliseconds a trial besides the trial, of 1,000, over 25; at most 1",
    ),
    "sweep-overhead": (
        "benchmarks.sweep_overhead",
        "24 trials of 0.5 s in a sweep over two forked workers; at most 1.25",
    ),
    "two-processes": (
        "benchmarks.two_processes",
        "a step by one process of one thread over one by two gloo processes; at least 1.6",
    ),
    "startup": ("benchmarks.startup", "`ml --help` over starting Python alone"),
}


def main() -> None:
    """Run the benchmark on the command line; exit with 2 if its name is unknown."""
    # A fork may have removed the project, and the benchmark, that is measured.
    there = {name: entry for name, entry in BENCHMARKS.items() if find_spec(entry[0])}
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("name", nargs="?", choices=sorted(there), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="less data, the same comparison")
    parser.add_argument("--list", action="store_true", help="list the benchmarks")
    arguments, others = parser.parse_known_args()
    if arguments.list or arguments.name is None:
        for name, (_, sentence) in sorted(there.items()):
            print(f"{name:14} {sentence}")
        return
    module = importlib.import_module(there[arguments.name][0])
    subparser = argparse.ArgumentParser(prog=f"{parser.prog} {arguments.name}")
    if hasattr(module, "add_arguments"):
        module.add_arguments(subparser)
    ratio = module.main(quick=arguments.quick, **vars(subparser.parse_args(others)))
    print(f"ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
