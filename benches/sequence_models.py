"""Saves the sequence networks of docs/performance.md as Keras models: sequence_models.py DIRECTORY

lstm: an embedding and two bidirectional LSTMs; transformer: one small encoder block; textcnn: convolutions over tokens. All read
200 tokens of 20,000. `phalanx bench DIRECTORY/lstm.keras --global-batch-size 32` measures one.
"""

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"

import keras
from keras import layers as L

TOKENS, STEPS = 20000, 200


def lstm(x):
    x = L.Embedding(TOKENS, 128)(x)
    x = L.Bidirectional(L.LSTM(64, return_sequences=True))(x)
    return L.Bidirectional(L.LSTM(64))(x)


def transformer(x):
    x = L.Embedding(TOKENS, 32)(x) + L.Embedding(STEPS, 32)(keras.ops.arange(STEPS))
    n = L.LayerNormalization()(x)
    x = x + L.MultiHeadAttention(2, 16)(n, n)
    x = x + L.Dense(32)(L.Dense(32, activation="gelu")(L.LayerNormalization()(x)))
    return L.Dense(20, activation="relu")(L.GlobalAveragePooling1D()(x))


def textcnn(x):
    x = L.Embedding(TOKENS, 128)(x)
    for _ in range(2):
        x = L.Conv1D(128, 7, 3, activation="relu")(x)
    return L.Dense(128, activation="relu")(L.GlobalMaxPooling1D()(x))


def main():
    for body in (lstm, transformer, textcnn):
        x = keras.Input((STEPS,), dtype="int32")
        model = keras.Model(x, L.Dense(2)(body(x)))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.AdamW(3e-4, weight_decay=0.1), loss, metrics=["accuracy"])
        model.save(os.path.join(sys.argv[1], f"{body.__name__}.keras"))


if __name__ == "__main__":
    main()
