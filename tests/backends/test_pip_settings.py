"""`--isolated` looks for packages where pip would: its variables, its files, its sections."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ml.backends.local.environments import building, uv
from ml.backends.local.processes.process import Reaper
from ml.core.errors import Place, UserError
from ml.specs.plan.plans import Dependency, Environment
from tests.backends.wheels import wheel, wheels

__all__ = ["wheels"]


@pytest.fixture
def own(tmp_path: Path) -> dict[str, str]:
    """Variables with none of pip's, and one file that it reads."""
    others = ("PIP_", "UV_", "SSL_CERT_FILE", "ALL_PROXY")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(others)}
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "XDG_CONFIG_DIRS": ""}
    # The system's own file is pip's business; what it says of these options is overruled here.
    return kept | home | {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}


def said(own: dict[str, str], text: str) -> tuple[dict[str, str], list[str]]:
    """What uv is told when that is in pip.conf: variables, options."""
    Path(own["PIP_CONFIG_FILE"]).write_text(text)
    settings = uv.pip_settings(own)
    return uv.uv_variables(own, settings), list(uv.pip_options(settings))


FILE = """
[global]
index-url = https://mirror.example/simple
extra-index-url =
    https://one.example/simple
    https://two.example/simple
trusted-host = mirror.example
timeout = 30
cert = /etc/own.pem
find-links = https://wheels.example
constraint = /etc/own.txt
proxy = https://proxy.example
no-index = no
[install]
pre = yes
timeout = 60
[download]
index-url = https://never.example/simple
"""


def test_a_file(own: dict[str, str]) -> None:
    """Each in uv's words; the section of `pip install` before `[global]`, no other command's."""
    assert said(own, FILE) == (
        {
            "UV_DEFAULT_INDEX": "https://mirror.example/simple",
            "UV_INDEX": "https://one.example/simple https://two.example/simple",
            "UV_FIND_LINKS": "https://wheels.example",
            "UV_INSECURE_HOST": "mirror.example",
            "UV_CONSTRAINT": "/etc/own.txt",
            "UV_HTTP_TIMEOUT": "60",
            "SSL_CERT_FILE": "/etc/own.pem",
            "ALL_PROXY": "https://proxy.example",
        },
        ["--prerelease", "allow"],
    )


def test_a_variable_counts_more_than_a_file(own: dict[str, str]) -> None:
    """And one of uv's own more than both."""
    own |= {"PIP_INDEX_URL": "https://env.example/simple", "PIP_NO_INDEX": "1"}
    own |= {"UV_INDEX": "https://uv.example/simple"}
    variables, options = said(own, FILE)
    assert variables["UV_DEFAULT_INDEX"] == "https://env.example/simple"
    assert "UV_INDEX" not in variables
    assert options == ["--no-index", "--prerelease", "allow"]


def test_a_folder_that_is_not_there_is_passed_over(own: dict[str, str], tmp_path: Path) -> None:
    """pip warns of it; uv would fail."""
    (tmp_path / "here").mkdir()
    there = f"{tmp_path}/here file://{tmp_path}/here"
    text = f"[global]\nfind-links = {there} {tmp_path}/gone\nextra-index-url = file:///no/simple\n"
    variables, _ = said(own, text)
    assert variables["UV_FIND_LINKS"] == there.replace(" ", ",")
    assert "UV_INDEX" not in variables


def test_a_file_that_pip_cannot_read(own: dict[str, str]) -> None:
    """Told before anything is fetched from the wrong place."""
    with pytest.raises(UserError, match="pip cannot read its configuration") as error:
        said(own, "index-url = https://mirror.example/simple\n")
    assert "pip.conf" in str(error.value)


def test_without_pip_the_variables_count(
    own: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interpreter that uv made has no pip."""
    words = [sys.executable, "-c", "raise SystemExit('/usr/bin/python: No module named pip')"]
    ran = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda _, **options: ran(words, **options))
    own |= {"PIP_FIND_LINKS": "https://wheels.example", "PIP_NO_INDEX": "true"}
    settings = uv.pip_settings(own)
    assert uv.uv_variables(own, settings) == {"UV_FIND_LINKS": "https://wheels.example"}
    assert list(uv.pip_options(settings)) == ["--no-index"]


def test_an_environment_from_what_a_file_names(
    home: Path, wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way: pip.conf alone says where the packages are."""
    wheel(wheels, "amber", "2.0")
    (tmp_path / "pip.conf").write_text(f"[global]\nno-index = true\nfind-links = {wheels}\n")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    place = Place("conda.yml", 2)
    python = Dependency(f"python={sys.version_info[0]}.{sys.version_info[1]}", "conda", place)
    asked = Environment("e", dependencies=(python, Dependency("amber", "pip", place)), place=place)
    reaper = Reaper()
    try:
        with building.build(asked, reaper, lambda line: None) as made:
            words = [made.python, "-c", "import amber; print(amber.VERSION)"]
            assert subprocess.check_output(words, text=True) == "2.0\n"
    finally:
        reaper.close()
