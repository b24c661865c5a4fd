"""What conda calls packages, what they are on PyPI, and what of conda's a `uv` cannot install.

Only where the two differ: conda-forge's and pytorch's own recipes on the one side, PyPI's project
names on the other.
"""

from __future__ import annotations

import re

# A package of conda → the requirement that brings the same modules from PyPI.
_ON_PYPI = {
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
# What Python itself is made of in a conda environment: any other Python has it within.
_OF_PYTHON = (
    "_libgcc_mutex _openmp_mutex bzip2 ca-certificates expat icu ld_impl_linux-64 libexpat"
    " libffi libgcc libgcc-ng libgomp libnsl libsqlite libstdcxx libstdcxx-ng libuuid"
    " libxcrypt libzlib ncurses openssl python_abi readline sqlite tk xz zlib"
)
# Programs and libraries that are no Python packages, or others of the same name on PyPI.
_NO_PYTHON = (
    "blas boost c-compiler compilers cuda cuda-nvcc cuda-toolkit cudatoolkit cudatoolkit-dev"
    " cudnn cxx-compiler ffmpeg gcc gcc_linux-64 gdal git git-lfs gmp gxx gxx_linux-64"
    " graphviz hdf5 intel-openmp java-jdk jpeg libblas liblapack libpng libtiff llvm"
    " llvm-openmp magma make mkl-service mpich mpi nccl nodejs nomkl openblas openjdk openmpi"
    " openmpi-mpicc perl poppler pytorch-cuda pytorch-mutex r-base rust tesseract unixodbc"
    " yaml"
)
_R = re.compile(r"r-[a-z0-9.]+$")


def on_pypi(name: str) -> str | None:
    """The requirement that stands for conda's package `name`; None where PyPI has none."""
    lower = name.lower()
    if lower in _NO_PYTHON.split() or _R.match(lower):
        return None
    return _ON_PYPI.get(lower, lower)


def is_of_python(name: str) -> bool:
    """Whether the package is a part of Python, which comes with it everywhere."""
    return name.lower() in _OF_PYTHON.split()
