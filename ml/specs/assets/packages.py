"""Finds the model libraries (sklearn, torch …) that an environment's packages install.

The packages are read from its conda file, or from its Dockerfile if that begins with an image
without such libraries and installs packages with conda and pip only.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from ml.core import files, repository
from ml.core.documents import Key, read
from ml.core.errors import Place, Problem, UserError
from ml.specs.assets import assets
from ml.specs.plan.plans import Dependency
from ml.specs.yaml_node import YamlNode

# Parts of a line that name a local file or folder; URLs do not match.
_LOCAL = re.compile(
    r"(?:^|\s)(?:-[rcef]|--(?:requirement|constraint|editable|find-links))[\s=]*"
    r"(?!\S*://(?!/))\S"
    r"|(?:^|\s)(?!-)(?!\S*(?:://(?!/)|::))"
    r"(?:\.{1,2}(?=\s|$)|file:|[^\s;\[]*[/\\]|\S+\.(?:whl|zip|tgz|tar\.\w+|conda)(?![\w.]))"
)
# An invalid conda match specification: an operator other than = == != < <= > >= ~=, or no value.
_NO_SPECIFICATION = re.compile(r"=[<>]|[<>=!~]{3}|<>|><|<<|>>|,,|[<>=!~,|]$")
_COMMENT = re.compile(r"(?:^|\s)#.*$")
_SOURCE = "conda's environment.yml and pip's requirements file format"
# Lock files of the make targets that install optional packages.
_MORE = ("torch.lock", "torch.txt", "images.txt", "automl.lock")
_LOCKED = re.compile(r"^([\w.-]+)==([^\s;\\]+)", re.M)
_PIN = re.compile(r"(?:[\w./-]+::)?([\w.-]+)(?:\[[\w,. -]+\])? *={1,2} *([\w.!+]+)")


@dataclass(frozen=True)
class Conda:
    """The dependencies of a conda file, and its problems."""

    dependencies: tuple[Dependency, ...]
    problems: tuple[Problem, ...] = ()


def conda_file(path: Path) -> Conda:
    """Parse the conda file at `path`; problems refer to its own lines."""
    try:
        document = read(path)
    except UserError as refused:
        return Conda((), refused.problems)
    return conda_of_node(YamlNode(document, path))


def conda_of_node(node: YamlNode) -> Conda:
    """Parse a conda file, which may be inline (`conda_file:` is a mapping)."""
    dependencies: list[Dependency] = []
    problems: list[Problem] = []
    data = node.get()
    if not isinstance(data, dict) or not isinstance(data.get("dependencies", []), list):
        faulty = "dependencies" if isinstance(data, dict) else "the file"
        place = node.place(*(["dependencies"] if isinstance(data, dict) else []))
        return Conda((), (_wrong(f"`{faulty}` is not a list of dependencies", place),))
    if data.get("variables"):
        # `conda activate` sets them, in a job and in a server.
        problems.append(
            Problem(
                "bad-conda-file",
                "`variables` sets environment variables",
                "only dependencies",
                "write them as `environment_variables` of the job or the deployment",
                node.place("variables"),
                source=_SOURCE,
            )
        )
    for index, entry in enumerate(data.get("dependencies") or []):
        place = node.place("dependencies", index)
        if isinstance(entry, str) and _LOCAL.search(entry.strip()):
            problems.append(_left_behind(entry.strip(), place))
        elif isinstance(entry, str) and _NO_SPECIFICATION.search(entry.strip()):
            problems.append(_wrong(f"`{entry}` is no match specification", place))
        elif isinstance(entry, str):
            dependencies.append(Dependency(entry.strip(), "conda", place))
        elif isinstance(entry, dict) and [*entry] == ["pip"] and isinstance(entry["pip"], list):
            for number, line in enumerate(entry["pip"]):
                place = node.place("dependencies", index, "pip", number)
                text = _COMMENT.sub("", line).strip() if isinstance(line, str) else ""
                if _LOCAL.search(text):
                    problems.append(_left_behind(text, place))
                elif fault := _fault(text):
                    problems.append(_wrong(f"`{text}` is no requirement: {fault}", place))
                elif isinstance(line, str):
                    dependencies += [Dependency(" ".join(text.split()), "pip", place)] * bool(text)
                else:
                    problems.append(_wrong(f"a pip dependency is {line!r}", place))
        else:
            problems.append(_wrong(f"a dependency is {entry!r}", place))
    return Conda(tuple(dependencies), tuple(problems))


def _fault(text: str) -> str:
    """Return the error of an invalid requirement (PEP 508); "" for valid ones, options and URLs."""
    if text.startswith("-") or "://" in text or not text:
        return ""
    try:
        Requirement(re.split(r"\s--", text)[0])
    except InvalidRequirement as error:
        return str(error).partition("\n")[0]
    return ""


def conda_requirements(path: Path) -> tuple[Dependency, ...] | None:
    """Return the lines of pip's requirements file at `path`; None if it cannot be read or names
    another file.
    """
    try:
        content = files.content(path).decode("utf-8-sig")
    except (OSError, ValueError):
        return None
    lines = [(number, _COMMENT.sub("", line).strip()) for number, line in _joined(content)]
    if any(_LOCAL.search(text) for _, text in lines):
        return None
    label = repository.shown(path)
    return tuple(Dependency(" ".join(t.split()), "pip", Place(label, n)) for n, t in lines if t)


def _joined(content: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a requirements file with their numbers, joined at backslashes."""
    joined, first = "", 0
    for number, line in enumerate(content.splitlines(), 1):
        first = first or number
        if line.endswith("\\"):
            joined += line[:-1] + " "
            continue
        yield first, joined + line
        joined, first = "", 0
    if joined:
        yield first, joined


def _left_behind(text: str, place: Place) -> Problem:
    """Return the problem of a line that names a file: azure-ai-ml sends only the conda file's text
    (1.35, Environment._to_rest_object), so that other files are missing when the image is built.
    """
    return Problem(
        "bad-conda-file",
        f"`{text}` names a file, which Azure ML does not upload with the conda file",
        "the packages themselves, such as `numpy==2.1`",
        "list them here, or copy both files into a build context with a Dockerfile",
        place,
        source=_SOURCE,
    )


def _wrong(actual: str, place: Place) -> Problem:
    return Problem(
        "bad-conda-file",
        actual,
        "a list of texts such as `numpy=1.26`, and one mapping `pip:` with a list of texts",
        "write it as `conda env export` does",
        place,
        source=_SOURCE,
    )


def pin_problems(root: Path) -> Iterator[Problem]:
    """Yield a problem for each pin in a conda file whose version differs from the lock files."""
    main = repository.lock(root)
    locked: dict[str, tuple[str, str]] = {}
    for file in (main, *map(main.with_name, _MORE)):
        for name, version in _LOCKED.findall(file.read_text("utf-8") if file.is_file() else ""):
            locked.setdefault(canonicalize_name(name), (version, f"requirements/{file.name}"))
    for path in sorted((root / "ml/environments").glob("*/*conda*.y*ml")):
        for dependency in conda_file(path).dependencies:
            pin = _PIN.match(dependency.text)
            if pin is None:
                continue
            version, source = locked.get(canonicalize_name(pin[1]), (pin[2], ""))
            if pin[2] != version:
                actual = f"{pin[1]} {pin[2]} is installed on nodes"
                expected = f"{version}, as in {source}"
                hint = "set that version, and increment the environment's version"
                yield Problem("pin-mismatch", actual, expected, hint, dependency.place)


# Conda package (conda-forge, pytorch channel) → the PyPI requirement that installs the same
# modules, where the names differ.
ON_PYPI = {
    "dask-core": "dask",
    "fsspec-base": "fsspec",
    "gym-all": "gym",
    "ipython_genutils": "ipython-genutils",
    "keras-base": "keras",
    "libopencv": "opencv-python",
    "matplotlib-base": "matplotlib",
    "msgpack-python": "msgpack",
    "numpy-base": "numpy",
    "onnxruntime-cpu": "onnxruntime",
    "opencv": "opencv-python",
    "pandas-base": "pandas",
    "plotly_express": "plotly",
    "protobuf-python": "protobuf",
    "py-lightgbm": "lightgbm",
    "py-opencv": "opencv-python",
    "py-xgboost": "xgboost",
    "py-xgboost-cpu": "xgboost",
    "py-xgboost-gpu": "xgboost",
    "pytables": "tables",
    "python-flatbuffers": "flatbuffers",
    "python-graphviz": "graphviz",
    "python-kaleido": "kaleido",
    "pytorch": "torch",
    "pytorch-cpu": "torch",
    "pytorch-gpu": "torch",
    "ray-core": "ray",
    "ray-default": "ray[default]",
    "ray-tune": "ray[tune]",
    "scikit-learn-intelex": "scikit-learn-intelex",
    "seaborn-base": "seaborn",
    "spacy-model-en_core_web_sm": "en-core-web-sm",
    "tensorboard-data-server": "tensorboard-data-server",
    "tensorflow-base": "tensorflow",
    "tensorflow-cpu": "tensorflow",
    "tensorflow-gpu": "tensorflow",
    "umap": "umap-learn",
}
# Package name on PyPI → the libraries that it installs, by module name. A package that is not
# listed here may install any of them.
_LIBRARIES_OF: Mapping[str, str] = {
    **dict.fromkeys(
        (
            *("azure-identity", "azureml-inference-server-http", "azureml-mlflow", "click", "h11"),
            *("httptools", "numpy", "orjson", "pandas", "pillow", "pip", "pyarrow", "pycocotools"),
            *("python", "pyyaml", "redis", "scipy", "setuptools", "uvicorn", "uvloop", "wheel"),
        ),
        "",
    ),
    "accelerate": "accelerate safetensors torch",
    "deepspeed": "deepspeed torch",
    "fairlearn": "sklearn",
    "lightgbm": "lightgbm",
    "mlflow": "sklearn skops",
    "onnx": "onnx",
    "onnxruntime": "onnxruntime",
    "onnxruntime-gpu": "onnxruntime",
    "peft": "accelerate peft safetensors torch",
    "polars": "polars",
    "safetensors": "safetensors",
    "scikit-learn": "sklearn",
    "skl2onnx": "onnx sklearn skl2onnx",
    "skops": "skops sklearn",
    "torch": "torch",
    "torchvision": "torch torchvision",
    "xgboost": "xgboost",
    "xgboost-cpu": "xgboost",
}
# conda-forge's packages of these also install scikit-learn.
_WITH_SKLEARN = frozenset({"lightgbm", "xgboost"})
# Library → its package, where the names differ.
PACKAGES = {"sklearn": "scikit-learn"}
LIBRARIES = frozenset(" ".join(_LIBRARIES_OF.values()).split())

_NAME = re.compile(r"(?:[^\s=<>!~\[]+::)?(?P<name>[A-Za-z0-9][\w.-]*)(?=$|[\s=<>!~\[;@,])")
# Images with an operating system, perhaps Python, and none of the libraries.
_PLAIN_IMAGE = re.compile(
    r"(?:mcr\.microsoft\.com/azureml/(?:openmpi|minimal-)[\w.-]*|python|ubuntu|debian)(?:[:@]\S+)?"
)
# A line that installs a library's build for CPUs alone, or for CUDA: conda's packages and build
# strings, PyPI's names and extras, local versions and indexes of PyTorch, images.
_CPU_BUILD = re.compile(
    r"(?:^|[\s:])(?:pytorch-cpu|cpuonly|tensorflow-cpu|intel-tensorflow|jax\[cpu\])(?![\w-])"
    r"|(?:^|[\s:])(?:pytorch|libtorch|tensorflow|jaxlib)\b\S*[= ]\S*cpu"
    r"|torch\w*==\S*\+cpu|/whl/(?:\w+/)?cpu\b"
)
_CUDA_BUILD = re.compile(
    r"(?:^|[\s:])(?:pytorch-gpu|pytorch-cuda|cudatoolkit|tensorflow-gpu|onnxruntime-gpu"
    r"|tensorflow\[and-cuda\]|jax\[cuda\S*\])(?![\w-])"
    r"|(?:^|[\s:])(?:pytorch|libtorch|tensorflow|jaxlib)\b\S*[= ]\S*(?:cuda|gpu)"
    r"|torch\w*==\S*\+cu\d|/whl/(?:\w+/)?cu\d|^from \S*cuda"
)
# Programs in a Dockerfile's RUN that install no Python packages.
_NO_PACKAGES = frozenset({"apt-get", "chmod", "chown", "echo", "ln", "mkdir", "rm", "useradd"})
_CONDA_VALUES = frozenset({"--prefix", "-p", "--name", "-n", "--channel", "-c"})


@dataclass(frozen=True)
class Packages:
    """The packages that an environment's file lists."""

    file: Path
    names: frozenset[str]  # on PyPI
    libraries: frozenset[str]  # modules that the packages install; may be incomplete: `is_known`

    @property
    def is_known(self) -> bool:
        """Return True if `libraries` is complete, since `_LIBRARIES_OF` lists every package."""
        return self.names <= _LIBRARIES_OF.keys()


def of_environment(folder: Path, written: str) -> Packages | None:
    """Return the packages of the environment that a spec in `folder` names as `written`.

    None if they are unknown: the environment is defined elsewhere, is only an image, or has a
    Dockerfile that does more than install packages.
    """
    root = repository.root(folder)
    spec = assets.read_referenced(written, folder) or assets.find(written, "environment", root)
    return of_spec(spec) if spec is not None else None


def of_spec(spec: YamlNode) -> Packages | None:
    """Return the packages that an environment's spec lists; None if they are unknown."""
    file, context = spec.get("conda_file"), spec.get("build", "path")
    if isinstance(file, str):
        path = assets.local_path(file, spec.folder)
        if path is None or not path.is_file():
            return None
        contents = conda_file(path)
        return None if contents.problems else _packages(path, contents.dependencies)
    if isinstance(context, str) and (folder := assets.local_path(context, spec.folder)):
        path = folder / str(spec.get("build", "dockerfile_path") or "Dockerfile")
        dependencies = _of_dockerfile(path, folder) if path.is_file() else None
        return None if dependencies is None else _packages(path, dependencies)
    return None


def device_of(owner: YamlNode, *keys: Key) -> Literal["cpu", "cuda", ""]:
    """Return the device that the environment at `keys` is built for; "" if unknown or both."""
    written = owner.get(*keys)
    spec: YamlNode | None = owner.child(*keys)
    if isinstance(written, str):
        root = repository.root(owner.file)
        spec = assets.read_referenced(written, owner.folder) or assets.find(
            written, "environment", root
        )
    image = str(written if spec is None else spec.get("image") or "")
    texts = [] if spec is None else [dependency.text for dependency in _listed(spec)]
    if any(map(_CPU_BUILD.search, texts)):
        return "cpu"
    return "cuda" if "cuda" in image or any(map(_CUDA_BUILD.search, texts)) else ""


def _listed(spec: YamlNode) -> Iterator[Dependency]:
    """Yield the packages of a local conda file, or the packages and lines of a local Dockerfile."""
    file, context = spec.get("conda_file"), spec.get("build", "path")
    if isinstance(file, dict):
        yield from conda_of_node(spec.child("conda_file")).dependencies
    elif (
        isinstance(file, str) and (path := assets.local_path(file, spec.folder)) and path.is_file()
    ):
        yield from conda_file(path).dependencies
    elif isinstance(context, str) and (folder := assets.local_path(context, spec.folder)):
        path = folder / str(spec.get("build", "dockerfile_path") or "Dockerfile")
        yield from (_of_dockerfile(path, folder) or ()) if path.is_file() else ()
        text = files.content(path).decode(errors="replace") if path.is_file() else ""
        for line in text.replace("\\\n", " ").splitlines():
            if not line.lstrip().startswith("#"):
                yield Dependency(line.lower(), "pip", Place(repository.shown(path), 1))


def _packages(file: Path, dependencies: tuple[Dependency, ...]) -> Packages:
    names: set[str] = set()
    libraries: set[str] = set()
    for dependency in dependencies:
        if dependency.manager == "pip" and re.match(
            r"--?[a-z-]*(?:index|find-links|no-|pre|only)", dependency.text
        ):
            continue
        match = _NAME.match(dependency.text)
        written = match["name"].lower() if match else dependency.text
        if dependency.manager == "conda":
            written = ON_PYPI.get(written, written).partition("[")[0]
            libraries |= {"sklearn"} if written in _WITH_SKLEARN else set()
        name = re.sub(r"[-_.]+", "-", written)
        names.add(name)
        libraries |= set(_LIBRARIES_OF.get(name, "").split())
    return Packages(file, frozenset(names), frozenset(libraries))


def _of_dockerfile(path: Path, context: Path) -> tuple[Dependency, ...] | None:
    """Return the packages that a Dockerfile installs; None if they cannot be determined."""
    copied: dict[str, Path] = {}
    dependencies: list[Dependency] = []
    parsed = instructions(path)
    if parsed is None:
        return None
    for instruction, arguments in parsed:
        words = arguments.split()
        if instruction == "FROM" and not (words and _PLAIN_IMAGE.fullmatch(words[0])):
            return None
        if instruction in {"COPY", "ADD"} and len(words) == 2:
            copied[words[1]] = context / words[0]
        if instruction == "RUN":
            place = Place(repository.shown(path), 1)
            for words in commands(arguments):
                installed = _installed(words, copied, place)
                if installed is None:
                    return None
                dependencies += installed
    return tuple(dependencies)


def instructions(dockerfile: Path) -> list[tuple[str, str]] | None:
    """Return a Dockerfile's (INSTRUCTION, arguments) pairs; None if it cannot be read as text."""
    try:
        lines = files.content(dockerfile).decode().splitlines()
    except (OSError, ValueError):
        return None
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    split = (line.strip().partition(" ") for line in text.replace("\\\n", " ").splitlines())
    return [(instruction.upper(), arguments) for instruction, _, arguments in split if instruction]


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of a shell script; [""] if a quote is not closed."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="&;|")
    lexer.commenters, lexer.whitespace_split = "", True
    try:
        for is_end, words in groupby(lexer, lambda word: not word.strip("&;|")):
            if not is_end:
                yield [*words]
    except ValueError:
        yield [""]


def _installed(
    words: list[str], copied: Mapping[str, Path], place: Place
) -> list[Dependency] | None:
    """Return the dependencies that a command of a Dockerfile installs; None if unknown."""
    if words[:2] == ["python", "-m"]:
        words = words[2:]
    if words[:2] == ["pip", "install"]:
        return _of_pip(iter(words[2:]), copied, place)
    if words[:1] == ["conda"] and words[1:2] in (["create"], ["install"]):
        arguments, names = iter(words[2:]), []
        for word in arguments:
            if word in _CONDA_VALUES:
                next(arguments, None)
            elif not word.startswith("-"):
                names.append(word)
            elif word == "--file":
                return None
        return [Dependency(name, "conda", place) for name in names]
    installs_none = words[0] in _NO_PACKAGES or words[:2] == ["python", "-c"]
    return [] if installs_none else None


def _of_pip(
    words: Iterator[str], copied: Mapping[str, Path], place: Place
) -> list[Dependency] | None:
    dependencies: list[Dependency] = []
    for word in words:
        if word in {"-r", "--requirement"}:
            file = copied.get(next(words, ""))
            lines = conda_requirements(file) if file is not None else None
            if lines is None:
                return None
            dependencies += lines
        elif word in {"--index-url", "--extra-index-url", "-i"}:
            next(words, None)
        elif word.startswith("-") and word not in {"-e", "--editable"}:
            continue
        else:
            dependencies.append(Dependency(word, "pip", place))
    return dependencies
