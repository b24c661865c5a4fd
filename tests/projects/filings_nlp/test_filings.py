"""The generated corpus: its mechanism is the one that is written down, its split keeps apart."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from ml.projects.filings_nlp import corpus, filings
from ml.projects.filings_nlp.corpus import SCHEMA, SPLITS, TEST, TRAIN, VALIDATION
from ml.projects.filings_nlp.filings import EVENTS, IS_BETTER, IS_WORSE, NOTHING, Filing
from ml.projects.filings_nlp.language import FACTS, SECTORS
from ml.projects.filings_nlp.tokens import SECTIONS

DATA = SCHEMA.parent / "filings"


@pytest.fixture(scope="module", name="made")
def _made() -> Sequence[Filing]:
    """What data/ was made of."""
    return filings.generate()


def test_the_corpus_is_what_the_generator_makes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To the byte and small; what the best model reaches is said here and on the page."""
    filings.main(["--out", str(tmp_path)])
    line = capsys.readouterr().out.strip()
    assert line in (SCHEMA.parents[1] / "README.md").read_text()
    shipped = (DATA / "filings.csv.gz").read_bytes()
    assert (tmp_path / "filings" / "filings.csv.gz").read_bytes() == shipped
    assert len(shipped) < 1_500_000


def test_a_seed_makes_a_corpus() -> None:
    """The same one again, and another seed another one."""
    texts = [[of.sections for of in filings.generate(seed, 8)] for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]


def test_no_model_is_expected_to_beat_the_true_probabilities(made: Sequence[Filing]) -> None:
    """Their log loss is the bound, over other draws of events; others have more."""
    table = np.stack([of.probability for of in made])
    draw = np.random.default_rng(3)
    losses, blurred = [], []
    mixed = 0.9 * table + 0.1 * table.mean(axis=0)
    for _ in range(20):
        drawn = (draw.random((len(table), 1)) > table.cumsum(axis=1)).sum(axis=1)
        rows = np.arange(len(table)), np.minimum(drawn, table.shape[1] - 1)
        losses.append(-np.log(table[rows]).mean())
        blurred.append(-np.log(mixed[rows]).mean())
    assert abs(np.mean(losses) - filings.bound(made).log_loss) < 0.01
    assert np.mean(blurred) > np.mean(losses)


def test_events_are_rare_to_different_degrees(made: Sequence[Filing]) -> None:
    """From more than half to one in twenty, and the labels are as likely as they are stated."""
    mean = np.stack([of.probability for of in made]).mean(axis=0)
    counts = np.array([sum(of.event == event for of in made) for event in EVENTS]) / len(made)
    assert mean[0] > 0.5 and mean[-1] < 0.06
    assert np.abs(mean - counts).max() < 0.02


@pytest.mark.parametrize("event", [of for of in EVENTS if of != filings.NONE])
def test_two_facts_of_two_sections_make_an_event(event: str) -> None:
    """Each for the worse makes it more likely, both more than their sum; better, less likely."""
    nothing = dict.fromkeys(FACTS, NOTHING)
    first, second = EVENTS[event][1]
    assert FACTS[first].section != FACTS[second].section

    def odds(**facts: int) -> float:
        of = filings.probabilities({**nothing, **facts}, "industry")
        return float(np.log(of[[*EVENTS].index(event)] / of[0]))

    usual, one = odds(), odds(**{first: IS_WORSE})
    both = odds(**{first: IS_WORSE, second: IS_WORSE})
    assert one > usual > odds(**{first: IS_BETTER}) and both - one > one - usual


def test_facts_are_stated_where_they_belong(made: Sequence[Filing]) -> None:
    """Some wording of what decided stands in its section; the words are those of both sides."""
    with_risk = [of for of in made if "had to waive" in of.sections["notes"]]
    others = [of for of in made if "did not have to waive" in of.sections["notes"]]
    at = [*EVENTS].index("default")
    means = [np.mean([of.probability[at] for of in those]) for those in (with_risk, others)]
    assert len(with_risk) > 100 and means[0] > 3 * means[1]
    assert {of.sector for of in made} == {*SECTORS}


def test_the_split_keeps_companies_and_years_apart() -> None:
    """No company of training is tested, and what is tested was filed later."""
    read = corpus.read(DATA)
    splits = [read.splits[name] for name in SPLITS]
    companies = [{*of.companies} for of in splits]
    assert not companies[0] & companies[1] and not (companies[0] | companies[1]) & companies[2]
    assert min(read.splits[TEST].days) > max(read.splits[TRAIN].days)
    assert min(read.splits[TEST].days) > max(read.splits[VALIDATION].days)
    assert min(map(len, splits)) > 300 and len(read.classes) == len(EVENTS)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text.replace("filed", "when", 1), "error[missing-column]"),
        (lambda text: text.replace("2019-0", "in spring 2019-0", 1), "error[wrong-type]"),
        (lambda text: "\n".join(text.splitlines()[:50]), "error[too-few-rows]"),
        (lambda text: text + text.splitlines()[-1], "error[duplicate-id]"),
        (lambda text: re.sub(r",202[234]-", ",2012-", text), "error[invalid-split]"),
    ],
)  # fmt: skip
def test_a_corpus_that_is_not_as_the_schema_says_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[str], str], message: str
) -> None:
    """With exit code 2, the file and the line."""
    text = gzip.decompress((DATA / "filings.csv.gz").read_bytes()).decode()
    (tmp_path / "filings.csv.gz").write_bytes(gzip.compress(damage(text).encode()))
    with pytest.raises(SystemExit) as ended:
        corpus.read(tmp_path)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and message in said and "expected:" in said


def test_a_truncated_corpus_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Half a file is no file."""
    whole = (DATA / "filings.csv.gz").read_bytes()
    (tmp_path / "filings.csv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SystemExit):
        corpus.read(tmp_path)
    assert "error[unreadable]" in capsys.readouterr().err


def test_sections_are_those_of_the_tokeniser() -> None:
    """The generator writes what the model reads."""
    from ml.projects.filings_nlp import tokens

    assert SECTIONS == tokens.SECTIONS
