"""recurrent.safetensors and models/recurrent_NAME.keras: masked sequences that start from given states.

A row may begin, pause and end with masked steps. Keras ignores the mask of a sequence that is called with initial states.
"""

import keras
from common import Fixture, normal, rng_for
from keras import layers as L
from models import add_case


def masked_steps(rng):
    x = normal(rng, 5, 6, 3)
    x[0, :2] = 0
    x[1, 2:4] = 0
    x[2, 4:] = 0
    x[3] = 0
    return x


def build(rng, kind, count, **options):
    x, states = keras.Input((6, 3)), [keras.Input((4,)) for _ in range(count)]
    layer = kind(4, return_state=True, **options)
    y = layer(L.Masking()(x), initial_state=states)
    return keras.Model([x, *states], list(y)), [masked_steps(rng)] + [normal(rng, 5, 4) for _ in states]


def cases():
    for short, kind, count in (("lstm", L.LSTM, 2), ("gru", L.GRU, 1), ("simple_rnn", L.SimpleRNN, 1)):
        yield short, kind, count, {}
        yield f"{short}_sequences", kind, count, {"return_sequences": True}
        yield f"{short}_backwards", kind, count, {"return_sequences": True, "go_backwards": True}
        yield f"{short}_zeros", kind, count, {"return_sequences": True, "zero_output_for_mask": True}


def make():
    fixture = Fixture("recurrent")
    for short, kind, count, options in cases():
        name = f"recurrent_{short}"
        keras.utils.clear_session()
        add_case(fixture, name, *build(rng_for(f"inputs of {name}"), kind, count, **options))
    fixture.save()
