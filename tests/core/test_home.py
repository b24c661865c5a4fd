"""ml.core.home: where results lie, and who may read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ml.core import home


def mode(path: Path) -> int:
    """Its permissions."""
    return path.stat().st_mode & 0o777


@pytest.mark.attack("another user of the machine reads requests, tokens and models in .local")
def test_it_is_its_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made so, in the repository also where it was there before."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "ml").mkdir()
    monkeypatch.setattr("ml.core.repository.root", lambda: tmp_path)
    monkeypatch.delenv("MLOPS_HOME", raising=False)
    (tmp_path / ".local").mkdir(mode=0o755)
    home._of.cache_clear()
    assert mode(home.home()) == 0o700 and home.home() == tmp_path / ".local"
    monkeypatch.setenv("MLOPS_HOME", str(tmp_path / "other" / "home"))
    assert mode(home.home()) == 0o700
    home._of.cache_clear()


def test_a_folder_that_somebody_chose_keeps_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be shared, or hold other things; and one that cannot be made is no error yet."""
    tmp_path.chmod(0o755)
    monkeypatch.setenv("MLOPS_HOME", str(tmp_path))
    assert mode(home.home()) == 0o755
    monkeypatch.setenv("MLOPS_HOME", "/proc/none")
    assert home.home() == Path("/proc/none")


def test_a_user_without_a_name_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs with a number that no file names."""
    home.user.cache_clear()
    monkeypatch.setenv("LOGNAME", "ada")
    assert home.user() == "ada"
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    home.user.cache_clear()
    assert home.user() == "unknown"
    home.user.cache_clear()
