"""MiniRocket by PyPI's `aeon`, for benchmarks/cross_modal.py; runs in the environment of minirocket.txt.

    python run_minirocket.py DATA SEED    DATA: an .npz with x, y, x_test, y_test; x is (samples, channels, length)

Random convolutions and a ridge classifier whose penalty is chosen by leave-one-out, as aeon has them. Prints the error
on the test samples, which samples were answered rightly, and seconds of processor time as JSON.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np


def main() -> None:
    from aeon.classification.convolution_based import MiniRocketClassifier

    path, seed = sys.argv[1], int(sys.argv[2])
    with np.load(path) as data:
        x, y, x_test, y_test = (data[name] for name in ("x", "y", "x_test", "y_test"))
    MiniRocketClassifier(n_kernels=84, random_state=0).fit(x[:20], np.arange(20) % 2)  # compiles what it runs
    started = time.process_time()
    classifier = MiniRocketClassifier(random_state=seed).fit(x, y)
    fitted = time.process_time()
    right = classifier.predict(x_test) == y_test
    print(
        json.dumps(
            {
                "error": float(1 - right.mean()),
                "right": "".join("1" if each else "0" for each in right),
                "seconds": fitted - started,
            }
        )
    )


if __name__ == "__main__":
    main()
