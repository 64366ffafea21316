"""The models of cross_check.py: selected networks, one model for every layer, optimizer, loss and metric, and random graphs.

A case is (name, model, options). A compiled model is trained on both sides unless it has dropout.
"""

import keras
import numpy as np
from keras import layers as L
from keras import losses, metrics
from keras import optimizers as O

import custom_models
import layer_cases

BATCH, STEPS = 4, 3


def sequential(shape, *chain, name=None, dtype=None):
    return keras.Sequential([keras.Input(shape, dtype=dtype), *chain], name=name)


def compiled(model, optimizer="sgd", loss="mse", **options):
    model.compile(optimizer, loss, **options)
    return model


# The tutorials' networks and ResNet50.


def mnist_mlp():
    x = inputs = keras.Input((784,))
    for _ in range(2):
        x = L.Dense(256, activation="relu")(x)
    model = keras.Model(inputs, L.Dense(10)(x), name="mnist_mlp")
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    return compiled(model, O.Adam(), loss, metrics=["accuracy"])


def mnist_cnn():
    chain = [L.Conv2D(32, 3, activation="relu"), L.MaxPooling2D(), L.Flatten(), L.Dense(64, activation="relu")]
    model = sequential((28, 28, 1), *chain, L.Dense(10, activation="softmax"))
    return compiled(model, "adam", "sparse_categorical_crossentropy", metrics=["accuracy"])


def conv_module(x, filters, size, stride=1, padding="same"):
    x = L.Conv2D(filters, size, strides=stride, padding=padding)(x)
    return L.Activation("relu")(L.BatchNormalization()(x))


def minigooglenet():
    def inception(x, ones, threes):
        return L.Concatenate()([conv_module(x, ones, 1), conv_module(x, threes, 3)])

    def downsample(x, filters):
        return L.Concatenate()([conv_module(x, filters, 3, 2, "valid"), L.MaxPooling2D(3, 2)(x)])

    inputs = keras.Input((32, 32, 3))
    x = conv_module(inputs, 96, 3)
    x = downsample(inception(inception(x, 32, 32), 32, 48), 80)
    for ones, threes in ((112, 48), (96, 64), (80, 80), (48, 96)):
        x = inception(x, ones, threes)
    x = downsample(x, 96)
    for _ in range(2):
        x = inception(x, 176, 160)
    x = L.Flatten()(L.Dropout(0.5)(L.AveragePooling2D(7)(x)))
    model = keras.Model(inputs, L.Dense(10, activation="softmax")(x), name="minigooglenet")
    return compiled(model, O.SGD(5e-3, momentum=0.9), "categorical_crossentropy", metrics=["accuracy"])


def transfer():
    """A frozen base with a new head."""
    base = sequential((12, 12, 3), L.Conv2D(4, 3), L.BatchNormalization(), L.ReLU(), name="base")
    base.trainable = False
    inputs = keras.Input((12, 12, 3))
    x = base(inputs, training=False)
    x = L.Dense(8, activation="relu")(L.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, L.Dense(3, activation="softmax")(x), name="transfer")
    return compiled(model, O.RMSprop(1e-3), "categorical_crossentropy", metrics=["accuracy"])


def resnet50():
    model = keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=10)
    return compiled(model, O.SGD(1e-3, momentum=0.9), "categorical_crossentropy")


def named():
    yield "mnist_mlp", mnist_mlp(), {}
    yield "mnist_cnn", mnist_cnn(), {}
    yield "minigooglenet", minigooglenet(), {"train": False}
    yield "transfer", transfer(), {}
    yield "resnet50", resnet50(), {"train": False}


# Structure: branches, shared layers, nesting, several inputs and outputs.


def branches():
    inputs = keras.Input((6,))
    a = L.Dense(5, activation="relu", name="z_first")(inputs)
    b = L.Dense(5, activation="tanh", name="a_second")(inputs)
    long = L.Dense(5)(L.Dense(5)(a))
    return compiled(keras.Model(inputs, L.Dense(2)(L.Add()([b, long, a]))), "adam")


def equal_branches():
    """Weights of equal shape, which only Keras' ordering rule distinguishes."""
    x = inputs = keras.Input((4,))
    for i in range(3):
        left, right = L.Dense(4, name=f"l{i}")(x), L.Dense(4, name=f"r{i}")(x)
        x = L.Subtract()([L.Dense(4, name=f"rr{i}")(right), left])
    return compiled(keras.Model(inputs, x), O.Adam(0.01))


def shared():
    a, b = keras.Input((5,), name="left"), keras.Input((5,), name="right")
    encoder = L.Dense(5, activation="relu", name="encoder")
    x = L.Concatenate()([encoder(encoder(a)), encoder(b)])
    return compiled(keras.Model([a, b], L.Dense(2)(x)), O.SGD(0.05, momentum=0.9))


def shared_out_of_order():
    inputs = keras.Input((5,))
    one, two = L.Dense(5, name="one"), L.Dense(5, name="two")
    late = two(one(inputs))
    early = two(inputs)
    return compiled(keras.Model(inputs, L.Add()([one(early), late])))


def nested():
    inner_in = keras.Input((4,))
    x = L.Dense(4, activation="relu")(inner_in)
    inner = keras.Model(inner_in, L.BatchNormalization()(x), name="inner")
    outer_in = keras.Input((4,))
    x = inner(outer_in)
    x = sequential((4,), L.Dense(3), L.LeakyReLU(), name="tail")(x)
    return compiled(keras.Model(outer_in, L.Dense(2)(x)), "adam")


def nested_output():
    inner_in = keras.Input((4,))
    inner = keras.Model(inner_in, L.Dense(3)(inner_in), name="inner")
    outer_in = keras.Input((4,))
    return compiled(keras.Model(outer_in, inner(L.Dense(4)(outer_in))))


def nested_twice():
    inner = sequential((4,), L.Dense(4, activation="tanh"), name="twice")
    inputs = keras.Input((4,))
    return compiled(keras.Model(inputs, inner(inner(inputs))), O.Adam(0.01))


def nested_functional_twice():
    inner_in = keras.Input((4,))
    inner = keras.Model(inner_in, L.Add()([inner_in, L.Dense(4)(inner_in)]), name="twice")
    inputs = keras.Input((4,))
    return compiled(keras.Model(inputs, [inner(inner(inputs)), L.Dense(1)(inner(inputs))]), loss=["mse", "mae"])


def nested_deep():
    model = sequential((4,), L.Dense(4, name="core"), name="level0")
    for i in range(1, 5):
        inputs = keras.Input((4,))
        model = keras.Model(inputs, L.Dense(4)(model(inputs)), name=f"level{i}")
    return compiled(model)


def nested_in_sequential():
    inner_in = keras.Input((4,))
    inner = keras.Model(inner_in, L.Dense(3)(inner_in), name="inner")
    return compiled(keras.Sequential([inner, L.ReLU(), L.Dense(2)]))


def nested_ends():
    a, b = keras.Input((4,)), keras.Input((4,))
    inner = keras.Model([a, b], [L.Add()([a, b]), L.Subtract()([a, b])], name="inner")
    inputs = keras.Input((4,))
    total, difference = inner([L.Dense(4)(inputs), inputs])
    return compiled(keras.Model(inputs, [L.Dense(2)(difference), L.Dense(1)(total)]), loss=["mse", "mae"])


def ends():
    a, b = keras.Input((3,), name="first"), keras.Input((2, 2), name="second")
    x = L.Concatenate()([a, L.Flatten()(b)])
    p = L.Dense(3, activation="softmax", name="classes")(x)
    q = L.Dense(1, name="value")(L.Dense(4, activation="gelu")(x))
    model = keras.Model([a, b], [p, q])
    loss = {"classes": "categorical_crossentropy", "value": losses.Huber(delta=0.5)}
    return compiled(model, "adam", loss, loss_weights={"classes": 0.3, "value": 2.0}, metrics={"value": ["mae"]})


def lists_of_one():
    inputs = keras.Input((4,))
    return compiled(keras.Model([inputs], [L.Dense(2)(inputs)]), metrics=[["mae"]])


def input_as_output():
    inputs = keras.Input((4,))
    return keras.Model(inputs, [inputs, L.Dense(2)(inputs)])


def structures():
    for build in (
        branches, equal_branches, shared, shared_out_of_order, nested, nested_output, nested_twice,
        nested_functional_twice, nested_deep, nested_in_sequential, nested_ends, ends,
        lists_of_one, input_as_output,
    ):
        yield build.__name__, build(), {}


# All layers, optimizers, losses and metrics.


def adapted():
    norm = L.Normalization()
    norm.adapt(np.random.default_rng(3).normal(2, 3, (50, 4)).astype("float32"))
    return compiled(sequential((4,), norm, L.Dense(2)))


def layers_of_every_kind():
    """Cases of the layer fixtures: one model per layer class, with an input for each of up to four cases."""
    seen = {}
    for case in layer_cases.all_cases():
        if isinstance(case["kwargs"].get("axis"), list):
            continue  # Keras' legacy .h5 loses such an axis
        if not case["layer"].__module__.startswith("keras.src.layers"):
            continue  # Keras finds classes of its applications in .keras files only
        if case["layer"] is L.Attention:
            continue  # Keras' legacy .h5 takes the score mode "dot" for a function
        of_class = seen.setdefault(case["layer"].__name__, [])
        if len(of_class) < 4:
            of_class.append(case)
    for kind, cases in sorted(seen.items()):
        inputs, outputs = [], []
        for i, case in enumerate(cases):
            ints = kind == "Embedding"
            mine = [keras.Input(s[1:], dtype="int32" if ints else "float32") for s in case["shapes"]]
            layer = case["layer"](**case["kwargs"], name=f"{kind.lower()}_{i}")
            inputs += mine
            outputs.append(layer(mine if len(mine) > 1 else mine[0]))
        top = max((c["kwargs"].get("input_dim", 0) for c in cases), default=0)
        low = min((c["kwargs"].get("input_dim", 99) for c in cases), default=top)
        yield f"layer_{kind.lower()}", keras.Model(inputs, outputs), {"integers": low, "train": False}


def options_of_layers():
    chain = [
        L.Conv2D(
            4, 3, kernel_initializer="he_normal", bias_initializer=keras.initializers.Constant(0.1),
            kernel_regularizer=keras.regularizers.L2(1e-3), bias_regularizer="l1", kernel_constraint="max_norm",
        ),
        L.DepthwiseConv2D(2, depthwise_initializer=keras.initializers.RandomNormal(stddev=0.2, seed=3)),
        L.Flatten(),
        L.Dense(
            6, kernel_regularizer=keras.regularizers.L1L2(1e-3, 1e-2), bias_constraint="non_neg",
            kernel_initializer=keras.initializers.VarianceScaling(2.0, "fan_avg", "uniform"),
        ),
        L.Dense(2, use_bias=False, kernel_initializer="orthogonal", trainable=False),
    ]
    return compiled(sequential((6, 6, 2), *chain), O.SGD(0.05))


def optimizers_of_every_kind():
    s = O.schedules
    kinds = {
        "sgd": O.SGD(0.1), "sgd_nesterov": O.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        "sgd_clipnorm": O.SGD(0.1, clipnorm=0.5), "sgd_global": O.SGD(0.1, global_clipnorm=0.5),
        "adam": O.Adam(0.01), "adam_amsgrad": O.Adam(0.01, amsgrad=True, clipvalue=0.5, epsilon=1e-4),
        "adam_ema": O.Adam(0.01, use_ema=True, ema_momentum=0.9), "adamw": O.AdamW(0.01, weight_decay=0.02),
        "rmsprop": O.RMSprop(0.01), "rmsprop_all": O.RMSprop(0.01, momentum=0.8, centered=True, rho=0.8),
        "adagrad": O.Adagrad(0.05), "nadam": O.Nadam(0.01), "lion": O.Lion(0.01),
        "adadelta": O.Adadelta(0.5), "adamax": O.Adamax(0.01), "ftrl": O.Ftrl(0.05, l1_regularization_strength=0.01),
        "schedule_free": O.ScheduleFreeAdamW(0.01, warmup_steps=3, use_ema=True),
        "lamb": O.Lamb(0.01, use_ema=True), "adafactor": O.Adafactor(0.01), "muon": O.Muon(0.01),
        "multi": O.MultiOptimizer(O.OptimizerMap(O.SGD(0.1), {".*kernel": O.Adam(0.01), ".*none": O.Lion()})),
        "accumulated": O.Adam(0.01, gradient_accumulation_steps=3),
        # Saved between two updates, so the file contains accumulated gradients.
        "accumulated_midway": O.Adam(0.01, gradient_accumulation_steps=2),
        "accumulated_sgd": O.SGD(0.1, momentum=0.9, gradient_accumulation_steps=4),
        "cosine": O.SGD(s.CosineDecay(0.1, 20, warmup_target=0.2, warmup_steps=4)),
        "restarts": O.SGD(s.CosineDecayRestarts(0.1, 3)), "exponential": O.Adam(s.ExponentialDecay(0.02, 5, 0.9)),
        "piecewise": O.SGD(s.PiecewiseConstantDecay([3, 5], [0.1, 0.05, 0.01])),
        "polynomial": O.SGD(s.PolynomialDecay(0.1, 8, power=2.0)), "inverse": O.SGD(s.InverseTimeDecay(0.1, 4, 0.5)),
    }
    for name, optimizer in kinds.items():
        model = sequential((5,), L.Dense(4, activation="tanh"), L.Dense(2))
        # Keras cannot write these to its legacy .h5, or cannot read them back.
        options = {"legacy": name not in ("lamb", "adafactor", "muon", "multi")}
        yield f"optimizer_{name}", compiled(model, optimizer), options


def losses_of_every_kind():
    kinds = {
        "mse": "mse", "mae": "mean_absolute_error", "huber": losses.Huber(delta=0.7), "hinge": "hinge",
        "kld": losses.KLDivergence(), "bce": losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.1),
        "cce": losses.CategoricalCrossentropy(label_smoothing=0.1), "sum": losses.MeanSquaredError(reduction="sum"),
        "function": losses.mean_squared_error, "log_cosh": losses.LogCosh(),
        "mape": losses.MeanAbsolutePercentageError(), "msle": losses.MeanSquaredLogarithmicError(),
        "cosine": losses.CosineSimilarity(), "squared_hinge": "squared_hinge", "poisson": losses.Poisson(),
        "categorical_hinge": losses.CategoricalHinge(), "binary_focal": losses.BinaryFocalCrossentropy(gamma=1.5),
        "categorical_focal": losses.CategoricalFocalCrossentropy(alpha=0.5), "dice": losses.Dice(),
        "tversky": losses.Tversky(alpha=0.3, beta=0.7), "dice_axis": losses.Dice(axis=1),
    }
    distributions = ("kld", "cce", "poisson", "binary_focal", "categorical_focal", "dice", "tversky", "dice_axis")
    for name, loss in kinds.items():
        last = "softmax" if name in distributions else "linear"
        model = sequential((5,), L.Dense(3, activation=last))
        yield f"loss_{name}", compiled(model, O.SGD(0.05), loss), {"probabilities": name in (*distributions, "bce")}
    labels = sequential((5,), L.Dense(3, activation="softmax"))
    m = [metrics.SparseCategoricalAccuracy(), metrics.SparseTopKCategoricalAccuracy(k=2), "accuracy"]
    yield "metrics_sparse", compiled(labels, "adam", "sparse_categorical_crossentropy", metrics=m), {}
    binary = sequential((5,), L.Dense(1, activation="sigmoid"))
    m = [metrics.AUC(num_thresholds=50), metrics.Precision(thresholds=0.4), metrics.Recall(), metrics.BinaryAccuracy(threshold=0.6), "mse"]
    m += [metrics.TruePositives(), metrics.PrecisionAtRecall(0.5), metrics.F1Score(average="macro", threshold=0.5)]
    yield "metrics_binary", compiled(binary, "adam", "binary_crossentropy", metrics=m), {"probabilities": True}
    real = sequential((5,), L.Dense(2))
    m = [metrics.MeanAbsoluteError(), metrics.RootMeanSquaredError(name="root"), metrics.R2Score(), "mape"]
    m += [metrics.PearsonCorrelation(), metrics.CosineSimilarity(), metrics.LogCoshError()]
    yield "metrics_weighted", compiled(real, "adam", "mse", metrics=["mae"], weighted_metrics=m), {}
    yield "metrics_same_names", compiled(real, "adam", "mse", metrics=["mae", "mse"], weighted_metrics=["mae", "mae"]), {}


# Random graphs.


def random_graph(seed):
    """A random graph of dense, merging and shared layers, and some nested models."""
    rng = np.random.default_rng(seed)
    width = int(rng.integers(3, 7))
    inputs = [keras.Input((width,)) for _ in range(rng.integers(1, 3))]
    values, kept = list(inputs), []
    pick = lambda: values[rng.integers(len(values))]
    for _ in range(rng.integers(4, 10)):
        kind = rng.integers(6)
        if kind == 0:
            layer = [L.Add, L.Maximum, L.Multiply, L.Average, L.Minimum][rng.integers(5)]()
            values.append(layer([pick() for _ in range(rng.integers(2, 4))]))
        elif kind == 1 and kept:
            values.append(kept[rng.integers(len(kept))](pick()))
        elif kind == 2:
            x = L.Concatenate()([pick(), pick()])
            values.append(L.Dense(width, activation="relu")(x))
        elif kind == 3:
            a = keras.Input((width,))
            inner = keras.Model(a, L.Add()([a, L.Dense(width)(a)]), name=f"block{len(values)}")
            kept.append(inner)
            values.append(inner(pick()))
        elif kind == 4:
            values.append([L.BatchNormalization, L.LayerNormalization, L.ReLU][rng.integers(3)]()(pick()))
        else:
            kept.append(L.Dense(width, activation=["tanh", "sigmoid", "elu"][rng.integers(3)]))
            values.append(kept[-1](pick()))
    used = L.Add()([*inputs, values[-1]]) if len(inputs) > 1 else values[-1]
    return compiled(keras.Model(inputs, L.Dense(2)(used)), O.SGD(0.01, momentum=0.5))


def all_models():
    yield from named()
    yield from structures()
    yield from layers_of_every_kind()
    yield "adapted", adapted(), {}
    yield "options", options_of_layers(), {}
    yield from optimizers_of_every_kind()
    yield from losses_of_every_kind()
    dropout = [L.Dense(4), L.Dropout(0.3, seed=7), L.Dense(2)]
    yield "dropout", compiled(sequential((5,), *dropout)), {"train": False}
    yield "uncompiled", sequential((5,), L.Dense(2), name="plain"), {}
    for name, model, loss, metrics in custom_models.models():
        model.compile(keras.optimizers.Adam(0.02), loss, metrics=metrics)
        yield f"custom_{name}", model, {}
    for seed in range(12):
        yield f"random_{seed:02}", random_graph(seed), {}
