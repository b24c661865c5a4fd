"""ml.serving.scoring.manifest: any change of a model folder is detected."""

from pathlib import Path

import pytest

from ml.serving.scoring import manifest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder with a nested file and its manifest."""
    model = tmp_path / "model"
    (model / "parts").mkdir(parents=True)
    (model / "model.txt").write_bytes(b"tree\nversion=v4\n")
    (model / "parts" / "vocabulary.json").write_text('{"spot": 1}')
    manifest.write_manifest(model)
    return model


def test_untouched_folder_verifies_to_its_digest(folder: Path) -> None:
    """write_manifest, verify and folder_digest agree on the digest."""
    digest = manifest.write_manifest(folder)
    assert digest.startswith("sha256:") and len(digest) == len("sha256:") + 64
    assert manifest.verify(folder) == manifest.folder_digest(folder) == digest
    assert manifest.verify(folder, digest) == digest


@pytest.mark.parametrize("bit", [0, 7, 60, 100])
@pytest.mark.attack("A bit of a model's files is flipped")
def test_one_flipped_bit_is_found(folder: Path, bit: int) -> None:
    """A single flipped bit anywhere in a file names that file."""
    path = folder / "model.txt"
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << (bit % 8)
    path.write_bytes(bytes(content))
    with pytest.raises(manifest.ManifestError, match=r"model\.txt") as raised:
        manifest.verify(folder)
    assert raised.value.reason == "changed"


@pytest.mark.attack("A file of a model is removed, added or linked elsewhere")
def test_missing_added_and_linked_files_are_found(folder: Path, tmp_path: Path) -> None:
    """Each way in which a folder can differ is named with its file."""
    extra = folder / "extra.pkl"
    extra.write_bytes(b"\x80\x04.")
    with pytest.raises(manifest.ManifestError) as raised:
        manifest.verify(folder)
    assert (raised.value.file, raised.value.reason) == ("extra.pkl", "added")
    extra.unlink()

    outside = tmp_path / "outside"
    outside.write_text("x")
    extra.symlink_to(outside)
    with pytest.raises(manifest.ManifestError) as raised:
        manifest.verify(folder)
    assert (raised.value.file, raised.value.reason) == ("extra.pkl", "link")
    extra.unlink()

    (folder / "parts" / "vocabulary.json").unlink()
    with pytest.raises(manifest.ManifestError) as raised:
        manifest.verify(folder)
    assert (raised.value.file, raised.value.reason) == ("parts/vocabulary.json", "missing")


def test_a_missing_and_an_incomplete_manifest_are_refused(folder: Path) -> None:
    """Without a readable manifest no file is trusted."""
    path = folder / manifest.NAME
    path.write_text(path.read_text()[:20])
    with pytest.raises(manifest.ManifestError) as raised:
        manifest.verify(folder)
    assert raised.value.reason == "bad-manifest"
    path.unlink()
    with pytest.raises(manifest.ManifestError) as raised:
        manifest.verify(folder)
    assert raised.value.reason == "no-manifest"


@pytest.mark.attack("A model's manifest is rewritten after an edit")
def test_rewritten_manifest_does_not_hide_an_edit_from_the_digest(folder: Path) -> None:
    """An attacker who edits a file and its manifest is found by the digest kept elsewhere."""
    digest = manifest.folder_digest(folder)
    (folder / "model.txt").write_bytes(b"tree\nversion=v5\n")
    manifest.write_manifest(folder)
    assert manifest.verify(folder) != digest
    with pytest.raises(manifest.ManifestError):
        manifest.verify(folder, digest)


def test_renaming_a_file_changes_the_digest(folder: Path) -> None:
    """Names are part of the digest, so contents cannot be swapped between files."""
    before = manifest.folder_digest(folder)
    (folder / "model.txt").rename(folder / "model2.txt")
    assert manifest.folder_digest(folder) != before
