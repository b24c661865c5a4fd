"""torchrun in a command: only a range of nodes makes a job elastic."""

from __future__ import annotations

import pytest

from ml.specs.torchrun import elastic


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nnodes 1:4 --max_restarts=3 train.py --nnodes 9:9",
        "torchrun --nnodes=1:4 --max-restarts 3 -m train",
        "cd src && python -u -m torch.distributed.run --standalone --nnodes=1:4 \\\n"
        " --max-restarts 3 train.py ${{inputs.data}}",
        "/opt/bin/torchrun --max-restarts 3 --nnodes 1:4 train.py | tee log",
    ],
)
def test_a_range_of_nodes(command: str) -> None:
    """However its options are written, and whatever the script's own are."""
    found = elastic(command)
    assert found is not None and (found.least, found.most) == (1, 4)
    assert found.options["max-restarts"] == "3"


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nnodes 2 train.py",
        "torchrun train.py --nnodes 1:4",
        "torchrun --nnodes ${{inputs.least}}:4 train.py",
        "python train.py --nnodes 1:4",
        "torchrun --nnodes",
        "echo 'torchrun",
    ],
)
def test_no_range_of_nodes(command: str) -> None:
    """A fixed number, an option of another program, a range that is known only later."""
    assert elastic(command) is None
