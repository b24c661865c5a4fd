"""How many processes a job is, and what they are to each other: a part of a plan."""

from __future__ import annotations

from dataclasses import dataclass

from ml.core.errors import Place


@dataclass(frozen=True)
class Distribution:
    """How many processes a node starts, and by which launcher (pytorch, mpi, tensorflow).

    A tensorflow job has workers and parameter servers instead; `worker_count` None is one a node.
    """

    type: str
    process_count_per_instance: int
    place: Place
    worker_count: int | None = None
    parameter_server_count: int = 0

    def workers(self, nodes: int) -> int:
        """The workers of a tensorflow job: "if not specified, will default to the instance count"
        (azure-ai-ml's TensorFlowDistribution)."""
        return nodes if self.worker_count is None else self.worker_count

    def processes(self, nodes: int) -> int:
        """How many processes there are on so many nodes."""
        if self.type == "tensorflow":
            return self.workers(nodes) + self.parameter_server_count
        return nodes * self.process_count_per_instance


@dataclass(frozen=True)
class Parallel:
    """How a parallel step's data is divided into mini-batches, and when it has failed.

    By reference-yaml-job-parallel. `input` is the name of the input that is divided; mini-batches
    are of `mini_batch_size` files, or of that many bytes of a table (0: not given), or of one
    combination of `partition_keys`. A threshold of -1 ignores all failures. `append_row_to` is the
    name of the output that takes all that run() returned, "" for none.
    """

    entry_script: str
    input: str
    place: Place
    mini_batch_size: int = 0
    partition_keys: tuple[str, ...] = ()
    append_row_to: str = ""
    # "For a CPU compute, the default value is the number of cores."
    max_concurrency_per_instance: int | None = None
    max_retries: int = 2
    run_timeout_s: float = 60.0
    error_threshold: int = -1
    mini_batch_error_threshold: int = -1
    logging_level: str = "INFO"
