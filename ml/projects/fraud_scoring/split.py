"""Write the rows that an AutoML job may see: split.py --data DIR --train DIR --validation DIR."""

from ml.projects.fraud_scoring.train import PROJECT
from ml.toolkit.training.tabular import split

if __name__ == "__main__":
    split(PROJECT)
