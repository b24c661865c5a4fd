"""torchrun in the command of a job: its range of nodes, and its other options."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ml.specs.assets import packages
from ml.specs.expressions import without_placeholders

# Options without a value; the last ones are followed by the script.
_FLAGS = frozenset({"standalone", "run-path", "no-python", "m", "module"})


@dataclass(frozen=True)
class Elastic:
    """The options of `torchrun --nnodes least:most`."""

    least: int
    most: int
    options: Mapping[str, str] = field(default_factory=dict)  # as written, by name with dashes


def elastic(command: str) -> Elastic | None:
    """Return the first torchrun of a command whose `--nnodes` is a range, or None."""
    if "nnodes" not in command:
        return None
    text = re.sub(r"\\\n", " ", without_placeholders(command, "$"))
    for words in packages.commands(text):
        options = _options(words)
        if nodes := re.fullmatch(r"(\d+):(\d+)", options.get("nnodes", "")):
            return Elastic(int(nodes[1]), int(nodes[2]), options)
    return None


def _options(words: Sequence[str]) -> dict[str, str]:
    """Return the options of torchrun, up to the script; {} for another program."""
    launchers = (
        index + 1
        for index, word in enumerate(words)
        if word.rpartition("/")[2] == "torchrun"
        or (word == "torch.distributed.run" and words[index - 1] == "-m")
    )
    arguments = iter(words[next(launchers, len(words)) :])
    options: dict[str, str] = {}
    for word in arguments:
        if not word.startswith("-"):
            break
        name, has_value, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        options[name] = value if has_value or name in _FLAGS else next(arguments, "")
    return options
