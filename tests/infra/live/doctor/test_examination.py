"""All checks, with a ready subscription and with one that refuses some answers."""

from __future__ import annotations

from contextlib import suppress

from infra.live.arm import Arm
from infra.settings.model import Settings
from ml.core.errors import UserError
from tests.infra.live.doctor.ready import HERE, USAGES, said, wrong
from tests.infra.live.nulls import with_a_null
from tests.stand_ins.arm_server import State


def test_a_ready_subscription_passes_every_check(
    settings: Settings, arm: Arm, state: State
) -> None:
    """Over more than one page."""
    found = said(settings, arm)
    assert wrong(found) == {}
    assert {"sizes", "resource providers", "deleted vaults", "permissions"} <= set(found)
    assert (
        found["quota standardEDSv4Family"].message
        == "100 of 100 cores are free, up to 16 are needed"
    )


def test_a_refused_answer_is_a_warning(settings: Settings, arm: Arm, state: State) -> None:
    """The other checks continue."""
    state.denied.add(USAGES)
    found = said(settings, arm)
    assert wrong(found) == {"quota": "warning"}
    assert found["permissions"].verdict == "ok"


def test_a_null_in_an_answer_causes_no_traceback(
    settings: Settings, direct: Arm, state: State
) -> None:
    """Anywhere in any answer."""
    state.lists[f"{HERE}/Microsoft.KeyVault/deletedVaults"] = [
        {"name": "kvmlplatdev", "properties": {"scheduledPurgeDate": "2027-01-01"}}
    ]
    tried = 0
    for kept in (state.resources, state.lists, state.answers):
        for path, answer in list(kept.items()):
            if path.startswith(HERE):
                for one in with_a_null(answer):
                    kept[path] = one
                    with suppress(UserError):
                        said(settings, direct)
                    tried += 1
                kept[path] = answer
    assert tried > 50
