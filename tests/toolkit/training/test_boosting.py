"""LightGBM beside pandas, in a process of its own: a wrong set-up aborts the process."""

from __future__ import annotations

import subprocess
import sys

from ml.core.imports import ROOT


def test_lightgbm_takes_a_data_frame_after_a_training_of_ours() -> None:
    """LightGBM 4.7 aborts (SIGABRT) on a DataFrame when its own import did not find pandas."""
    script = (
        "import numpy as np\n"
        "from ml.toolkit.training.boosting import boost_lightgbm\n"
        "import lightgbm\n"
        "labels = np.arange(200) % 2\n"
        "data = lightgbm.Dataset(np.arange(400.0).reshape(200, 2), labels)\n"
        "boost_lightgbm({'verbose': -1}, data, 1)\n"
        "import pandas as pd\n"
        "frame = pd.DataFrame({'a': np.arange(200.0), 'b': pd.Categorical(['x', 'y'] * 100)})\n"
        "print(lightgbm.train({'verbose': -1}, lightgbm.Dataset(frame, labels), 3).num_trees())\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT
    )
    assert (process.returncode, process.stdout.strip()) == (0, "3"), process.stderr
