"""policies.supply_chain: licences, the bill of materials, and advisories of a local source."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from ml.core.errors import UserError
from ml.release.evidence import evidence
from policies.promotion import gate_settings
from policies.promotion.engine import decide
from policies.promotion.evidence import Evidence, LockedPackage, SupplyChain
from policies.supply_chain import locks
from policies.supply_chain.advisories import AdvisoriesError, read
from policies.supply_chain.locks import bill
from policies.supply_chain.packages import (
    UNKNOWN,
    Package,
    licence_allowed,
    licence_expression,
    packages,
    sbom,
)
from tests.conftest import ROOT
from tests.policies.cases import good, load_gates, request, result

_LICENCE = "License :: OSI Approved :: "
STATED = {
    "an expression": ("MIT OR Apache-2.0", [_LICENCE + "BSD License"], "x", "MIT OR Apache-2.0"),
    "a classifier": ("", [_LICENCE + "MIT License"], "", "MIT"),
    "a text": ("", [], "BSD 3-Clause License", "BSD-3-Clause"),
    "identifiers as text": ("", [], "MPL-2.0 AND MIT", "MPL-2.0 AND MIT"),
    "the text says which BSD": ("", [_LICENCE + "BSD License"], "BSD-2-Clause", "BSD-2-Clause"),
    "nobody says which BSD": ("", [_LICENCE + "BSD License"], "BSD", "LicenseRef-BSD"),
    "two classifiers": (
        "",
        [_LICENCE + "MIT License", _LICENCE + "Apache Software License"],
        "",
        "Apache-2.0 AND MIT",
    ),
    "a text against the classifier": (
        "",
        ["License :: Other/Proprietary License"],
        "MIT",
        "LicenseRef-Other-Proprietary-License",
    ),
    "approved, and not as what": ("", ["License :: OSI Approved"], "", UNKNOWN),
    "nothing": ("", ["Topic :: Software"], " ", UNKNOWN),
    "a whole text": ("", [], "Permission is hereby granted", UNKNOWN),
}


@pytest.mark.parametrize(("stated", "classifiers", "text", "found"), STATED.values(), ids=STATED)
def test_the_licence_that_metadata_state(
    stated: str, classifiers: list[str], text: str, found: str
) -> None:
    """Unambiguous metadata are read; nothing is guessed."""
    assert licence_expression(stated, classifiers, text) == found


LIST = {"MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"}
ALLOWED = [
    *("MIT", "(MIT)", "MIT OR GPL-3.0-only", "GPL-3.0-only OR MIT", "MIT AND Apache-2.0"),
    *("GPL-3.0-only AND MIT OR Apache-2.0", "MIT AND (GPL-3.0-only OR Apache-2.0)"),
    "Apache-2.0 WITH LLVM-exception",
]
REFUSED = [
    *("", "GPL-3.0-only", "MIT AND GPL-3.0-only", "(MIT OR Apache-2.0) AND GPL-3.0-only"),
    *("MIT GPL-3.0-only", "MIT OR", "OR MIT", "(MIT", "MIT)", "MIT WITH", "MIT WITH X", "()"),
    *("MIT; GPL", UNKNOWN, "mit license"),
]


@pytest.mark.parametrize("text", ALLOWED)
def test_an_expression_is_allowed(text: str) -> None:
    """AND binds closer than OR, as in SPDX."""
    assert licence_allowed(text, LIST)


@pytest.mark.parametrize("text", REFUSED)
def test_an_expression_is_refused(text: str) -> None:
    """Licences that are not on the list, and texts that are not SPDX."""
    assert not licence_allowed(text, LIST)


def test_the_packages_of_this_repository_pass_the_policy() -> None:
    """Each locked package is installed as locked, with a licence on the list or reviewed."""
    found, gate = packages(ROOT / "requirements/main.lock"), gate_settings.load()["supply-chain"]
    assert len(found) > 100 and all(one.installed == one.locked for one in found)
    refused = {
        one.name for one in found if not licence_allowed(one.licence, gate.names("licences"))
    } - set(gate.names("reviewed"))
    assert not refused
    assert set(gate.names("reviewed")) <= {one.name for one in found}


def test_a_package_that_is_not_installed_has_no_version(tmp_path: Path) -> None:
    """Pins with extras and markers are read."""
    lock = tmp_path / "lock"
    lock.write_text(
        'No_Such.Package==1.0 ; sys_platform == "x"\nnumpy[a]==0.1 \\\n  --hash=x\n# a==1\n'
    )
    assert packages(lock) == (
        Package("no-such-package", "1.0", "", UNKNOWN),
        Package("numpy", "0.1", version("numpy"), packages(lock)[1].licence),
    )


@pytest.mark.attack("A lock installs a package by a line that no bill of materials has")
@pytest.mark.parametrize(
    "line",
    [
        "evil @ https://example.org/evil-1.0-py3-none-any.whl --hash=sha256:ab",
        "evil === 1.0",
        "evil == 1.0",
        "evil>=1.0",
        "-r other.lock",
        "--find-links folder",
        "./wheels/evil-1.0-py3-none-any.whl",
        "-e .",
    ],
)
def test_a_lock_has_pins_alone(line: str, tmp_path: Path) -> None:
    """Whatever pip reads besides them is refused with its line; pins in any place are read."""
    lock = tmp_path / "main.lock"
    lock.write_text("  evil==1.0 ; python_version > '3' # c\nbad\\\n==2\n")
    assert [(each.name, each.locked) for each in packages(lock)] == [("bad", "2"), ("evil", "1.0")]
    lock.write_text(f"good==1.0 \\\n    --hash=sha256:ab\n    # via x\n{line}\n")
    with pytest.raises(ValueError, match="no package==version"):
        packages(lock)


def test_the_bill_of_materials_is_the_same_for_the_same_packages() -> None:
    """CycloneDX: every package with its purl and licence, the same bytes twice."""
    found = packages(ROOT / "requirements/main.lock")
    assert sbom(found) == sbom(packages(ROOT / "requirements/main.lock"))
    document = json.loads(sbom(found))
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    by_name = {one["name"]: one for one in document["components"]}
    assert len(by_name) == len(found)
    assert by_name["numpy"]["purl"] == f"pkg:pypi/numpy@{version('numpy')}"
    assert "licenses" in by_name["numpy"] and "licenses" not in by_name["huey"]


def test_a_bill_of_several_locks(tmp_path: Path) -> None:
    """As they pin them, whatever is installed here; two versions are two components."""
    for name, text in (
        ("a.lock", "numpy==0.1\nx==1\n"),
        ("b.lock", f"numpy=={version('numpy')}\n"),
    ):
        (tmp_path / name).write_text(text)
    document = json.loads(bill([tmp_path / "b.lock", tmp_path / "a.lock"]))
    purls = [each["purl"] for each in document["components"]]
    assert purls == ["pkg:pypi/numpy@0.1", f"pkg:pypi/numpy@{version('numpy')}", "pkg:pypi/x@1"]
    assert ["licenses" in each for each in document["components"]] == [False, True, False]


def test_advisories_about_a_lock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each with its lock, and exit 3; none, and 0; a source that cannot be read, and 2."""
    source, lock, other = tmp_path / "osv.json", tmp_path / "a.lock", tmp_path / "b.lock"
    source.write_text(json.dumps([record(versions=["1"])]))
    lock.write_text("A==1\n")
    other.write_text("A==2\n")
    words = ["--advisories", str(source), str(lock), str(other), str(lock)]
    assert locks.main(words) == 3
    out = capsys.readouterr().out
    assert out.startswith(f"{lock}: PYSEC-1: a 1\n1 of 1 records") and f"{other}:" not in out
    assert locks.main([*words[:2], str(other)]) == 0
    assert locks.main(["--advisories", str(tmp_path / "no.zip"), str(lock)]) == 2
    assert "make advisories" in capsys.readouterr().err


def record(**affected: Any) -> dict[str, Any]:
    """An OSV record about package `a`."""
    package = {"ecosystem": "PyPI", "name": "A"}
    return {
        "id": "PYSEC-1",
        "modified": "2025-05-30T00:00:00Z",
        "affected": [{"package": package, **affected}],
    }


def between(*events: dict[str, str]) -> dict[str, Any]:
    """A record with a range."""
    return record(ranges=[{"type": "ECOSYSTEM", "events": list(events)}])


HITS = {
    "listed": record(versions=["1.4", "1.5"]),
    "listed, written otherwise": record(versions=["1.5.0"]),
    "since ever": between({"introduced": "0"}),
    "fixed later": between({"introduced": "1.0"}, {"fixed": "1.6"}),
    "the last one": between({"introduced": "0"}, {"last_affected": "1.5"}),
    "again": between({"introduced": "0"}, {"fixed": "1.0"}, {"introduced": "1.5"}),
    "in any order": between({"fixed": "1.6"}, {"introduced": "1.0"}),
    "a version that cannot be read": between({"introduced": "one"}),
    "neither versions nor ranges": record(),
}
MISSES = {
    "others listed": record(versions=["1.4"]),
    "fixed here": between({"introduced": "0"}, {"fixed": "1.5"}),
    "introduced later": between({"introduced": "1.5.1"}),
    "the last before": between({"introduced": "0"}, {"last_affected": "1.4"}),
    "withdrawn": {**between({"introduced": "0"}), "withdrawn": "2025-05-30T00:00:00Z"},
    "another ecosystem": {
        **record(),
        "affected": [{"package": {"ecosystem": "npm", "name": "a"}, "versions": ["1.5"]}],
    },
    "another package": {
        **record(),
        "affected": [{"package": {"ecosystem": "PyPI", "name": "b"}, "versions": ["1.5"]}],
    },
}
OURS = (Package("a", "1.5", "1.5", "MIT"),)


def source(folder: Path, *records: object) -> Path:
    """A folder of OSV records."""
    folder.mkdir(exist_ok=True)
    for number, one in enumerate(records):
        (folder / f"{number}.json").write_text(json.dumps(one))
    return folder


@pytest.mark.parametrize("of", HITS.values(), ids=HITS)
def test_an_advisory_that_affects_is_found(of: dict[str, Any], tmp_path: Path) -> None:
    """With its id, the package and its version."""
    assert read(source(tmp_path / "osv", of)).affecting(OURS) == ("PYSEC-1: a 1.5",)


@pytest.mark.parametrize("of", MISSES.values(), ids=MISSES)
def test_an_advisory_that_does_not_affect_is_not_reported(
    of: dict[str, Any], tmp_path: Path
) -> None:
    """It is read."""
    advisories = read(source(tmp_path / "osv", of))
    assert len(advisories.records) == 1 and advisories.affecting(OURS) == ()


def test_a_source_is_as_old_as_its_newest_record(tmp_path: Path) -> None:
    """A folder, its zip and one file with a list hold the same."""
    older, newer = record(), {**record(versions=["1.5"]), "modified": "2025-06-01T00:00:00Z"}
    folder = source(tmp_path / "osv", newer, older)
    archive, listed = tmp_path / "all.zip", tmp_path / "all.json"
    with zipfile.ZipFile(archive, "w") as into:
        for path in sorted(folder.iterdir()):
            into.write(path, path.name)
    listed.write_text(json.dumps([newer, older]))
    for of in (folder, archive, listed):
        found = read(of)
        assert found.as_of == datetime(2025, 6, 1, tzinfo=UTC) and len(found.records) == 2


@pytest.mark.parametrize(
    "of",
    [
        *({}, [], 3, {"id": "A"}, {**record(), "id": 3}, {**record(), "modified": "2025-06-01"}),
        {**record(), "affected": [{"package": {"ecosystem": "PyPI"}}]},
    ],
)
def test_a_source_that_holds_something_else_is_refused(of: object, tmp_path: Path) -> None:
    """A record that cannot be read may affect a package."""
    with pytest.raises(AdvisoriesError):
        read(source(tmp_path / "osv", of))


def test_a_source_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Missing, empty, or not a zip."""
    (tmp_path / "all.zip").write_text("x")
    (tmp_path / "empty").mkdir()
    for name in ("none", "none.json", "all.zip", "empty"):
        with pytest.raises(AdvisoriesError):
            read(tmp_path / name)


def test_what_the_evidence_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages, the SBOM's hash, and advisories where there is a source; nothing without a lock."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("")
    assert evidence.supply_chain(tmp_path) == ({}, "")
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements/main.lock").write_text(f"numpy=={version('numpy')}\n")
    stated, bill = evidence.supply_chain(tmp_path)
    assert "numpy" in bill and "advisories" not in stated
    affected = {**record(), "affected": [{"package": {"ecosystem": "PyPI", "name": "numpy"}}]}
    monkeypatch.setenv("MLOPS_ADVISORIES", str(source(tmp_path / "osv", affected)))
    found = evidence.supply_chain(tmp_path)[0]
    assert found["advisories"] == [f"PYSEC-1: numpy {version('numpy')}"]
    assert found["as_of"] == "2025-05-30T00:00:00+00:00"
    monkeypatch.setenv("MLOPS_ADVISORIES", str(tmp_path / "none"))
    with pytest.raises(UserError) as raised:
        evidence.supply_chain(tmp_path)
    assert raised.value.problems[0].code == "no-advisories"


def test_advisories_are_looked_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New advisories are added, withdrawn ones removed; an older source removes nothing."""
    then = datetime(2025, 5, 29, tzinfo=UTC)
    made = SupplyChain(
        packages={"a": LockedPackage("1.5", "1.5", "MIT")}, as_of=then, advisories=()
    )
    assert today(made) == made  # no source here: the gate says how old it is
    new = source(tmp_path / "new", record())
    monkeypatch.setenv("MLOPS_ADVISORIES", str(new))
    found = today(made)
    assert found.advisories == ("PYSEC-1: a 1.5",) and found.as_of == at("2025-05-30")
    gone = source(tmp_path / "gone", {**record(), "withdrawn": "2025-05-30T00:00:00Z"})
    monkeypatch.setenv("MLOPS_ADVISORIES", str(gone))
    assert today(found).advisories == ()
    later = replace(found, as_of=at("2025-05-31"), advisories=("PYSEC-9: a 1.5",))
    monkeypatch.setenv("MLOPS_ADVISORIES", str(new))
    assert today(later).advisories == ("PYSEC-1: a 1.5", "PYSEC-9: a 1.5")
    assert today(later).as_of == at("2025-05-31")
    monkeypatch.setenv("MLOPS_ADVISORIES", str(tmp_path / "none"))
    with pytest.raises(UserError):
        today(made)


def today(chain: SupplyChain) -> SupplyChain:
    """The supply chain with today's advisories."""
    return evidence.with_advisories(Path(), Evidence(supply_chain=chain)).supply_chain


def at(day: str) -> datetime:
    """Midnight, UTC."""
    return datetime.fromisoformat(f"{day}T00:00:00+00:00")


@pytest.mark.attack("an old export of advisories with some records dated today")
def test_a_few_new_records_do_not_make_an_old_export_new(tmp_path: Path) -> None:
    """Nor many of another ecosystem, nor one that is repeated; an export of today is of today."""

    def dated(name: str, day: str, ecosystem: str = "PyPI") -> dict[str, Any]:
        affected = [{"package": {"ecosystem": ecosystem, "name": "left-pad"}, "versions": ["0"]}]
        return {"id": name, "modified": f"{day}T00:00:00Z", "affected": affected}

    old = [dated(f"PYSEC-{number}", "2025-01-01") for number in range(6000)]
    planted = [dated(f"NEW-{number}", "2025-06-01") for number in range(5)]
    npm = [dated(f"NPM-{number}", "2025-06-01", "npm") for number in range(500)]
    file = tmp_path / "all.json"
    file.write_text(json.dumps([*old, *planted, *planted * 50, *npm]))
    assert read(file).as_of == at("2025-01-01")
    today = [dated(f"NEW-{number}", "2025-06-01") for number in range(40)]
    file.write_text(json.dumps([*old, *today]))
    assert read(file).as_of == at("2025-06-01")


@pytest.mark.attack("a source of advisories with one irrelevant record")
def test_few_advisories_are_no_export(tmp_path: Path) -> None:
    """Records of other ecosystems and repeated ones do not count; prod asks for thousands."""

    def record(name: str, ecosystem: str) -> dict[str, Any]:
        package = {"ecosystem": ecosystem, "name": "left-pad"}
        affected = [{"package": package, "versions": ["0"]}]
        return {"id": name, "modified": "2025-06-01T00:00:00Z", "affected": affected}

    file = tmp_path / "all.json"
    npm = [record(f"NPM-{number}", "npm") for number in range(9000)]
    file.write_text(json.dumps([*npm, *[record("PYSEC-1", "PyPI")] * 9000]))
    assert read(file).count == 1
    gates = load_gates(tmp_path)
    for records, verdict in ((1.0, "fail"), (4999.0, "fail"), (5000.0, "pass"), (None, "fail")):
        chain = replace(good().supply_chain, records=records)
        evidence = replace(good(), supply_chain=chain)
        decision = decide(gates, evidence, None, request(environment="prod"))
        assert result(decision, "supply-chain").verdict == verdict, records
        local = decide(gates, evidence, None, request(environment="local"))
        assert result(local, "supply-chain").verdict == "pass"
