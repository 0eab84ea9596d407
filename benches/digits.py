"""Writes the handwritten digits that scikit-learn ships as a table for training: 64 gray levels from 0 to
1 and then the class, a row for each of 1797 digits, in their order there.

    python -m venv ~/.cache/shardloom-digits && ~/.cache/shardloom-digits/bin/pip install scikit-learn
    ~/.cache/shardloom-digits/bin/python benches/digits.py ~/.cache/shardloom-digits/digits.csv

E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998.
"""

import csv
import sys
from pathlib import Path

from sklearn.datasets import load_digits

if len(sys.argv) != 2:
    sys.exit("usage: digits.py FILE.csv")
digits = load_digits()
with Path(sys.argv[1]).expanduser().open("w", newline="") as file:
    table = csv.writer(file)
    table.writerow([*digits.feature_names, "class"])
    for features, label in zip(digits.data, digits.target, strict=True):
        table.writerow([*(f"{level / 16:g}" for level in features), label])
