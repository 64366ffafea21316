"""metrics.safetensors: the result after each of three batches of different sizes."""

import numpy as np
from common import Fixture, config_of, normal, one_hot, rng_for, softmax
from keras import metrics as K

BATCHES = (12, 7, 9)
CLASSES = 6


def sparse_batch(rng, size):
    return rng.integers(0, CLASSES, (size,)).astype("int32"), softmax(normal(rng, size, CLASSES))


def sparse_column_batch(rng, size):
    y_true, y_pred = sparse_batch(rng, size)
    return y_true[:, None], y_pred


def sparse_sequence_batch(rng, size):
    return rng.integers(0, 3, (size, 4)).astype("int32"), softmax(normal(rng, size, 4, 3))


def one_hot_batch(rng, size):
    y_true, y_pred = sparse_batch(rng, size)
    return one_hot(y_true, CLASSES), y_pred


def binary_batch(rng, size, columns=1):
    y_true = rng.integers(0, 2, (size, columns)).astype("float32")
    # Slightly better than chance, and spread over the unit interval.
    y_pred = (0.2 * y_true + rng.uniform(0, 0.8, y_true.shape)).astype("float32")
    return y_true, y_pred


def tied_batch(rng, size):
    """Predictions with ties, exactly on the thresholds."""
    y_true, _ = binary_batch(rng, size)
    return y_true, (rng.integers(0, 5, y_true.shape) / 4).astype("float32")


def binary_flat_batch(rng, size):
    y_true, y_pred = binary_batch(rng, size)
    return y_true[:, 0], y_pred[:, 0]


def binary_columns_batch(rng, size):
    return binary_batch(rng, size, 3)


def logit_batch(rng, size):
    return rng.integers(0, 2, (size, 1)).astype("float32"), normal(rng, size, 1) * np.float32(3)


def sparse_logit_batch(rng, size):
    return rng.integers(0, CLASSES, (size,)).astype("int32"), normal(rng, size, CLASSES) * np.float32(3)


def real_batch(rng, size):
    return normal(rng, size, 3), normal(rng, size, 3)


def real_3d_batch(rng, size):
    return normal(rng, size, 2, 3), normal(rng, size, 2, 3)


CASES = [
    ("sparse_categorical_accuracy", K.SparseCategoricalAccuracy, {}, sparse_batch),
    ("sparse_categorical_accuracy_column", K.SparseCategoricalAccuracy, {}, sparse_column_batch),
    ("sparse_categorical_accuracy_sequence", K.SparseCategoricalAccuracy, {}, sparse_sequence_batch),
    ("categorical_accuracy", K.CategoricalAccuracy, {}, one_hot_batch),
    ("binary_accuracy", K.BinaryAccuracy, {}, binary_batch),
    ("binary_accuracy_columns", K.BinaryAccuracy, {}, binary_columns_batch),
    ("binary_accuracy_threshold", K.BinaryAccuracy, {"threshold": 0.3}, binary_batch),
    ("binary_accuracy_ties", K.BinaryAccuracy, {}, tied_batch),
    ("top_k", K.TopKCategoricalAccuracy, {"k": 2}, one_hot_batch),
    ("top_k_default", K.TopKCategoricalAccuracy, {}, one_hot_batch),
    ("sparse_top_k", K.SparseTopKCategoricalAccuracy, {"k": 3}, sparse_batch),
    ("sparse_top_k_default", K.SparseTopKCategoricalAccuracy, {}, sparse_batch),
    ("precision", K.Precision, {}, binary_batch),
    ("precision_flat", K.Precision, {}, binary_flat_batch),
    ("precision_threshold", K.Precision, {"thresholds": 0.3}, binary_batch),
    ("precision_columns", K.Precision, {}, binary_columns_batch),
    ("precision_ties", K.Precision, {}, tied_batch),
    ("recall", K.Recall, {}, binary_batch),
    ("recall_flat", K.Recall, {}, binary_flat_batch),
    ("recall_threshold", K.Recall, {"thresholds": 0.3}, binary_batch),
    ("recall_columns", K.Recall, {}, binary_columns_batch),
    ("recall_ties", K.Recall, {}, tied_batch),
    ("auc", K.AUC, {}, binary_batch),
    ("auc_flat", K.AUC, {}, binary_flat_batch),
    ("auc_20_thresholds", K.AUC, {"num_thresholds": 20}, binary_batch),
    ("auc_pr", K.AUC, {"curve": "PR"}, binary_batch),
    ("auc_ties", K.AUC, {"num_thresholds": 5}, tied_batch),
    ("auc_pr_ties", K.AUC, {"num_thresholds": 5, "curve": "PR"}, tied_batch),
    ("auc_logits", K.AUC, {"from_logits": True}, logit_batch),
    ("mean_squared_error", K.MeanSquaredError, {}, real_batch),
    ("mean_squared_error_3d", K.MeanSquaredError, {}, real_3d_batch),
    ("mean_absolute_error", K.MeanAbsoluteError, {}, real_batch),
    ("root_mean_squared_error", K.RootMeanSquaredError, {}, real_batch),
    ("sparse_categorical_crossentropy", K.SparseCategoricalCrossentropy, {}, sparse_batch),
    ("sparse_categorical_crossentropy_logits", K.SparseCategoricalCrossentropy, {"from_logits": True}, sparse_logit_batch),
    ("categorical_crossentropy", K.CategoricalCrossentropy, {"label_smoothing": 0.1}, one_hot_batch),
    ("binary_crossentropy", K.BinaryCrossentropy, {}, binary_batch),
    ("binary_crossentropy_logits", K.BinaryCrossentropy, {"from_logits": True}, logit_batch),
]


def weight_variants(rng, y_true_shape):
    yield "", None
    yield "_weighted", lambda size: rng.uniform(0, 2, (size,)).astype("float32")
    if y_true_shape == "sequence":
        yield "_weighted_steps", lambda size: rng.uniform(0, 2, (size, 4)).astype("float32")


def make():
    fixture = Fixture("metrics")
    for name, cls, kwargs, batch in CASES:
        rng = rng_for(name)
        data = [batch(rng, size) for size in BATCHES]
        kind = "sequence" if batch is sparse_sequence_batch else "plain"
        for suffix, weights in weight_variants(rng, kind):
            metric = cls(name=cls.__name__.lower(), **kwargs)
            tensors, results = {}, []
            for i, (y_true, y_pred) in enumerate(data):
                weight = weights(len(y_true)) if weights else None
                metric.update_state(y_true, y_pred, sample_weight=weight)
                results.append(float(metric.result()))
                tensors |= {f"y_true/{i}": y_true, f"y_pred/{i}": y_pred}
                if weights:
                    tensors[f"sample_weight/{i}"] = weight
            tensors["result"] = np.array(results, "float32")
            fixture.add({"name": name + suffix, "class_name": cls.__name__, "config": config_of(metric)}, tensors)
    fixture.save()
