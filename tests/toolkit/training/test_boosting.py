"""The lean import of LightGBM, in processes of their own."""

from __future__ import annotations

import subprocess
import sys


def output(script: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_training_does_not_pay_for_what_it_does_not_use():
    """Neither scikit-learn nor pandas is imported, and both can be afterwards."""
    script = (
        "import sys; from ml.toolkit.training.boosting import lightgbm; lgb = lightgbm()\n"
        "print('sklearn' in sys.modules, 'pandas' in sys.modules, hasattr(lgb, 'train'))\n"
        "import sklearn, pandas; print(bool(sklearn.__version__), bool(pandas.__version__))"
    )
    assert output(script).split() == ["False", "False", "True", "True", "True"]


def test_a_lightgbm_that_is_there_is_kept():
    """Whoever imported it whole keeps its scikit-learn wrappers."""
    script = (
        "import lightgbm as whole; from ml.toolkit.training.boosting import lightgbm\n"
        "print(lightgbm() is whole, hasattr(whole, 'LGBMClassifier'))"
    )
    assert output(script).split() == ["True", "True"]
