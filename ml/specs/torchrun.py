"""Parses an elastic torchrun in the command of a job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ml.specs.assets import packages
from ml.specs.expressions import without_placeholders

# Options without a value.
_FLAGS = frozenset({"standalone", "run-path", "no-python", "m", "module"})


@dataclass(frozen=True)
class Elastic:
    """The options of `torchrun --nnodes LEAST:MOST`."""

    least: int
    most: int
    options: Mapping[str, str] = field(default_factory=dict)  # name with dashes → value as written


def elastic(command: str) -> Elastic | None:
    """Parse the first torchrun in a command whose `--nnodes` is a range; None without one."""
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
