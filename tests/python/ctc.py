"""ctc.safetensors: as losses.safetensors, for connectionist temporal classification. Keras gets labels as long as the
longest of them; `y_true` has them padded with zeros to the length of the predictions."""

import numpy as np
from common import Fixture, normal, rng_for
from keras import losses as K
from losses import add_case

CASES = [
    # name, time steps, classes, labels
    ("ctc", 7, 5, [[1, 2, 3], [4, 0, 0], [2, 2, 0], [1, 4, 1]]),
    ("ctc_repeats", 6, 3, [[1, 1, 1], [2, 2, 1], [0, 0, 0], [1, 2, 2]]),
    ("ctc_full", 4, 4, [[1, 2, 3, 1], [3, 0, 0, 0], [2, 1, 0, 0]]),
    ("ctc_one_step", 1, 3, [[1], [2], [0]]),
    ("ctc_long", 20, 6, [[1, 5, 5, 2, 3, 3, 3, 4], [2, 0, 0, 0, 0, 0, 0, 0]]),
]


def make():
    fixture = Fixture("ctc")
    for name, time, classes, labels in CASES:
        rng = rng_for(name)
        y_true = np.array(labels, "int32")
        y_pred = normal(rng, len(labels), time, classes) * np.float32(2)
        weights = {"": None, "_weighted": rng.uniform(0, 2, len(labels)).astype("float32")}
        for reduction in ("sum_over_batch_size", "sum", "mean_with_sample_weight"):
            for suffix, weight in weights.items():
                short = "" if reduction == "sum_over_batch_size" else f"_{reduction}"
                full = f"{name}{short}{suffix}"
                loss = K.CTC(name="ctc", reduction=reduction)
                add_case(fixture, full, loss, {}, y_true, y_pred, weight)
                fixture.tensors[f"{full}/y_true"] = np.pad(y_true, ((0, 0), (0, time - y_true.shape[1])))
    fixture.save()
