"""Convert the cells of a table for AutoML: float32 numbers, and texts as categories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ml.serving.scoring.columns import MISSING

if TYPE_CHECKING:
    import pandas as pd


def stop(code: str, actual: str, expected: str, hint: str = "") -> NoReturn:
    """Exit with an error message."""
    text = f"error[{code}]: {actual}\n  expected: {expected}"
    raise SystemExit(f"{text}\n  hint: {hint}" if hint else text)


def single(numbers: NDArray[np.float64]) -> NDArray[np.float32]:
    """Convert numbers to float32; too large ones become infinite."""
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32)


def is_number(values: pd.Series[Any]) -> bool:
    """Return whether the dtype is numeric; booleans are not."""
    from pandas.api import types

    return types.is_numeric_dtype(values) and not types.is_bool_dtype(values)


def as_texts(values: pd.Series[Any], missing: frozenset[str] = MISSING) -> pd.Series[Any]:
    """Convert values to categorical texts as by `written`; texts in `missing` become missing."""
    import pandas as pd
    from pandas.api import types

    if types.is_datetime64_any_dtype(values):
        values = values.astype(str).where(values.notna())
    coded = values.astype("category").cat.remove_unused_categories()
    names = written(coded.cat.categories)
    texts = sorted({*names} - missing)
    number = {text: index for index, text in enumerate(texts)}
    codes: Any = np.array([*(number.get(key, -1) for key in names), -1])[coded.cat.codes.to_numpy()]
    return pd.Series(pd.Categorical.from_codes(codes, categories=pd.Index(texts)))


def written(values: pd.Index[Any]) -> list[str]:
    """Return distinct values as stripped texts.

    If all are whole, floats have no decimal point; booleans are `true` and `false`.
    """
    # str() of numpy numbers has the fewest digits that identify the number.
    cells: Any = values.to_numpy()
    if cells.dtype.kind == "f" and np.isfinite(cells).all() and (cells % 1 == 0).all():
        cells = map(int, cells)
    return [
        str(cell).lower() if isinstance(cell, bool | np.bool_) else str(cell).strip()
        for cell in cells
    ]
