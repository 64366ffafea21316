"""Models with attention, registered in the cases of model_cases.py."""

import keras
import numpy as np
from common import normal
from keras import layers as L
from model_cases import case, words


def attention(name, shapes=((4, 6, 5), (4, 6, 5)), call=None, **options):
    """Multi-head attention of a query and a value (and a key) of these shapes."""

    def build(rng):
        inputs = [keras.Input(shape[1:]) for shape in shapes]
        layer = options.pop("layer", None) or L.MultiHeadAttention(**({"num_heads": 2, "key_dim": 3} | options))
        y = layer(*inputs, **(call or {}))
        return keras.Model(inputs, y), [normal(rng, *shape) for shape in shapes]

    build.__name__ = name
    case(build)


attention("multi_head_attention")
attention("multi_head_attention_causal", call={"use_causal_mask": True})
attention("multi_head_attention_cross", ((3, 4, 5), (3, 6, 2), (3, 6, 7)), num_heads=3)
attention("multi_head_attention_no_bias", use_bias=False, output_shape=4)
attention("multi_head_attention_scores", call={"return_attention_scores": True})
attention("multi_head_attention_gate_window", use_gate=True, sliding_window=2)
attention("multi_head_attention_one_query", ((3, 1, 4), (3, 5, 4)))
attention("multi_head_attention_2d", ((2, 3, 2, 4), (2, 3, 2, 4)), attention_axes=(1, 2))
attention("multi_head_attention_2d_rows", ((2, 3, 2, 4), (2, 3, 2, 4)), attention_axes=(2,))
attention("grouped_query_attention", layer=L.GroupQueryAttention(3, 4, 2))
attention("grouped_query_attention_causal", layer=L.GroupQueryAttention(3, 4, 1, use_gate=True), call={"use_causal_mask": True})


@case
def attention_mask(rng):
    x, mask = keras.Input((5, 4)), keras.Input((5, 5), dtype="int32")
    y = L.MultiHeadAttention(2, 3)(x, x, attention_mask=mask)
    data = rng.integers(0, 2, (4, 5, 5)).astype("int32")
    data[0, 2] = 0
    return keras.Model([x, mask], y), [normal(rng, 4, 5, 4), data]


@case
def masked_self_attention(rng):
    x = keras.Input((5,), dtype="int32")
    y = L.Embedding(9, 4, mask_zero=True)(x)
    y = L.MultiHeadAttention(2, 3)(y, y)
    return keras.Model(x, L.GlobalAveragePooling1D()(L.Dense(3)(y))), np.maximum(words(rng, (6, 5)), np.eye(6, 5, dtype="int32")[[0] * 6])


@case
def masked_dot_attention(rng):
    a, b = keras.Input((5,), dtype="int32"), keras.Input((4,), dtype="int32")
    embed = L.Embedding(9, 4, mask_zero=True)
    y = L.Attention()([embed(a), embed(b)])
    z = L.AdditiveAttention()([embed(a), embed(b)])
    return keras.Model([a, b], [L.Dense(2)(y), z]), [words(rng, (6, 5)), words(rng, (6, 4))[::-1].copy()]


def transformer_block(x, heads, width, causal=False):
    y = L.LayerNormalization(epsilon=1e-6)(x)
    y = L.MultiHeadAttention(heads, width // heads)(y, y, use_causal_mask=causal)
    x = L.Add()([x, y])
    y = L.LayerNormalization(epsilon=1e-6)(x)
    y = L.Dense(2 * width, activation="gelu")(y)
    return L.Add()([x, L.Dense(width)(y)])


@case
def small_gpt(rng):
    tokens = keras.Input((6,), dtype="int32")
    x = L.Embedding(11, 8)(tokens)
    for _ in range(2):
        x = transformer_block(x, 2, 8, causal=True)
    x = L.LayerNormalization(epsilon=1e-6)(x)
    return keras.Model(tokens, L.Dense(11)(x)), words(rng, (4, 6), 11, padding=False)


@case
def small_vit(rng):
    image = keras.Input((8, 8, 3))
    x = L.Conv2D(8, 4, strides=4)(image)
    x = L.Reshape((4, 8))(x)
    x = transformer_block(x, 2, 8)
    x = L.LayerNormalization(epsilon=1e-6)(x)
    return keras.Model(image, L.Dense(3)(L.Flatten()(x))), normal(rng, 3, 8, 8, 3)


@case
def text_cnn(rng):
    x = keras.Input((12,), dtype="int32")
    y = L.Embedding(20, 6)(x)
    y = L.Conv1D(5, 3, padding="valid", activation="relu", strides=2)(y)
    y = L.Conv1D(4, 2, padding="causal")(y)
    return keras.Model(x, L.Dense(2)(L.GlobalMaxPooling1D()(y))), words(rng, (5, 12), 20, padding=False)


@case
def small_unet(rng):
    image = keras.Input((8, 8, 2))
    down = L.Conv2D(4, 3, padding="same", activation="relu")(image)
    x = L.MaxPooling2D()(down)
    x = L.SeparableConv2D(6, 3, padding="same", activation="relu")(x)
    x = L.Conv2DTranspose(4, 3, strides=2, padding="same", activation="relu")(x)
    x = L.Concatenate()([x, down])
    return keras.Model(image, L.Conv2D(2, 1)(x)), normal(rng, 2, 8, 8, 2)
