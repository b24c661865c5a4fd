"""ml.release.audit: lines are only ever added, and a changed one is found."""

from __future__ import annotations

import json

import pytest

from ml.core.errors import UserError
from ml.release import audit
from tests.local import LOG
from tests.release.test_commands import ml
from tests.release.test_registry import full_disk


def fill(count: int) -> list[str]:
    """Append lines and return their hashes."""
    return [audit.append(LOG, "decision", {"version": str(number)}) for number in range(count)]


def test_lines_are_chained_and_verify() -> None:
    """Each line holds the hash of the one before."""
    hashes = fill(3)
    lines = audit.verify(LOG)
    assert [line["hash"] for line in lines] == hashes
    assert [line["previous"] for line in lines] == [audit.START, *hashes[:2]]
    assert [line["number"] for line in lines] == [1, 2, 3]


def test_no_log_verifies_to_nothing() -> None:
    """Before the first decision there is nothing to find."""
    assert audit.verify(LOG) == ()


@pytest.mark.parametrize("line", [0, 1, 2])
@pytest.mark.parametrize(
    "how", ["edit", "rehash", "remove", "swap", "garble", "copy", "twice", "space"]
)
@pytest.mark.attack("A line of the audit log is edited, moved, copied or removed")
def test_a_changed_line_is_found(line: int, how: str) -> None:
    """Whatever is done to a line, the first that no longer follows is named."""
    fill(4)
    lines = LOG.path.read_text().splitlines()
    document = json.loads(lines[line])
    if how == "edit":
        lines[line] = lines[line].replace(f'"version": "{line}"', '"version": "9"')
    elif how == "rehash":  # the forger makes the line's own hash right
        document.pop("hash")
        document["version"] = "9"
        document["hash"] = audit._hash(document)
        lines[line] = json.dumps(document, sort_keys=True)
    elif how == "remove":
        del lines[line]
    elif how == "swap":
        lines[line], lines[line + 1] = lines[line + 1], lines[line]
    elif how == "garble":
        lines[line] = lines[line][:-5]
    elif how == "twice":  # the reader of a page sees 9, a parser takes the last
        lines[line] = '{"version": "9", ' + lines[line][1:]
    elif how == "space":
        lines[line] += " "
    else:
        lines.insert(line, lines[line])
    LOG.path.write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError) as raised:
        audit.verify(LOG)
    problem = raised.value.problems[0]
    assert problem.code == "audit-broken" and problem.place
    assert problem.place.line in (line + 1, line + 2)


def test_a_torn_last_line_is_found_and_nothing_is_added_to_it() -> None:
    """Half a line, as a power cut leaves it, is not built upon."""
    fill(2)
    LOG.path.write_bytes(LOG.path.read_bytes()[:-10])
    for act in (lambda: audit.verify(LOG), lambda: audit.append(LOG, "decision", {})):
        with pytest.raises(UserError):
            act()


@pytest.mark.attack("The disk is full while the audit log is written")
def test_a_full_disk_leaves_the_log_as_it_was() -> None:
    """A line for which there is no room is not half there, and the next one follows the last."""
    fill(2)
    before = LOG.path.read_bytes()
    for room in (0, 1, 40):
        with full_disk(len(before) + room), pytest.raises(UserError) as raised:
            audit.append(LOG, "decision", {"version": "3"})
        assert raised.value.problems[0].code == "disk-full"
        assert LOG.path.read_bytes() == before
    fill(1)
    assert len(audit.verify(LOG)) == 3


@pytest.mark.attack("A bit of the audit log is flipped")
def test_every_changed_byte_is_found() -> None:
    """One bit flipped anywhere, also where it leaves no text, is found."""
    fill(1)
    sound = LOG.path.read_bytes()
    for place in range(len(sound)):
        for bit in (0x01, 0x80):
            changed = bytearray(sound)
            changed[place] ^= bit
            LOG.path.write_bytes(changed)
            with pytest.raises(UserError) as raised:
                audit.verify(LOG)
            assert raised.value.exit_code == 3


def test_lines_cut_off_the_end_are_found_by_a_hash_that_was_noted() -> None:
    """A shorter chain is sound in itself; who knows a hash that it had finds out."""
    hashes = fill(3)
    assert len(audit.verify(LOG, hashes[1])) == 3
    LOG.path.write_bytes(b"".join(LOG.path.read_bytes().splitlines(True)[:-1]))
    assert len(audit.verify(LOG)) == len(audit.verify(LOG, hashes[1])) == 2
    for known in (hashes[2], "", "0" * 64):
        with pytest.raises(UserError) as raised:
            audit.verify(LOG, known)
        assert raised.value.problems[0].code == "audit-broken"


def test_an_emptied_log_is_found_by_a_hash_that_was_noted() -> None:
    """A log that is gone verifies to nothing, and not to what it held."""
    (known,) = fill(1)
    LOG.path.unlink()
    assert audit.verify(LOG) == ()
    with pytest.raises(UserError):
        audit.verify(LOG, known)


def test_the_command_says_how_many_lines_follow(capsys: pytest.CaptureFixture[str]) -> None:
    """The count and the last hash, in words on stderr and as JSON on stdout."""
    code, out, err = ml(capsys, "audit", "verify")
    assert (code, out) == (0, "") and "no line yet" in err
    hashes = fill(3)
    code, out, err = ml(capsys, "audit", "verify")
    assert (code, out) == (0, "") and "3 lines" in err and hashes[-1] in err
    code, out, _ = ml(capsys, "audit", "verify", "--holding", hashes[0], "--json")
    found = json.loads(out)
    assert code == 0 and found["sound"] and (found["lines"], found["last"]) == (3, hashes[-1])


def test_the_command_names_the_line_that_was_changed(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 3, the file and the line."""
    fill(3)
    LOG.path.write_text(LOG.path.read_text().replace('"version": "1"', '"version": "9"'))
    code, out, err = ml(capsys, "audit", "verify")
    assert (code, out) == (3, "") and f"{LOG.path}:2" in err
    code, out, err = ml(capsys, "audit", "verify", "--json")
    found = json.loads(out)
    assert code == 3 and not found["sound"] and found["line"] == 2 and "changed" in found["why"]


def test_what_the_chain_alone_cannot_show_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """The last line is rewritten with a hash of its own: only one who noted a hash finds that."""
    *_, noted = fill(3)
    *before, last = LOG.path.read_text().splitlines()
    document = json.loads(last)
    document.pop("hash")
    document["version"] = "9"
    document["hash"] = audit._hash(document)
    lines = [*before, json.dumps(document, sort_keys=True)]
    LOG.path.write_text("\n".join(lines) + "\n")
    code, _, err = ml(capsys, "audit", "verify")
    assert code == 0 and "this does not show that the end was cut off or rewritten" in err
    code, _, err = ml(capsys, "audit", "verify", "--holding", noted)
    assert code == 3 and "error[audit-broken]" in err
    code, _, err = ml(capsys, "audit", "verify", "--holding", str(document["hash"]))
    assert code == 0 and "cut off or rewritten" not in err
