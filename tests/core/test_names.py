"""Names that become paths and identifiers: one form for each kind."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml.core.errors import Place, UserError
from ml.core.names import Kind, check, is_name

NAME_KINDS: tuple[Kind, ...] = get_args(Kind)
HOSTILE = [
    *("", ".", "..", "../x", "../../x", "/etc", "a/b", "a\\b", "~", " a", "a ", "a\n", "a\0b"),
    *("\x1b[31mred", "\u202egnp", "\u200b", "a/../b", "-rf", "a" * 300, "$(id)", "a;b", "a=b"),
]


@pytest.mark.attack("a name that is a path, an option, an escape sequence or a command")
@pytest.mark.parametrize("kind", NAME_KINDS)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_refused(kind: Kind, name: str) -> None:
    """In each kind alike, with the place that it is written at."""
    with pytest.raises(UserError, match="bad-name") as refused:
        check(kind, name, Place("job.yml", 7))
    assert "job.yml:7" in str(refused.value)
    assert "\x1b" not in str(refused.value) and "\u202e" not in str(refused.value)


def test_usual_names_are_accepted() -> None:
    """Those that this repository, Azure ML and people use."""
    for kind, names in {
        "asset": ("faq-corpus", "AzureML-sklearn-1.0", "words_2", "_x"),
        "version": ("1", "2.0.1", "2026-01-01"),
        "endpoint": ("faq-matching", "blue", "e-1"),
        "experiment": ("faq-matching", "My work (2)", "zürich", "a.b"),
        "job": ("brisk_lagoon_07", "test-1.2"),
        "port": ("faq", "input_1", "_x"),
        "project": ("fraud_scoring",),
        "split test": ("title-test",),
        "variable": ("OMP_NUM_THREADS", "_x", "BASH_FUNC_f%%"),
    }.items():
        for name in names:
            assert check(kind, name) == name


@given(name=st.text(max_size=8), kind=st.sampled_from(NAME_KINDS))
def test_a_name_stays_in_its_folder(name: str, kind: Kind) -> None:
    """Whatever is accepted is one part of a path, and is printable."""
    if is_name(kind, name):
        assert (Path("/a/b") / name).resolve().parent == Path("/a/b")
        assert name.isprintable() and name == name.strip()
