"""penalties.safetensors: constraints (input, output) and regularizers (input, value, grad)."""

import jax
import jax.numpy as jnp
import numpy as np
from common import Fixture, config_of, normal, rng_for
from keras import constraints, regularizers

MATRIX, KERNEL = (6, 5), (3, 2, 4, 5)

CONSTRAINTS = [
    ("max_norm", constraints.MaxNorm, {"max_value": 1.5, "axis": 0}, MATRIX),
    ("max_norm_default", constraints.MaxNorm, {}, MATRIX),
    ("max_norm_axis1", constraints.MaxNorm, {"max_value": 1.5, "axis": 1}, MATRIX),
    ("max_norm_kernel", constraints.MaxNorm, {"max_value": 4.0, "axis": [0, 1, 2]}, KERNEL),
    ("non_neg", constraints.NonNeg, {}, MATRIX),
    ("non_neg_kernel", constraints.NonNeg, {}, KERNEL),
    ("unit_norm", constraints.UnitNorm, {}, MATRIX),
    ("unit_norm_kernel", constraints.UnitNorm, {"axis": [0, 1, 2]}, KERNEL),
    ("min_max_norm", constraints.MinMaxNorm, {"min_value": 1.5, "max_value": 2.5, "rate": 0.7}, MATRIX),
]
REGULARIZERS = [
    ("l1", regularizers.L1, {}, MATRIX),
    ("l1_kernel", regularizers.L1, {"l1": 0.1}, KERNEL),
    ("l2", regularizers.L2, {}, MATRIX),
    ("l2_kernel", regularizers.L2, {"l2": 0.1}, KERNEL),
    ("l1l2", regularizers.L1L2, {"l1": 0.02, "l2": 0.03}, MATRIX),
    ("l1l2_zero", regularizers.L1L2, {}, MATRIX),
    ("orthogonal", regularizers.OrthogonalRegularizer, {}, MATRIX),
    ("orthogonal_columns", regularizers.OrthogonalRegularizer, {"factor": 0.3, "mode": "columns"}, MATRIX),
]


def make():
    fixture = Fixture("penalties")
    for name, cls, kwargs, shape in CONSTRAINTS:
        value = normal(rng_for(name), *shape)
        constraint = cls(**kwargs)
        case = {"name": name, "kind": "constraint", "class_name": cls.__name__, "config": config_of(constraint)}
        fixture.add(case, {"input": value, "output": constraint(value)})
    for name, cls, kwargs, shape in REGULARIZERS:
        value = jnp.asarray(normal(rng_for(name), *shape))
        regularizer = cls(**kwargs)
        penalty, grad = jax.value_and_grad(regularizer)(value)
        case = {"name": name, "kind": "regularizer", "class_name": cls.__name__, "config": config_of(regularizer)}
        fixture.add(case, {"input": value, "value": np.asarray(penalty), "grad": grad})
    fixture.save()
