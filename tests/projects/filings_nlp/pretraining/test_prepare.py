"""A prepared corpus: the sentences of the row loop, however the files are divided, or an error."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from ml.projects.filings_nlp import filings
from ml.projects.filings_nlp.corpus import TRAIN, VALIDATION, read
from ml.projects.filings_nlp.pretraining import prepare, pretrain
from ml.projects.filings_nlp.pretraining.tokenise import Tokeniser, tokenise
from ml.projects.filings_nlp.tokens import MOST_CHARACTERS, RESERVED, Vocabulary, sentences
from ml.specs.plan.planning import plan
from ml.specs.plan.plans import PipelinePlan
from ml.specs.sdk.load import load
from ml.toolkit.data.tables import DataRefused
from ml.toolkit.torch.loading import Shards
from tests.conftest import ROOT
from tests.projects.filings_nlp.small import COMPANIES, unique, write_filings

ENTRY = ROOT / "ml/projects/filings_nlp/pretraining/batch.py"
HARD = [
    "A b. C d! E? f.g 1,234.5 h. 12. i 3.\u00a0j 4,\n5 ., 6 k\n\nl",
    "don't rock'n'roll ''' o' 'p q'1'r s_t ²³ x² 一二 Größe ǅ İI ΣΑΣ 。a。 b！c？ d",
    "a.\x1cb \x85 c.\u2028d\re.\rf １２.３ ４ ٣٤. ٥ \U0001d7ce \U00010428 \u0345 é e\u0301",
    "word " * 100 + "." + " x." * 400,
    "",
    "a b. " * (MOST_CHARACTERS // 5) + "c",
]


def cut(texts: list[str]) -> list[list[list[str]]]:
    """The words of each sentence of each text, by columns."""
    tokeniser = Tokeniser()
    empty = [""] * len(texts)
    table, documents = tokeniser.cut([np.array(of, object) for of in (empty, texts)])
    words = ["", *tokeniser.words]
    rows: list[list[list[str]]] = [[] for _ in texts]
    for row, document in zip(table.tolist(), documents, strict=True):
        rows[document].append([words[number] for number in row if number])
    return rows


def test_columns_are_cut_as_texts_are() -> None:
    """Numbers, apostrophes, other scripts, every kind of space, and what is too long."""
    assert cut(HARD) == [sentences(text) for text in HARD]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(st.one_of(st.sampled_from("aB1.,'!? \n。_é²"), st.characters(codec="utf-8"))))
)
def test_any_text_is_cut_alike(texts: list[str]) -> None:
    assert cut([*texts, ""]) == [*map(sentences, texts), []]


@pytest.fixture(scope="module", name="whole")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Filings in one file."""
    return write_filings(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module", name="divided")
def _divided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in three files."""
    folder = tmp_path_factory.mktemp("divided")
    arguments = ["--out", str(folder), "--seed", "1", "--companies", str(COMPANIES)]
    filings.main([*arguments, "--files", "3"])
    return folder


def written(folder: Path) -> dict[str, bytes]:
    return {str(of.relative_to(folder)): of.read_bytes() for of in folder.rglob("*.*")}


def test_a_corpus_is_that_of_the_row_loop(whole: Path, divided: Path, tmp_path: Path) -> None:
    """Every sentence and the vocabulary; not a byte depends on how the filings are divided."""
    rows = read(whole)
    vocabulary = Vocabulary.learn(rows.splits[TRAIN].documents)
    prepare.main(["--data", str(whole), "--corpus", str(tmp_path / "corpus")])
    assert Vocabulary.load(tmp_path / "corpus") == vocabulary
    for split in (TRAIN, VALIDATION):
        table = Shards(tmp_path / "corpus" / split).column("target")
        assert np.array_equal(table, unique(rows, split, vocabulary))
    prepare.prepare(divided, tmp_path / "again")
    assert written(tmp_path / "again") == written(tmp_path / "corpus")


def test_a_mini_batch_that_is_tried_again_writes_the_same(
    divided: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What a killed try left is no result; without a file's result there is no corpus."""
    data, tokenised = divided, tmp_path / "tokenised"
    files = sorted(map(str, data.rglob("*.gz")))
    monkeypatch.setattr(sys, "argv", ["batch.py", "--tokenised", str(tokenised)])
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("batch", ENTRY)
    assert spec and spec.loader
    batch: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(batch)
    batch.init()
    (tokenised / f".{Path(files[2]).name}.7").write_bytes(b"half")
    assert len(batch.run(files[:2])) == 2
    arguments = ["--data", data, "--tokenised", tokenised, "--corpus", tmp_path / "corpus"]
    with pytest.raises(SystemExit) as ended:
        prepare.main([*map(str, arguments)])
    assert ended.value.code == 2 and "filings-00002.csv.gz.npz" in capsys.readouterr().err
    wrong = harmed(next(divided.rglob("*.gz")), tmp_path, "not UTF-8")
    with pytest.raises(ValueError, match=rf"^error\[unreadable\]: {wrong}:3: .*hint: .*$"):
        batch.run([str(wrong)])
    before = written(tokenised)
    assert len(batch.run(files[1:])) == 2
    after = written(tokenised)
    assert {name: after[name] for name in before} == before
    prepare.main([*map(str, arguments)])
    prepare.prepare(data, tmp_path / "whole")
    assert written(tmp_path / "corpus") == written(tmp_path / "whole")


@pytest.mark.slow
def test_a_killed_process_leaves_no_half_file(whole: Path, tmp_path: Path) -> None:
    """Whenever it is killed: a result that is there can be read."""
    data = whole / "filings.csv.gz"
    program = "import sys\nfrom pathlib import Path\nfrom ml.projects.filings_nlp.pretraining"
    program += ".tokenise import tokenise\nprint(flush=True)\n"
    program += "while True: tokenise(*map(Path, sys.argv[1:]))"
    words = [sys.executable, "-c", program, str(data), str(tmp_path)]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline()
    began = time.monotonic()
    while not [*tmp_path.glob("*.npz")] and time.monotonic() < began + 60:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    with np.load(tmp_path / "filings.csv.gz.npz") as of:
        assert len(json.loads(of["words"].tobytes())) == len(of["counts"])


def harmed(whole: Path, folder: Path, harm: str) -> Path:
    """A small file with something wrong in its third line."""
    with gzip.open(whole) as stream:
        lines = [*islice(stream, 5)]
    lines[2] = {
        "a cell too few": lines[2].replace(b",", b" ", 1),
        "no company": b",".join([b"x", b"", *lines[2].split(b",")[2:]]),
        "not UTF-8": lines[2].replace(b" ", b"\xff", 1),
    }.get(harm, lines[2])
    content = b"".join(lines[:1] if harm == "no row" else lines) * (harm != "no byte")
    path = folder / "filings.csv.gz"
    path.write_bytes(gzip.compress(content))
    return path


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        ("a cell too few", "error[missing-column]: PATH:3: "),
        ("no company", "error[empty-value]: PATH:3: company is empty"),
        ("not UTF-8", "error[unreadable]: PATH:3: 'utf-8' codec can't decode"),
        ("no row", "error[too-few-rows]: PATH: 0 rows"),
        ("no byte", "error[too-few-rows]: PATH: 0 rows"),
    ],
)
def test_a_file_that_is_no_table_of_filings_is_named(
    whole: Path, tmp_path: Path, harm: str, expected: str
) -> None:
    """With its line, and nothing is written of it."""
    path = harmed(whole / "filings.csv.gz", tmp_path, harm)
    with pytest.raises(DataRefused) as refused:
        tokenise(path, tmp_path)
    assert str(refused.value).startswith(expected.replace("PATH", str(path)))
    assert [*tmp_path.iterdir()] == [path]


def test_the_pipeline_ends_in_a_corpus_that_pretrains() -> None:
    """With the options that the programs have."""
    steps = plan(load(ROOT / "ml/projects/filings_nlp/jobs/corpus.yml"))
    assert isinstance(steps, PipelinePlan)
    assert [*steps.steps] == ["generate", "tokenise", "collect", "pretrain"]


@pytest.mark.slow
def test_an_encoder_is_pretrained_from_a_stream(
    divided: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base has the vocabulary of the corpus."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home / 'mlflow.db'}")
    prepare.prepare(divided, tmp_path / "corpus")
    arguments = ["--corpus", tmp_path / "corpus", "--base", tmp_path / "base", "--epochs", "1"]
    pretrain.main([*map(str, arguments), "--width", "8", "--layers", "1"])
    vocabulary = Vocabulary.load(tmp_path / "corpus")
    assert Vocabulary.load(tmp_path / "base") == vocabulary and len(vocabulary) > len(RESERVED)
