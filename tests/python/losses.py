"""losses.safetensors: reduced loss, gradient by y_pred and per-sample values."""

import itertools

import jax
import numpy as np
from common import Fixture, config_of, normal, one_hot, rng_for, softmax
from keras import losses as K

CLASSES = 5


def integer_targets(rng, shape):
    return rng.integers(0, CLASSES, shape[:-1]).astype("int32")


def column_targets(rng, shape):
    return integer_targets(rng, shape)[..., None]


def one_hot_targets(rng, shape):
    return one_hot(integer_targets(rng, shape), shape[-1])


def distribution_targets(rng, shape):
    return softmax(normal(rng, *shape))


def binary_targets(rng, shape):
    return rng.integers(0, 2, shape).astype("float32")


def sign_targets(rng, shape):
    return binary_targets(rng, shape) * 2 - 1


def real(rng, shape):
    return normal(rng, *shape)


def wide(rng, shape):
    return normal(rng, *shape) * np.float32(4)


def probabilities(rng, shape):
    return softmax(normal(rng, *shape))


def unnormalized(rng, shape):
    return rng.uniform(0.05, 1.5, shape).astype("float32")


def extreme_rows(rng, shape):
    """One-hot predictions: exact zeros and ones, which Keras clips to [1e-7, 1 - 1e-7]."""
    return one_hot_targets(rng, shape)


def unit(rng, shape):
    return rng.uniform(0.02, 0.98, shape).astype("float32")


def extreme_unit(rng, shape):
    return binary_targets(rng, shape)


def positive(rng, shape):
    return rng.uniform(0.1, 4, shape).astype("float32")


def ignored_targets(rng, shape):
    """Labels of which some have the ignored class 255."""
    labels = integer_targets(rng, shape)
    return np.where(rng.uniform(0, 1, labels.shape) < 0.4, 255, labels).astype("int32")


SHAPE_2D = (4, CLASSES)
SHAPE_3D = (3, 4, CLASSES)


def crossentropy_cases():
    sparse, dense = K.SparseCategoricalCrossentropy, K.CategoricalCrossentropy
    for rank, shape in (("2d", SHAPE_2D), ("3d", SHAPE_3D)):
        yield f"sparse_ce_{rank}", sparse, {}, shape, integer_targets, probabilities
        yield f"sparse_ce_logits_{rank}", sparse, {"from_logits": True}, shape, integer_targets, wide
        yield f"categorical_ce_{rank}", dense, {}, shape, one_hot_targets, probabilities
        yield f"categorical_ce_logits_{rank}", dense, {"from_logits": True}, shape, one_hot_targets, wide
    yield "sparse_ce_column", sparse, {}, SHAPE_2D, column_targets, probabilities
    yield "sparse_ce_unnormalized", sparse, {}, SHAPE_2D, integer_targets, unnormalized
    yield "sparse_ce_extreme", sparse, {}, (8, CLASSES), integer_targets, extreme_rows
    yield "categorical_ce_unnormalized", dense, {}, SHAPE_2D, one_hot_targets, unnormalized
    yield "categorical_ce_extreme", dense, {}, (8, CLASSES), one_hot_targets, extreme_rows
    yield "categorical_ce_soft_targets", dense, {}, SHAPE_2D, distribution_targets, probabilities
    yield "categorical_ce_smooth", dense, {"label_smoothing": 0.1}, SHAPE_2D, one_hot_targets, probabilities
    smooth = {"label_smoothing": 0.1, "from_logits": True}
    yield "categorical_ce_smooth_logits", dense, smooth, SHAPE_2D, one_hot_targets, wide

    binary = K.BinaryCrossentropy
    for rank, shape in (("2d", (5, 1)), ("3d", (3, 4, 2))):
        yield f"binary_ce_{rank}", binary, {}, shape, binary_targets, unit
        yield f"binary_ce_logits_{rank}", binary, {"from_logits": True}, shape, binary_targets, wide
    yield "binary_ce_extreme", binary, {}, (8, 2), binary_targets, extreme_unit
    yield "binary_ce_smooth", binary, {"label_smoothing": 0.1}, (5, 3), binary_targets, unit
    yield "binary_ce_smooth_logits", binary, smooth, (5, 3), binary_targets, wide


def axis_and_ignored_cases():
    sparse, dense, binary = K.SparseCategoricalCrossentropy, K.CategoricalCrossentropy, K.BinaryCrossentropy
    shape = (3, CLASSES, 4)
    for axis in (1, -2):
        yield f"categorical_ce_axis_{axis}", dense, {"axis": axis}, shape, distribution_targets, unnormalized
    logits = {"axis": 1, "from_logits": True, "label_smoothing": 0.1}
    yield "categorical_ce_axis_logits", dense, logits, shape, distribution_targets, wide
    yield "binary_ce_axis", binary, {"axis": 1}, (3, 4, 2), binary_targets, unit
    yield "cosine_axis", K.CosineSimilarity, {"axis": 1}, SHAPE_3D, real, real
    for rank, shape in (("2d", (8, CLASSES)), ("3d", SHAPE_3D)):
        ignore = {"ignore_class": 255}
        yield f"sparse_ce_ignore_{rank}", sparse, ignore, shape, ignored_targets, probabilities
        ignore = ignore | {"from_logits": True}
        yield f"sparse_ce_ignore_logits_{rank}", sparse, ignore, shape, ignored_targets, wide
    yield "sparse_ce_ignore_class", sparse, {"ignore_class": 1}, (8, CLASSES), integer_targets, probabilities


def focal_cases():
    binary, dense = K.BinaryFocalCrossentropy, K.CategoricalFocalCrossentropy
    yield "binary_focal", binary, {}, (5, 3), binary_targets, unit
    yield "binary_focal_3d", binary, {}, (3, 4, 2), binary_targets, unit
    yield "binary_focal_logits", binary, {"from_logits": True}, (5, 3), binary_targets, real
    balanced = {"apply_class_balancing": True, "alpha": 0.3, "gamma": 1.5, "label_smoothing": 0.1}
    yield "binary_focal_balanced", binary, balanced, (5, 3), binary_targets, unit
    yield "binary_focal_gamma0", binary, {"gamma": 0.0}, (5, 3), binary_targets, unit
    yield "binary_focal_gamma1_axis", binary, {"gamma": 1.0, "axis": 1}, (3, 4, 2), binary_targets, unit
    yield "categorical_focal", dense, {}, SHAPE_2D, one_hot_targets, probabilities
    yield "categorical_focal_3d", dense, {}, SHAPE_3D, one_hot_targets, probabilities
    yield "categorical_focal_logits", dense, {"from_logits": True}, SHAPE_2D, one_hot_targets, wide
    options = {"alpha": [0.1, 0.2, 0.3, 0.4, 0.5], "gamma": 0.5, "label_smoothing": 0.1}
    yield "categorical_focal_options", dense, options, SHAPE_2D, one_hot_targets, unnormalized
    axis = {"axis": 1, "from_logits": True}
    yield "categorical_focal_axis", dense, axis, (3, CLASSES, 4), distribution_targets, wide


def region_cases():
    for short, loss, options in (
        ("dice", K.Dice, {}),
        ("tversky", K.Tversky, {}),
        ("tversky_options", K.Tversky, {"alpha": 0.3, "beta": 0.8}),
    ):
        yield short, loss, options, (3, 4, 2), binary_targets, unit
        yield f"{short}_2d", loss, options, (5, 3), binary_targets, unit
        for name, axis in (("axis", 1), ("samples", [1, 2]), ("last", -1), ("classes", [0, 1])):
            yield f"{short}_{name}", loss, options | {"axis": axis}, (3, 4, 2), binary_targets, unit


def large_labels(rng, shape):
    """Labels that are no numbers of outputs, some below zero."""
    return rng.integers(-1, 3, shape[:-1]).astype("int32") * 100


def single_label(rng, shape):
    return np.full(shape[:-1], 7, "int32")


def different_labels(rng, shape):
    return np.arange(shape[0], dtype="int32")


def vectors(rng, shape):
    x = normal(rng, *shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def short_vectors(rng, shape):
    """Vectors shorter than 1: the distance to itself is not zero, where the derivative would depend on rounding."""
    return vectors(rng, shape) * np.float32(0.9)


def pair_cases():
    # Some samples have no other of their class.
    soft = {"gamma": 4.0}
    yield "circle", K.Circle, {}, (9, 4), large_labels, vectors
    yield "circle_soft", K.Circle, soft, (9, 4), large_labels, vectors
    yield "circle_column", K.Circle, soft, (6, 3), lambda rng, shape: large_labels(rng, shape)[:, None], vectors
    yield "circle_margin", K.Circle, soft | {"margin": 0.25}, (9, 4), large_labels, vectors
    yield "circle_diagonal", K.Circle, soft | {"remove_diagonal": False}, (9, 4), large_labels, short_vectors
    yield "circle_one_class", K.Circle, soft, (4, 3), single_label, vectors
    yield "circle_all_different", K.Circle, soft, (4, 3), different_labels, vectors
    yield "circle_one_sample", K.Circle, soft, (1, 3), single_label, vectors


def other_cases():
    for short, loss in (("mse", K.MeanSquaredError), ("mae", K.MeanAbsoluteError), ("huber", K.Huber)):
        for rank, shape in (("2d", SHAPE_2D), ("3d", SHAPE_3D)):
            yield f"{short}_{rank}", loss, {}, shape, real, real
    yield "mse_one_column", K.MeanSquaredError, {}, (5, 1), real, real
    yield "huber_delta", K.Huber, {"delta": 0.4}, SHAPE_2D, real, real
    yield "kl_2d", K.KLDivergence, {}, SHAPE_2D, distribution_targets, probabilities
    yield "kl_3d", K.KLDivergence, {}, SHAPE_3D, distribution_targets, probabilities
    yield "kl_one_hot", K.KLDivergence, {}, SHAPE_2D, one_hot_targets, probabilities
    yield "hinge_signs", K.Hinge, {}, SHAPE_2D, sign_targets, real
    yield "hinge_binary", K.Hinge, {}, SHAPE_2D, binary_targets, real
    yield "hinge_3d", K.Hinge, {}, SHAPE_3D, binary_targets, real
    for rank, shape in (("2d", SHAPE_2D), ("3d", SHAPE_3D)):
        yield f"mape_{rank}", K.MeanAbsolutePercentageError, {}, shape, positive, real
        yield f"msle_{rank}", K.MeanSquaredLogarithmicError, {}, shape, positive, positive
        yield f"log_cosh_{rank}", K.LogCosh, {}, shape, real, wide
        yield f"poisson_{rank}", K.Poisson, {}, shape, positive, positive
        yield f"cosine_{rank}", K.CosineSimilarity, {}, shape, real, real
        yield f"squared_hinge_{rank}", K.SquaredHinge, {}, shape, sign_targets, real
        yield f"categorical_hinge_{rank}", K.CategoricalHinge, {}, shape, one_hot_targets, real
        yield f"generalized_ce_{rank}", K.CategoricalGeneralizedCrossEntropy, {}, shape, integer_targets, probabilities
    yield "msle_negative", K.MeanSquaredLogarithmicError, {}, SHAPE_2D, real, wide
    yield "squared_hinge_binary", K.SquaredHinge, {}, SHAPE_2D, binary_targets, real
    yield "generalized_ce_q", K.CategoricalGeneralizedCrossEntropy, {"q": 0.8}, SHAPE_2D, integer_targets, probabilities


REDUCED = {"sparse_ce_ignore_2d", "sparse_ce_2d", "sparse_ce_logits_3d", "categorical_ce_2d", "binary_ce_2d", "mse_2d", "mse_3d", "huber_2d", "circle_soft"}


def sums_over_batch(loss):
    regions = isinstance(loss, (K.Dice, K.Tversky))
    return regions and (loss.axis is None or (isinstance(loss.axis, list) and 0 in loss.axis))


def add_case(fixture, name, loss, options, y_true, y_pred, weight):
    def value(y_pred):
        return loss(y_true, y_pred, sample_weight=weight)

    total, grad = jax.jit(jax.value_and_grad(value))(y_pred)
    # Loss.__call__ casts the targets to float32 before it calls loss.call.
    values = np.asarray(loss.call(y_true.astype("float32"), y_pred))
    if sums_over_batch(loss):
        # Here every sample has the loss of the batch.
        values = np.broadcast_to(values, (len(y_pred), *values.shape))
    tensors = {"y_true": y_true, "y_pred": y_pred, "loss": total, "grad": grad, "values": values}
    if weight is not None:
        tensors["sample_weight"] = weight
    fixture.add({"name": name, "class_name": type(loss).__name__, "config": config_of(loss, **options)}, tensors)


def make():
    fixture = Fixture("losses")
    groups = (crossentropy_cases(), other_cases(), axis_and_ignored_cases(), focal_cases(), region_cases(), pair_cases())
    for name, cls, kwargs, shape, target, prediction in itertools.chain(*groups):
        rng = rng_for(name)
        y_true, y_pred = target(rng, shape), prediction(rng, shape)
        # For a 3-D output the values are (batch, time); Keras requires weights of that rank.
        probe = cls(**kwargs)
        values = probe.call(y_true.astype("float32"), y_pred).shape
        weights = {"": None}
        if values == ():
            weights["_weighted"] = rng.uniform(0, 2, shape[:1]).astype("float32")
        elif values[0] == shape[0] and not (len(values) > 1 and "ignore_class" in kwargs):
            weights["_weighted"] = rng.uniform(0, 2, values).astype("float32")
        if values == shape[:-1] and len(shape) == 3 and "ignore_class" not in kwargs:
            weights["_weighted_column"] = rng.uniform(0, 2, (shape[0], 1)).astype("float32")
        reductions = ["sum_over_batch_size"]
        if name in REDUCED:
            reductions += ["sum", "mean", "mean_with_sample_weight"]
        elif sums_over_batch(probe):
            reductions += ["sum", "mean_with_sample_weight"]
        for reduction in reductions:
            for suffix, weight in weights.items():
                short = "" if reduction == "sum_over_batch_size" else f"_{reduction}"
                full = f"{name}{short}{suffix}"
                loss = cls(name=cls.__name__.lower(), reduction=reduction, **kwargs)
                add_case(fixture, full, loss, kwargs, y_true, y_pred, weight)
    fixture.save()
