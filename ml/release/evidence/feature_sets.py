"""Find the feature sets that a project's code defined when a model was trained."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ml.core import documents, git, home, trees
from ml.features.definition import read
from ml.features.timeline import FeatureError
from policies.promotion.evidence import Lineage

FOLDERS = "ml/projects/*/features/*.yml"


def definitions(root: Path) -> Mapping[str, list[Path]]:
    """Return the files of each feature set in the repository, by name: one for each version."""
    names: dict[str, list[Path]] = {}
    for path in sorted(root.glob(FOLDERS)):
        document = documents.read(path).data
        if isinstance(document, dict) and "specification" in document:
            names.setdefault(str(document.get("name")), []).append(path)
    return names


def declared(root: Path, project: str, lineage: Lineage) -> Mapping[str, tuple[str, str]]:
    """Return (version, digest) of each feature set by name, for `Evidence.feature_sets`.

    The definitions are read from the training's commit, or from its snapshot if it had uncommitted
    changes. If this machine has neither, they are read from the work tree `root`; the digests show
    whether that differs. An unreadable definition has the version "", which no training set has.
    """
    inside = Path("ml", "projects", project, "features")
    with _code(root, inside, lineage) as code:
        files = sorted((code / inside).glob("*.yml"))
        if not files:
            return {}
        sets = {}
        for file in files:
            try:
                if (file.parent / file.stem).is_dir():  # else an entity
                    definition = read(file)
                    sets[definition.name] = (definition.version, definition.digest)
            except FeatureError:
                sets[file.stem] = ("", "")
        return sets


@contextmanager
def _code(root: Path, inside: Path, lineage: Lineage) -> Iterator[Path]:
    snapshot = lineage.code_snapshot or ""
    copy = home.snapshots() / snapshot.removeprefix(trees.DIGEST_PREFIX)
    commit = trees.commit(root, lineage.commit) if lineage.commit else None
    if lineage.dirty is False and commit:
        with tempfile.TemporaryDirectory() as folder:
            if any(commit.below(root / inside)):
                path = (root / inside).resolve().relative_to(commit.root)
                archive = Path(folder, "code.tar")
                git.archive(commit.root, commit.id, archive, path.as_posix())
                with tarfile.open(archive) as packed:
                    packed.extractall(folder, filter="data")
                yield Path(folder, *path.parts[: -len(inside.parts)])
            else:
                yield Path(folder)
    elif snapshot and trees.is_content(copy, snapshot):
        yield copy
    else:
        yield root
