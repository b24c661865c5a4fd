"""Write the training and validation rows for an AutoML job.

python -m ml.projects.fraud_scoring.split --data DIR --train DIR --validation DIR
"""

from ml.projects.fraud_scoring.train import PROJECT
from ml.toolkit.training.tabular import split

if __name__ == "__main__":
    split(PROJECT)
