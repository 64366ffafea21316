"""metrics.safetensors: the result, a number or a vector, after each of three batches of different sizes."""

import numpy as np
from common import Fixture, config_of, normal, one_hot, rng_for, softmax
from keras import losses as L
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


def real_flat_batch(rng, size):
    return normal(rng, size), normal(rng, size)


def logit_3d_batch(rng, size):
    return rng.integers(0, 2, (size, 2, 3)).astype("float32"), normal(rng, size, 2, 3)


def positive_batch(rng, size):
    return rng.uniform(0.1, 4, (size, 3)).astype("float32"), rng.uniform(0.1, 4, (size, 3)).astype("float32")


def sign_batch(rng, size):
    return rng.integers(0, 2, (size, 3)).astype("float32") * 2 - 1, normal(rng, size, 3)


def distribution_batch(rng, size):
    return softmax(normal(rng, size, CLASSES)), softmax(normal(rng, size, CLASSES))


def equal_batch(rng, size):
    return rng.integers(0, 3, (size, 2)).astype("float32"), rng.integers(0, 3, (size, 2)).astype("float32")


def zeros_batch(rng, size):
    """Scores of which some are exactly 0 and 1."""
    y_true, y_pred = binary_batch(rng, size)
    return y_true, np.where(y_pred < 0.3, 0, np.where(y_pred > 0.8, 1, y_pred)).astype("float32")


def multi_hot_batch(rng, size):
    return rng.integers(0, 2, (size, CLASSES)).astype("float32"), softmax(normal(rng, size, CLASSES))


def ignored_batch(rng, size):
    """Class numbers, of which -1 is none of the classes."""
    return rng.integers(-1, CLASSES, (size, 4)).astype("int32"), softmax(normal(rng, size, 4, CLASSES))


def class_map_batch(rng, size):
    return rng.integers(0, 3, (size, 2, 2)).astype("int32"), softmax(normal(rng, size, 2, 2, 3))


def class_numbers_batch(rng, size):
    return tuple(rng.integers(-1, 4, (size,)).astype("float32") for _ in range(2))


def regression_batch(rng, size):
    y_true = normal(rng, size, 3)
    return y_true, y_true + np.float32(0.5) * normal(rng, size, 3)


CASES = [
    ("wrapped_mse", K.MeanMetricWrapper, {"fn": L.mean_squared_error}, regression_batch),
    ("wrapped_crossentropy", K.MeanMetricWrapper, {"fn": L.sparse_categorical_crossentropy}, sparse_batch),
    ("wrapped_huber", K.MeanMetricWrapper, {"fn": L.huber, "delta": 0.4}, regression_batch),
    ("wrapped_logits", K.MeanMetricWrapper, {"fn": L.binary_crossentropy, "from_logits": True}, logit_batch),
    (
        "wrapped_smooth",
        K.MeanMetricWrapper,
        {"fn": L.categorical_crossentropy, "label_smoothing": 0.2, "axis": -1},
        one_hot_batch,
    ),
    ("wrapped_focal", K.MeanMetricWrapper, {"fn": L.binary_focal_crossentropy, "gamma": 3.0}, binary_batch),
    ("wrapped_cosine", K.MeanMetricWrapper, {"fn": L.cosine_similarity, "axis": 1}, real_3d_batch),
    ("wrapped_accuracy", K.MeanMetricWrapper, {"fn": K.binary_accuracy, "threshold": 0.3}, binary_columns_batch),
    ("wrapped_top_k", K.MeanMetricWrapper, {"fn": K.top_k_categorical_accuracy, "k": 2}, one_hot_batch),
    ("wrapped_ignored", K.MeanMetricWrapper, {"fn": L.sparse_categorical_crossentropy, "ignore_class": -1}, ignored_batch),
    (
        "wrapped_ignored_logits",
        K.MeanMetricWrapper,
        {"fn": L.sparse_categorical_crossentropy, "ignore_class": 2, "from_logits": True, "axis": -1},
        sparse_logit_batch,
    ),
    ("wrapped_axis", K.MeanMetricWrapper, {"fn": L.binary_crossentropy, "from_logits": True, "axis": 1}, logit_3d_batch),
    (
        "wrapped_class_focal",
        K.MeanMetricWrapper,
        {"fn": L.categorical_focal_crossentropy, "alpha": 0.4, "gamma": 1.5},
        one_hot_batch,
    ),
    ("wrapped_generalized", K.MeanMetricWrapper, {"fn": L.categorical_generalized_cross_entropy, "q": 0.4}, sparse_batch),
    (
        "wrapped_sparse_top_k",
        K.MeanMetricWrapper,
        {"fn": K.sparse_top_k_categorical_accuracy, "k": 2, "from_sorted_ids": False},
        sparse_batch,
    ),
    ("wrapped_sparse_accuracy", K.MeanMetricWrapper, {"fn": K.sparse_categorical_accuracy}, sparse_batch),
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
    ("accuracy", K.Accuracy, {}, equal_batch),
    ("mean_absolute_percentage_error", K.MeanAbsolutePercentageError, {}, positive_batch),
    ("mean_squared_logarithmic_error", K.MeanSquaredLogarithmicError, {}, positive_batch),
    ("log_cosh_error", K.LogCoshError, {}, real_batch),
    ("poisson", K.Poisson, {}, positive_batch),
    ("hinge", K.Hinge, {}, sign_batch),
    ("kl_divergence", K.KLDivergence, {}, distribution_batch),
    ("squared_hinge", K.SquaredHinge, {}, sign_batch),
    ("categorical_hinge", K.CategoricalHinge, {}, one_hot_batch),
    ("cosine_similarity", K.CosineSimilarity, {}, real_batch),
    ("cosine_similarity_axis", K.CosineSimilarity, {"axis": 1}, real_3d_batch),
    ("pearson", K.PearsonCorrelation, {}, regression_batch),
    ("pearson_3d", K.PearsonCorrelation, {}, real_3d_batch),
    ("concordance", K.ConcordanceCorrelation, {}, regression_batch),
    ("concordance_axis", K.ConcordanceCorrelation, {"axis": 1}, real_3d_batch),
    ("true_positives", K.TruePositives, {}, binary_batch),
    ("true_positives_threshold", K.TruePositives, {"thresholds": 0.3}, binary_columns_batch),
    ("false_positives", K.FalsePositives, {}, binary_batch),
    ("true_negatives", K.TrueNegatives, {"thresholds": [0.4]}, binary_batch),
    ("false_negatives", K.FalseNegatives, {}, binary_columns_batch),
    ("precision_top_k", K.Precision, {"top_k": 2}, multi_hot_batch),
    ("precision_top_k_threshold", K.Precision, {"top_k": 3, "thresholds": 0.2}, multi_hot_batch),
    ("precision_class", K.Precision, {"class_id": 1, "thresholds": 0.2}, multi_hot_batch),
    ("recall_top_k_class", K.Recall, {"top_k": 3, "class_id": 2}, multi_hot_batch),
    ("recall_list", K.Recall, {"thresholds": [0.3]}, binary_batch),
    ("auc_prgain", K.AUC, {"curve": "PRGAIN", "num_thresholds": 20}, binary_batch),
    ("auc_columns", K.AUC, {}, binary_columns_batch),
    ("auc_labels", K.AUC, {"multi_label": True, "num_labels": 3}, binary_columns_batch),
    ("auc_labels_pr", K.AUC, {"multi_label": True, "curve": "PR", "num_thresholds": 20}, binary_columns_batch),
    ("sensitivity_at_specificity", K.SensitivityAtSpecificity, {"specificity": 0.5}, binary_batch),
    ("sensitivity_one_threshold", K.SensitivityAtSpecificity, {"specificity": 0.2, "num_thresholds": 1}, binary_batch),
    ("specificity_at_sensitivity", K.SpecificityAtSensitivity, {"sensitivity": 0.6}, zeros_batch),
    ("precision_at_recall", K.PrecisionAtRecall, {"recall": 0.7, "num_thresholds": 20}, zeros_batch),
    ("precision_at_recall_all", K.PrecisionAtRecall, {"recall": 1.0}, zeros_batch),
    ("recall_at_precision", K.RecallAtPrecision, {"precision": 0.5}, binary_columns_batch),
    ("recall_at_precision_class", K.RecallAtPrecision, {"precision": 0.4, "class_id": 1}, multi_hot_batch),
    ("f1_macro", K.F1Score, {"average": "macro"}, one_hot_batch),
    ("f1_micro", K.F1Score, {"average": "micro", "threshold": 0.2}, multi_hot_batch),
    ("f1_weighted", K.F1Score, {"average": "weighted"}, one_hot_batch),
    ("f_beta_macro", K.FBetaScore, {"average": "macro", "beta": 2.0, "threshold": 0.15}, multi_hot_batch),
    ("f_beta_weighted", K.FBetaScore, {"average": "weighted", "beta": 0.5, "threshold": 0.15}, multi_hot_batch),
    ("iou", K.IoU, {"num_classes": 3, "target_class_ids": [0, 2]}, class_numbers_batch),
    ("iou_float", K.IoU, {"num_classes": 3, "target_class_ids": [1], "dtype": "float32"}, class_numbers_batch),
    ("iou_scores", K.IoU, {"num_classes": 6, "target_class_ids": [0, 3], "sparse_y_pred": False}, sparse_batch),
    ("mean_iou", K.MeanIoU, {"num_classes": 3}, class_numbers_batch),
    ("mean_iou_ignore", K.MeanIoU, {"num_classes": 6, "ignore_class": 2, "sparse_y_pred": False}, sparse_batch),
    ("mean_iou_map", K.MeanIoU, {"num_classes": 3, "sparse_y_pred": False}, class_map_batch),
    ("binary_iou", K.BinaryIoU, {"threshold": 0.4}, binary_batch),
    ("binary_iou_class", K.BinaryIoU, {"target_class_ids": [1]}, tied_batch),
    ("one_hot_iou", K.OneHotIoU, {"num_classes": 6, "target_class_ids": [0, 1]}, one_hot_batch),
    ("one_hot_mean_iou", K.OneHotMeanIoU, {"num_classes": 6}, one_hot_batch),
    ("r2", K.R2Score, {}, regression_batch),
    ("r2_weighted_average", K.R2Score, {"class_aggregation": "variance_weighted_average"}, regression_batch),
    ("r2_adjusted", K.R2Score, {"num_regressors": 3}, regression_batch),
    # Results that are vectors.
    ("f1_classes", K.F1Score, {}, one_hot_batch),
    ("f1_classes_threshold", K.F1Score, {"threshold": 0.2}, multi_hot_batch),
    ("f1_one_class", K.F1Score, {"threshold": 0.5}, binary_batch),
    ("f_beta_classes", K.FBetaScore, {"beta": 2.0, "threshold": 0.15}, multi_hot_batch),
    ("r2_outputs", K.R2Score, {"class_aggregation": None}, regression_batch),
    ("r2_outputs_adjusted", K.R2Score, {"class_aggregation": None, "num_regressors": 3}, regression_batch),
    ("precision_thresholds", K.Precision, {"thresholds": [0.2, 0.7, 0.4]}, binary_batch),
    ("precision_even_thresholds", K.Precision, {"thresholds": [0.0, 0.25, 0.5, 0.75, 1.0]}, tied_batch),
    ("precision_beyond_thresholds", K.Precision, {"thresholds": [0.0, 0.5, 1.0]}, logit_batch),
    ("precision_thresholds_beyond", K.Precision, {"thresholds": [0.1, 1.0]}, logit_batch),
    ("precision_thresholds_top_k", K.Precision, {"top_k": 3, "thresholds": [0.1, 0.2]}, multi_hot_batch),
    ("recall_thresholds", K.Recall, {"thresholds": [0.3, 0.6]}, binary_columns_batch),
    ("recall_thresholds_ties", K.Recall, {"thresholds": [0.25, 0.5]}, tied_batch),
    ("recall_thresholds_class", K.Recall, {"thresholds": [0.1, 0.3], "class_id": 2}, multi_hot_batch),
    ("true_positives_thresholds", K.TruePositives, {"thresholds": [0.2, 0.5]}, binary_columns_batch),
    ("true_negatives_thresholds", K.TrueNegatives, {"thresholds": [0.2, 0.5]}, binary_batch),
    ("false_positives_thresholds", K.FalsePositives, {"thresholds": [0.0, 0.5, 1.0]}, binary_batch),
    ("false_negatives_thresholds", K.FalseNegatives, {"thresholds": [0.2, 0.5, 0.9]}, binary_flat_batch),
    # Thresholds and weights of labels.
    ("auc_thresholds", K.AUC, {"thresholds": [0.6, 0.1, 0.3]}, binary_batch),
    ("auc_even_thresholds", K.AUC, {"thresholds": [0.25, 0.5, 0.75]}, tied_batch),
    ("auc_thresholds_beyond", K.AUC, {"thresholds": [0.3, 0.5]}, logit_batch),
    ("auc_thresholds_pr", K.AUC, {"thresholds": [0.2, 0.5, 0.6], "curve": "PR"}, binary_columns_batch),
    ("auc_thresholds_prgain", K.AUC, {"thresholds": [0.2, 0.5, 0.6], "curve": "PRGAIN"}, binary_batch),
    ("auc_thresholds_logits", K.AUC, {"thresholds": [0.2, 0.9], "from_logits": True}, logit_batch),
    ("auc_label_weights", K.AUC, {"label_weights": [0.5, 2.0, 1.0]}, binary_columns_batch),
    (
        "auc_label_weights_thresholds",
        K.AUC,
        {"label_weights": [0.5, 2.0, 1.0], "thresholds": [0.2, 0.5]},
        binary_columns_batch,
    ),
    ("auc_labels_thresholds", K.AUC, {"multi_label": True, "thresholds": [0.2, 0.7]}, binary_columns_batch),
    (
        "auc_labels_weights",
        K.AUC,
        {"multi_label": True, "label_weights": [0.5, 2.0, 1.0], "num_thresholds": 20},
        binary_columns_batch,
    ),
    (
        "auc_labels_weights_pr",
        K.AUC,
        {"multi_label": True, "label_weights": [0.5, 2.0, 0.0], "thresholds": [0.2, 0.5], "curve": "PR"},
        binary_columns_batch,
    ),
]

# Keras does not broadcast the weights of these to all positions.
UNWEIGHTED = {"mean_iou_map"}
# Whether there are weights decides whether ignored labels count: `metric_names` has both.
UNWEIGHTED |= {"wrapped_ignored", "wrapped_ignored_logits"}


def weight_variants(rng, name, y_true_shape):
    yield "", None
    if name in UNWEIGHTED:
        return
    yield "_weighted", lambda size: rng.uniform(0, 2, (size,)).astype("float32")
    if y_true_shape == "sequence":
        yield "_weighted_steps", lambda size: rng.uniform(0, 2, (size, 4)).astype("float32")


def make_running():
    """running_metrics.safetensors: means and sums of values, without targets."""
    fixture = Fixture("running_metrics")
    for cls in (K.Mean, K.Sum):
        for weighted in (False, True):
            name = cls.__name__.lower() + ("_weighted" if weighted else "")
            rng = rng_for(f"running {name}")
            metric, tensors, results = cls(), {}, []
            for i, size in enumerate(BATCHES):
                values, weight = normal(rng, size), rng.uniform(0, 2, (size,)).astype("float32")
                metric.update_state(values, sample_weight=weight if weighted else None)
                results.append(float(metric.result()))
                tensors[f"values/{i}"] = values
                if weighted:
                    tensors[f"sample_weight/{i}"] = weight
            tensors["result"] = np.array(results, "float32")
            fixture.add({"name": name, "class_name": cls.__name__}, tensors)
    fixture.save()


def make():
    make_running()
    fixture = Fixture("metrics")
    for name, cls, kwargs, batch in CASES:
        rng = rng_for(name)
        data = [batch(rng, size) for size in BATCHES]
        kind = "sequence" if batch is sparse_sequence_batch else "plain"
        for suffix, weights in weight_variants(rng, name, kind):
            metric = cls(name=cls.__name__.lower(), **kwargs)
            tensors, results = {}, []
            for i, (y_true, y_pred) in enumerate(data):
                weight = weights(len(y_true)) if weights else None
                metric.update_state(y_true, y_pred, sample_weight=weight)
                results.append(np.asarray(metric.result(), "float32"))
                tensors |= {f"y_true/{i}": y_true, f"y_pred/{i}": y_pred}
                if weights:
                    tensors[f"sample_weight/{i}"] = weight
            tensors["result"] = np.array(results, "float32")
            fixture.add({"name": name + suffix, "class_name": cls.__name__, "config": config_of(metric, **kwargs)}, tensors)
    fixture.save()
