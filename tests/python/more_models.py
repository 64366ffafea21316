"""more_models.safetensors and models/NAME.keras: as models.safetensors, for layers and ops that came later."""

import keras
import models
import numpy as np
from common import normal
from keras import layers as L
from keras import ops
from model_cases import words
from op_cases import array, group, real

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def sequential(name, shape, *layers):
    """A chain of layers on normal inputs."""

    def build(rng):
        x = y = keras.Input(shape[1:])
        for layer in layers:
            y = layer(y)
        return keras.Model(x, y), normal(rng, *shape)

    CASES[name] = build


@case
def activity_dense(rng):
    x = keras.Input((6, 4))
    y = L.Conv1D(3, 2, activity_regularizer="l1", activation="tanh")(x)
    y = L.Dense(4, activity_regularizer=keras.regularizers.L2(0.3))(y)
    y = L.ActivityRegularization(l1=0.02, l2=0.05)(y)
    return keras.Model(x, L.Dense(2)(L.Flatten(activity_regularizer="l2")(y))), normal(rng, 5, 6, 4)


@case
def activity_convolutions(rng):
    x = keras.Input((6, 6, 4))
    y = L.DepthwiseConv2D(2, activity_regularizer="l2")(x)
    y = L.SeparableConv2D(3, 2, activity_regularizer="l1")(y)
    y = L.Conv2DTranspose(2, 2, activity_regularizer=keras.regularizers.L1L2(0.01, 0.02))(y)
    y = L.EinsumDense("bijc,cd->bijd", (6, 6, 3), activity_regularizer="l2")(L.ZeroPadding2D(1)(y)[:, :6, :6])
    return keras.Model(x, y), normal(rng, 5, 6, 6, 4)


@case
def activity_recurrent(rng):
    x = keras.Input((5,), dtype="int32")
    y = L.Embedding(9, 4, mask_zero=True, activity_regularizer="l2")(x)
    y, h, c = L.LSTM(3, return_sequences=True, return_state=True, activity_regularizer="l1")(y)
    y = L.Bidirectional(L.GRU(2, activity_regularizer="l2", return_state=True))(y)
    z = L.RNN(L.SimpleRNNCell(2), activity_regularizer="l2")(L.Reshape((1, 3))(h))
    return keras.Model(x, [y[0], c, z]), words(rng, (6, 5))


@case
def activity_attention(rng):
    x = keras.Input((4, 6))
    y = L.MultiHeadAttention(2, 3, activity_regularizer="l2")(x, x)
    y = L.GroupQueryAttention(4, 4, 2, activity_regularizer="l1")(y, y)
    return keras.Model(x, y), normal(rng, 5, 4, 6)


@case
def activity_nested(rng):
    inner = keras.Sequential([keras.Input((4,)), L.Dense(4, activity_regularizer="l2", kernel_regularizer="l2")], name="inner")
    x = keras.Input((4,))
    y = inner(x)
    steps = L.TimeDistributed(L.Dense(4, activity_regularizer="l1"))(L.Reshape((2, 2))(y))
    return keras.Model(x, [y, steps]), normal(rng, 5, 4)


sequential("conv_lstm_2d", (3, 3, 5, 5, 2), L.ConvLSTM2D(3, 3, padding="same", return_sequences=True), L.ConvLSTM2D(2, 2))
sequential("conv_lstm_1d", (3, 3, 6, 2), L.ConvLSTM1D(3, 3, strides=2, activity_regularizer="l2"), L.Flatten(), L.Dense(2))
sequential("conv_lstm_3d", (3, 2, 3, 4, 3, 2), L.ConvLSTM3D(2, 2), L.Flatten(), L.Dense(2))
sequential("conv_lstm_bidirectional", (3, 3, 4, 4, 2), L.Bidirectional(L.ConvLSTM2D(2, 3, padding="same", return_sequences=True)))


@case
def conv_lstm_states(rng):
    x = keras.Input((3, 4, 4, 2))
    y, h, c = L.ConvLSTM2D(2, 3, padding="same", return_state=True)(x)
    z = L.ConvLSTM2D(2, 3, padding="same", return_sequences=True)(x, initial_state=[h, c])
    return keras.Model(x, [y, z]), normal(rng, 3, 3, 4, 4, 2)


@case
def spectral_normalization(rng):
    x = keras.Input((6, 6, 2))
    y = L.SpectralNormalization(L.Conv2D(3, 3, activation="tanh"), power_iterations=2)(x)
    y = L.SpectralNormalization(L.Dense(4))(L.Flatten()(y))
    return keras.Model(x, L.Dense(2)(y)), normal(rng, 4, 6, 6, 2)


@case
def spectral_normalization_shared(rng):
    x = keras.Input((5,))
    layer = L.SpectralNormalization(L.Dense(5, activation="tanh"))
    table = L.SpectralNormalization(L.Embedding(7, 3))
    # Keras casts the output to the type of the input.
    i = keras.Input((4,))
    outputs = [layer(layer(x)), L.Flatten()(table(i))]
    return keras.Model([x, i], outputs), [normal(rng, 4, 5), words(rng, (4, 4), 7, False).astype("float32")]


def reversible(name, **options):
    def build(rng):
        x = keras.Input((5,), dtype="int32")
        table = L.ReversibleEmbedding(9, 4, **options)
        y = L.Dense(4, activation="tanh")(table(x))
        return keras.Model(x, [table(y, reverse=True), L.LSTM(3)(table(x))]), words(rng, (6, 5))

    CASES[name] = build


reversible("reversible_tied", mask_zero=True)
reversible("reversible_untied", tie_weights=False, logit_soft_cap=0.5)


@case
def dot_layers(rng):
    x, y = keras.Input((4, 3)), keras.Input((4, 5))
    a, b = L.Dense(3)(x), L.Dense(6)(y)
    scores = L.Dot(axes=1)([a, b])
    near = L.Dot(axes=(1, -1), normalize=True)([L.Flatten()(a), L.Dense(12)(L.Flatten()(b))])
    return keras.Model([x, y], [scores, near]), [normal(rng, 3, 4, 3), normal(rng, 3, 4, 5)]


def step_model():
    x = keras.Input((3, 2))
    a = L.Conv1D(4, 2, activation="tanh")(x)
    b = L.Dense(4, name="shared")
    y = L.Add()([b(a), b(L.Multiply()([a, a]))])
    return keras.Model(x, L.Dense(3)(L.GlobalAveragePooling1D()(y)), name="step")


@case
def time_distributed_functional(rng):
    x = keras.Input((4, 3, 2))
    y = L.TimeDistributed(step_model())(x)
    return keras.Model(x, L.LSTM(2)(y)), normal(rng, 3, 4, 3, 2)


@case
def time_distributed_sequential(rng):
    inner = keras.Sequential([L.Dense(4, activation="relu"), L.LayerNormalization(), L.Dense(2, activity_regularizer="l2")])
    x = keras.Input((4, 3))
    return keras.Model(x, L.TimeDistributed(inner)(x)), normal(rng, 5, 4, 3)


@case
def time_distributed_nested(rng):
    inner = keras.Sequential([keras.Input((3, 2)), L.TimeDistributed(L.Dense(2)), L.Bidirectional(L.LSTM(2))])
    outer = keras.Sequential([keras.Input((3, 2)), inner, L.Dropout(0.0), L.Dense(3)])
    x = keras.Input((4, 3, 2))
    return keras.Model(x, L.TimeDistributed(outer, name="all_steps")(x)), normal(rng, 3, 4, 3, 2)


@case
def time_distributed_statistics(rng):
    inner = keras.Sequential([keras.Input((3,)), L.Dense(4), L.BatchNormalization(), L.Dense(2)])
    x = keras.Input((4, 3))
    y = L.TimeDistributed(inner)(x)
    return keras.Model(x, L.TimeDistributed(L.BatchNormalization(momentum=0.8))(y)), normal(rng, 6, 4, 3)


@case
def time_distributed_masked(rng):
    x = keras.Input((4, 3))
    y = L.TimeDistributed(L.Dense(3))(L.Masking()(x))
    data = normal(rng, 5, 4, 3)
    for row in range(5):
        data[row, 1 + row % 4 :] = 0
    return keras.Model(x, L.LSTM(2)(y)), data


@case
def masked_batch_normalization(rng):
    x = keras.Input((5,), dtype="int32")
    y = L.Embedding(9, 4, mask_zero=True)(x)
    y = L.BatchNormalization(momentum=0.7)(y)
    return keras.Model(x, L.Dense(2)(L.LSTM(3)(y))), words(rng, (6, 5))


@case
def odd_convolutions(rng):
    first, last = keras.Input((4, 8, 8)), keras.Input((9, 4))
    a = L.Conv2D(6, (3, 2), groups=2, dilation_rate=(2, 1), data_format="channels_first", activation="tanh")(first)
    a = L.MaxPooling2D((2, 1), strides=1, padding="same", data_format="channels_first")(a)
    a = L.Conv2DTranspose(4, 3, strides=2, data_format="channels_first")(a)
    a = L.GlobalAveragePooling2D(data_format="channels_first", keepdims=True)(a)
    b = L.Conv1D(4, 3, padding="causal", dilation_rate=2, groups=2)(last)
    b = L.SeparableConv1D(5, 2, depth_multiplier=2, padding="same")(b)
    b = L.AveragePooling1D(2, strides=3, padding="same")(b)
    b = L.UpSampling1D(2)(L.ZeroPadding1D((1, 2))(L.Cropping1D((1, 0))(b)))
    return keras.Model([first, last], [a, b]), [normal(rng, 3, 4, 8, 8), normal(rng, 3, 9, 4)]


@case
def odd_shapes(rng):
    x = keras.Input((4, 6))
    a = L.Dense(6)(x)
    b = L.Permute((2, 1))(L.Reshape((-1, 3))(a))
    c = L.Concatenate(axis=1)([a, L.RepeatVector(2)(L.Dense(6)(L.Flatten()(x)))])
    d = L.Concatenate(axis=-2)([a, c, a])
    e = L.Flatten(data_format="channels_first")(L.Reshape((2, -1, 2))(a))
    return keras.Model(x, [b, d, e]), normal(rng, 3, 4, 6)


@case
def odd_normalizations(rng):
    x = keras.Input((4, 6))
    y = L.Normalization(axis=None, mean=0.3, variance=2.0)(x)
    y = L.Normalization(axis=(1, 2), mean=np.ones((4, 6)) * 0.1, variance=np.ones((4, 6)))(y)
    y = L.LayerNormalization(axis=[1, 2], center=False)(L.Dense(6)(y))
    y = L.LayerNormalization(axis=-2, scale=False)(y)
    y = L.GroupNormalization(groups=2, axis=1)(y)
    y = L.UnitNormalization(axis=[1, 2])(L.RMSNormalization()(y))
    y = L.BatchNormalization(axis=1, trainable=False)(y)
    return keras.Model(x, L.Softmax(axis=1)(y)), normal(rng, 3, 4, 6)


@case
def odd_attention(rng):
    q, v = keras.Input((3, 4, 5)), keras.Input((6, 5))
    a = L.MultiHeadAttention(2, 3, value_dim=4, attention_axes=(1, 2), output_shape=(7,), use_bias=False)(q, q)
    b = L.MultiHeadAttention(2, 3, attention_axes=2, use_gate=True)(q, q)
    c, scores = L.Attention(use_scale=True, score_mode="concat")([v, v], return_attention_scores=True)
    d = L.AdditiveAttention(use_scale=False)([v, L.Dense(5)(v), v])
    return keras.Model([q, v], [a, b, c, scores, d]), [normal(rng, 3, 3, 4, 5), normal(rng, 3, 6, 5)]


@case
def odd_merges(rng):
    x, y, z = keras.Input((4, 3)), keras.Input((1, 3)), keras.Input((3,))
    x2, y2, z2 = L.Dense(3)(x), L.Dense(3)(y), L.Dense(3)(z)
    outputs = [L.Add()([x2, y2, z2]), L.Multiply()([z2, x2]), L.Average()([y2, x2]), L.Subtract()([x2, z2])]
    outputs += [L.Maximum()([x2, y2]), L.Minimum()([y2, z2])]
    return keras.Model([x, y, z], outputs), [normal(rng, 3, 4, 3), normal(rng, 3, 1, 3), normal(rng, 3, 3)]


@case
def odd_options(rng):
    policy = keras.dtype_policies.DTypePolicy("float32")
    x = keras.Input((6,), dtype="float32", name="the input")
    y = L.Dense(5, dtype="float32", trainable=False, name="dense.one")(x)
    y = L.Dense(5, dtype=policy, autocast=False, lora_rank=None, activation=L.LeakyReLU(negative_slope=0.1))(y)
    y = L.Dropout(0.0, noise_shape=(None, 1), seed=3, dtype=policy)(y)
    y = L.PReLU(alpha_initializer=keras.initializers.Constant(0.2))(L.Activation("hard_swish")(y))
    return keras.Model(x, L.ReLU(max_value=2, negative_slope=0.1, threshold=0.2)(y)), normal(rng, 5, 6)


@case
def odd_recurrent(rng):
    x = keras.Input((5, 3))
    cells = [L.GRUCell(3, reset_after=False), L.SimpleRNNCell(2, activation="relu")]
    y, *states = L.RNN(cells, return_state=True, return_sequences=True, go_backwards=True, unroll=True)(x)
    z = L.Bidirectional(L.RNN(L.LSTMCell(2), return_sequences=True), merge_mode="sum")(x)
    w = L.Bidirectional(L.LSTM(2, return_state=True, return_sequences=True), merge_mode=None)(x)
    return keras.Model(x, [y, *states, z, *w]), normal(rng, 4, 5, 3)


@case
def layers_as_activations(rng):
    x = keras.Input((5, 4))
    y = L.Dense(6, activation=L.ReLU(1.5, 0.1, 0.2))(x)
    y = L.Conv1D(6, 2, padding="same", activation=L.Softmax(axis=1))(y)
    y = L.LSTM(4, return_sequences=True, activation=L.LeakyReLU(0.2), recurrent_activation=L.Activation("tanh"))(y)
    y = L.Dense(4, activation=L.ELU(0.5))(L.Activation(L.Activation("softplus"))(y))
    return keras.Model(x, [L.Dense(3, activation=L.Softmax())(y), L.Dense(3, activation=L.Softmax(axis=-2))(y)]), normal(rng, 4, 5, 4)


def three_inputs(structure):
    """A model of inputs in a structure of `a`, `b` and `c`."""
    a, b, c = (keras.Input((n,), name=name) for n, name in ((2, "a"), (3, "b"), (4, "c")))
    y = L.Concatenate()([L.Dense(2)(a), L.Dense(3, activation="tanh")(b), c])
    return keras.Model(structure(a, b, c), L.Dense(2)(y))


def arrays_of(rng, structure, rows=5):
    return structure(normal(rng, rows, 2), normal(rng, rows, 3), normal(rng, rows, 4))


def list_in_dict(a, b, c):
    return {"q": c, "p": [a, b]}


def dict_in_dict(a, b, c):
    return {"z": {"n": a, "m": b}, "k": c}


def dict_in_list(a, b, c):
    return [{"s": a, "r": b}, c]


def lists_in_list(a, b, c):
    return [[a], [b, c]]


for structure in (list_in_dict, dict_in_dict, dict_in_list, lists_in_list):
    CASES[f"inputs_{structure.__name__}"] = lambda rng, s=structure: (three_inputs(s), arrays_of(rng, s))


@case
def inputs_of_a_nested_model(rng):
    inner = three_inputs(dict_in_dict)
    u, v = keras.Input((3,), name="u"), keras.Input((4,), name="v")
    w = keras.Input((2,), name="w")
    y = inner(dict_in_dict(w, L.Dense(3)(u), v))
    return keras.Model({"right": [v, w], "left": u}, L.Dense(2)(y)), {
        "left": normal(rng, 5, 3),
        "right": [normal(rng, 5, 4), normal(rng, 5, 2)],
    }


@case
def outputs_in_a_structure(rng):
    x = keras.Input((3,))
    return keras.Model(x, {"p": [L.Dense(2, name="u")(x), L.Dense(1, name="v")(x)], "k": L.Dense(4, name="w")(x)}), normal(rng, 5, 3)


@case
def optional_input(rng):
    x, y = keras.Input((3,), name="x"), keras.Input((3,), name="y", optional=True)
    return keras.Model([x, y], L.Dense(2)(L.Add()([x, y]))), [normal(rng, 5, 3), normal(rng, 5, 3)]


def whole(h):
    """Whole numbers between -20 and 20."""
    return ops.cast(ops.stop_gradient(h) * 20.0, "int32")


def near_identity(x):
    """A matrix of 4 by 4 per sample that is easy to invert."""
    return L.Reshape((4, 4))(L.Dense(16, activation="tanh")(x)) + np.eye(4, dtype="float32") * 2


def positive_definite(h):
    return ops.matmul(h, ops.swapaxes(h, 1, 2)) + np.eye(4, dtype="float32")


group(
    "more_ops_activations",
    real,
    [
        lambda h: ops.celu(h, alpha=0.7),
        ops.glu,
        lambda h: ops.glu(ops.reshape(h, (-1, 2, 3)), axis=1),
        lambda h: ops.hard_shrink(h, 0.3),
        lambda h: ops.hard_silu(h * 4.0),
        lambda h: ops.hard_tanh(h * 2.0),
        ops.log_sigmoid,
        lambda h: ops.soft_shrink(h, 0.2),
        lambda h: ops.sparse_plus(h * 2.0),
        lambda h: ops.sparse_sigmoid(h * 2.0),
        lambda h: ops.squareplus(h, b=3),
        ops.tanh_shrink,
        lambda h: ops.i0(h * 3.0),
        lambda h: ops.i0(h * 12.0) * 1e-4,
        lambda h: ops.argpartition(h, 2),
        lambda h: ops.argpartition(ops.reshape(h, (-1, 2, 3)), -2, axis=2),
        lambda h: ops.argpartition(h, 5),
    ],
    cases=CASES,
)
group(
    "more_ops_integers",
    real,
    [
        lambda h: ops.bitwise_and(whole(h), ops.flip(whole(h), 1)),
        lambda h: ops.bitwise_or(whole(h), ops.flip(whole(h), 1)),
        lambda h: ops.bitwise_xor(whole(h), ops.flip(whole(h), 1)),
        lambda h: ops.bitwise_invert(whole(h)),
        lambda h: ops.bitwise_not(whole(h)),
        lambda h: ops.left_shift(whole(h), 3),
        lambda h: ops.right_shift(whole(h), 2),
        lambda h: ops.bitwise_left_shift(whole(h), ops.cast(whole(h) > 0, "int32")),
        lambda h: ops.bitwise_right_shift(whole(h), 1),
        lambda h: ops.gcd(whole(h) * 6, ops.flip(whole(h), 1) * 4),
        lambda h: ops.lcm(whole(h), 6),
    ],
    cases=CASES,
)
group(
    "more_ops_linalg",
    near_identity,
    [
        lambda h: ops.cholesky(positive_definite(h)),
        lambda h: op_upper(positive_definite(h)),
        ops.det,
        ops.inv,
        lambda h: ops.solve(h, h[:, :, :2]),
        lambda h: ops.solve_triangular(h, h[:, :, :3], lower=True),
        lambda h: ops.solve_triangular(h, h[:, :, 1:]),
        lambda h: ops.slogdet(h)[1],
        lambda h: ops.slogdet(h[:, ::-1])[1],
        ops.logdet,
    ],
    cases=CASES,
)


def op_upper(x):
    return ops.cholesky(x, upper=True)


def make(only=()):
    models.make(only, "more_models", CASES.items())
