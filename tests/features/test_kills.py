"""A materialisation that is killed at random moments loses and duplicates nothing."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from ml.features.definition import FeatureSet
from ml.features.materialize import materialize
from ml.features.online import SqliteStore, local_path
from ml.features.store import state, stored
from tests.conftest import ROOT
from tests.features.test_materialize import content, payment, write

FEW, MANY = 2, 200  # kills
DAYS = 12


@pytest.mark.slow
@pytest.mark.torture
@pytest.mark.attack("a materialisation is killed at random moments")
def test_kills_lose_and_duplicate_nothing(
    account_payments: FeatureSet, tmp_path: Path, torture: bool
) -> None:
    """After each kill the store has a complete state; in the end, the bytes of one run.

    Kills come before, between and after the partitions, and while the online store is replaced.
    """
    chance = random.Random(7)
    source, store = tmp_path / "source", tmp_path / "store"
    command = [sys.executable, "-m", "ml.features.materialize"]
    command += ["--set", str(account_payments.file), "--source", str(source), "--store", str(store)]
    number = changed = killed = 0
    while killed < (MANY if torture else FEW):
        number += 1
        rows = [
            payment(chance.uniform(0, 24 * DAYS), late=chance.choice([0, 0, 30]), account=account)
            for account in "abc"
        ]
        write(source, f"{chance.randrange(1000)}-{number}.parquet", rows)
        before = state(account_payments, store)
        run = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
        assert run.stdout is not None
        for _ in range(chance.choice([0, 1, 3, DAYS, DAYS])):
            run.stdout.readline()
        with suppress(subprocess.TimeoutExpired):
            run.wait(chance.uniform(0, 0.1))
        run.kill()
        run.communicate()
        assert run.returncode in (0, -signal.SIGKILL)  # else it did not get to be killed
        after = state(account_payments, store)
        if run.returncode:
            killed += 1
            changed += after != before
        if after.digest:
            expected = sum(1 for name in after.partitions.values() if name)
            assert stored(account_payments, store).height >= expected
    materialize(account_payments, source, store)
    materialize(account_payments, source, tmp_path / "scratch")
    assert content(account_payments, store) == content(account_payments, tmp_path / "scratch")
    materialize(account_payments, source, store)
    names = {path.stem for path in store.rglob("date=*/*")}
    assert names == {*content(account_payments, store).values()}
    online = SqliteStore(account_payments, local_path(account_payments, store))
    scratch = SqliteStore(account_payments, local_path(account_payments, tmp_path / "scratch"))
    assert all(online.get(f'["{key}"]') == scratch.get(f'["{key}"]') is not None for key in "abc")
    if torture:  # some kills come before the state is replaced, some after
        assert 0 < changed < killed
    print(f"{number} materialisations, {killed} SIGKILLs, {changed} after the state was replaced")
