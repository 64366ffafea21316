"""The models of models.safetensors. A case is a function of a random generator that returns a model and its inputs."""

import keras
import numpy as np
from common import normal
from keras import layers as L
from keras import ops

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def all_cases():
    return CASES.items()


def words(rng, shape, vocabulary=9, padding=True):
    """Token ids; with padding, rows end in zeros and one row has nothing else."""
    x = rng.integers(1, vocabulary, shape).astype("int32")
    if padding:
        for row in range(shape[0]):
            x[row, 1 + row % shape[1] :] = 0
        x[-1] = 0
    return x


def sequence(rng, *shape):
    return normal(rng, *shape)


def recurrent(name, layer, shape=(4, 5, 3)):
    def build(rng):
        x = keras.Input(shape[1:])
        return keras.Model(x, layer()(x)), sequence(rng, *shape)

    CASES[name] = build


def masked(name, layer, after=None):
    def build(rng):
        x = keras.Input((5,), dtype="int32")
        y = layer()(L.Embedding(9, 4, mask_zero=True)(x))
        return keras.Model(x, after(y) if after else y), words(rng, (6, 5))

    CASES[name] = build


for short, kind in (("lstm", L.LSTM), ("gru", L.GRU), ("simple_rnn", L.SimpleRNN)):
    recurrent(short, lambda kind=kind: kind(4))
    recurrent(f"{short}_sequences", lambda kind=kind: kind(4, return_sequences=True))
    recurrent(f"{short}_backwards", lambda kind=kind: kind(4, return_sequences=True, go_backwards=True))
    recurrent(f"{short}_no_bias", lambda kind=kind: kind(4, use_bias=False, activation="relu"))
    recurrent(f"bidirectional_{short}", lambda kind=kind: L.Bidirectional(kind(3)))
    recurrent(f"{short}_one_step", lambda kind=kind: kind(3), (3, 1, 2))
    masked(f"masked_{short}", lambda kind=kind: kind(4))
    masked(f"masked_{short}_sequences", lambda kind=kind: kind(4, return_sequences=True), L.Dense(2))
    masked(f"masked_{short}_zero_output", lambda kind=kind: kind(3, return_sequences=True, zero_output_for_mask=True))
    masked(f"masked_{short}_backwards", lambda kind=kind: kind(4, go_backwards=True))
    masked(f"masked_bidirectional_{short}", lambda kind=kind: L.Bidirectional(kind(3, return_sequences=True)), L.Dense(2))
recurrent("gru_reset_before", lambda: L.GRU(4, reset_after=False))
recurrent("gru_reset_before_no_bias", lambda: L.GRU(4, reset_after=False, use_bias=False))
recurrent("lstm_hard_sigmoid", lambda: L.LSTM(4, recurrent_activation="hard_sigmoid", unit_forget_bias=False))
recurrent("rnn_lstm_cell", lambda: L.RNN(L.LSTMCell(3), return_sequences=True))
recurrent("rnn_stacked", lambda: L.RNN([L.LSTMCell(3), L.GRUCell(2), L.LSTMCell(4)], return_sequences=True))
for mode in ("sum", "mul", "ave"):
    recurrent(f"bidirectional_{mode}", lambda mode=mode: L.Bidirectional(L.GRU(3, return_sequences=True), merge_mode=mode))
recurrent("bidirectional_backward_layer", lambda: L.Bidirectional(L.LSTM(3), backward_layer=L.GRU(2, go_backwards=True)))
recurrent("time_distributed_dense", lambda: L.TimeDistributed(L.Dense(4, activation="relu")))
recurrent("time_distributed_conv", lambda: L.TimeDistributed(L.Conv2D(2, 3)), (3, 4, 5, 5, 2))


@case
def states(rng):
    x = keras.Input((5, 3))
    y, h, c = L.LSTM(4, return_sequences=True, return_state=True)(x)
    z, state = L.GRU(4, return_state=True)(y, initial_state=h)
    return keras.Model(x, [y, c, z, state]), sequence(rng, 4, 5, 3)


@case
def encoder_decoder(rng):
    source, target = keras.Input((5, 3), name="source"), keras.Input((4, 2), name="target")
    _, h, c = L.LSTM(4, return_state=True)(source)
    y = L.LSTM(4, return_sequences=True)(target, initial_state=[h, c])
    model = keras.Model([source, target], L.Dense(3)(y))
    return model, [sequence(rng, 3, 5, 3), sequence(rng, 3, 4, 2)]


@case
def bidirectional_states(rng):
    x = keras.Input((5, 3))
    outputs = L.Bidirectional(L.LSTM(2, return_sequences=True, return_state=True))(x)
    return keras.Model(x, list(outputs)), sequence(rng, 3, 5, 3)


@case
def bidirectional_apart(rng):
    x = keras.Input((5, 3))
    return keras.Model(x, list(L.Bidirectional(L.GRU(2), merge_mode=None)(x))), sequence(rng, 3, 5, 3)


def masked_steps(name, layer):
    """A layer on the words of every sentence of a text, some of which are padding."""

    def build(rng):
        x = keras.Input((3, 4), dtype="int32")
        y = L.TimeDistributed(layer())(L.Embedding(9, 3, mask_zero=True)(x))
        rows = words(rng, (18, 4)).reshape(6, 3, 4)
        return keras.Model(x, L.Dense(2)(L.Flatten()(y))), rows

    CASES[f"masked_steps_{name}"] = build


masked_steps("lstm", lambda: L.LSTM(3))
masked_steps("gru_sequences", lambda: L.GRU(3, return_sequences=True))
masked_steps("simple_rnn_backwards", lambda: L.SimpleRNN(3, go_backwards=True, zero_output_for_mask=True, return_sequences=True))
masked_steps("bidirectional", lambda: L.Bidirectional(L.LSTM(2, return_sequences=True)))
masked_steps("dense", lambda: L.Dense(2, activation="relu"))


def activated(name, shape, *layers, called=True):
    """Layers whose activations have weights, which Keras makes when the model is called. Files written before lack them."""

    def build(rng):
        x = y = keras.Input(shape[1:])
        for layer in layers:
            y = layer()(y)
        model, inputs = keras.Model(x, y), sequence(rng, *shape)
        if called:
            model(inputs)
        return model, inputs

    CASES[f"activated_{name}"] = build


activated(
    "dense",
    (4, 3),
    lambda: L.Dense(5, activation=L.PReLU(alpha_initializer="ones", alpha_regularizer="l2"), activity_regularizer="l1"),
    lambda: L.Dense(4, activation=L.LayerNormalization()),
    lambda: L.Dense(3, activation=L.Dense(2, activation="tanh")),
)
activated("frozen", (4, 3), lambda: L.Dense(5, activation=L.PReLU(trainable=False)), lambda: L.Dense(2))
activated(
    "described",
    (4, 3),
    lambda: L.Dense(5, activation=L.PReLU(alpha_initializer="ones")),
    lambda: L.Dense(2, activation=L.PReLU()),
    called=False,
)
activated("statistics", (6, 3), lambda: L.Dense(5, activation=L.BatchNormalization(momentum=0.8)), lambda: L.Dense(2))
activated(
    "convolutions",
    (3, 8, 8, 2),
    lambda: L.Conv2D(3, 3, activation=L.PReLU(shared_axes=[1, 2])),
    lambda: L.SeparableConv2D(4, 3, activation=L.PReLU()),
    lambda: L.DepthwiseConv2D(2, activation=L.PReLU(shared_axes=[1])),
    lambda: L.Conv2DTranspose(2, 2, activation=L.PReLU()),
)
activated(
    "steps",
    (4, 3, 2),
    lambda: L.TimeDistributed(L.Dense(3, activation=L.PReLU())),
    lambda: L.EinsumDense("abc,cd->abd", (None, 4), bias_axes="d", activation=L.PReLU()),
    lambda: L.Activation(L.PReLU()),
)


@case
def masking_layer(rng):
    x = keras.Input((6, 3))
    y = L.LSTM(4, return_sequences=True)(L.Masking()(x))
    data = sequence(rng, 5, 6, 3)
    for row in range(5):
        data[row, 2 + row % 4 :] = 0
    return keras.Model(x, L.Dense(2)(y)), data


@case
def masks_of_merges(rng):
    a, b = keras.Input((5,), dtype="int32"), keras.Input((5,), dtype="int32")
    embed = L.Embedding(9, 4, mask_zero=True)
    x, y = embed(a), embed(b)
    both = L.Concatenate()([L.Add()([x, y]), L.Dropout(0.0)(L.Dense(3, activation="tanh")(x))])
    model = keras.Model([a, b], [L.GRU(3)(both), L.LSTM(2, return_sequences=True)(L.LayerNormalization()(both))])
    return model, [words(rng, (6, 5)), words(rng, (6, 5))[::-1].copy()]


@case
def masked_products(rng):
    """Merges that leave masked entries out."""
    a, b = keras.Input((5,), dtype="int32"), keras.Input((5,), dtype="int32")
    embed = L.Embedding(9, 4, mask_zero=True)
    x, y, plain = embed(a), embed(b), L.Embedding(9, 4)(b)
    merges = [L.Multiply()([x, y]), L.Multiply()([x, plain]), L.Maximum()([x, y]), L.Minimum()([x, y, plain])]
    return keras.Model([a, b], [L.Dense(2)(L.Flatten()(y)) for y in merges]), [words(rng, (6, 5)), words(rng, (6, 5))[::-1].copy()]


@case
def attention_of_padding(rng):
    """Queries without a key that they may attend to: zeros with scores, means without."""
    x = keras.Input((5,), dtype="int32")
    # A call clears the masks of its inputs, so each has its own.
    a, b, c = (L.Embedding(9, 4, mask_zero=True)(x) for _ in range(3))
    plain = L.MultiHeadAttention(2, 3)(a, a)
    attended, scores = L.MultiHeadAttention(2, 3)(b, b, return_attention_scores=True)
    grouped, more = L.GroupQueryAttention(3, 4, 2)(c, c, return_attention_scores=True)
    # Without their masks, which have another shape than the values of a loss.
    return keras.Model(x, [y * 1.0 for y in (plain, attended, scores, grouped, more)]), words(rng, (6, 5))


@case
def time_distributed_model_of_words(rng):
    word = keras.Input((4,), dtype="int32")
    sentence = keras.Model(word, L.LSTM(3)(L.Embedding(9, 4)(word)))
    x = keras.Input((3, 4), dtype="int32")
    return keras.Model(x, L.Dense(2)(L.GRU(3)(L.TimeDistributed(sentence)(x)))), words(rng, (5, 3, 4), padding=False)


@case
def deep_masked_sequence(rng):
    x = keras.Input((7,), dtype="int32")
    y = L.Embedding(9, 5, mask_zero=True)(x)
    y = L.Bidirectional(L.LSTM(4, return_sequences=True))(y)
    y = L.Bidirectional(L.LSTM(3))(y)
    return keras.Model(x, L.Dense(2, activation="sigmoid")(y)), words(rng, (6, 7))


@case
def open_sequence(rng):
    x = keras.Input((None,), dtype="int32")
    y = L.Bidirectional(L.GRU(3, return_sequences=True))(L.Embedding(9, 4, mask_zero=True)(x))
    return keras.Model(x, L.Dense(2)(y)), words(rng, (5, 6))


@case
def open_image(rng):
    body = keras.Sequential([keras.Input((None, None, 2)), L.Conv2D(3, 3, activation="relu"), L.MaxPooling2D()], name="body")
    x = keras.Input((None, None, 2))
    return keras.Model(x, L.Dense(2)(L.GlobalAveragePooling2D()(body(x)))), normal(rng, 3, 9, 7, 2)
