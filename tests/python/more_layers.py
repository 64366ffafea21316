"""more_layers.safetensors: as layers.safetensors, for layers that came later."""

import layers
from keras import layers as L
from layer_cases import case


def all_cases():
    yield case("activity_regularization", L.ActivityRegularization, (4, 6), l1=0.1, l2=0.2)
    yield case("activation_sparsemax", L.Activation, (5, 6), activation="sparsemax")
    yield case("dot_vectors", L.Dot, [(4, 6), (4, 6)], axes=1)
    yield case("dot_normalized", L.Dot, [(4, 6), (4, 6)], axes=-1, normalize=True)
    yield case("dot_matrices", L.Dot, [(3, 5, 4), (3, 2, 5)], axes=(1, 2))
    yield case("dot_matrix_vector", L.Dot, [(3, 5, 4), (3, 4)], axes=(2, 1))
    yield case("dot_vector_matrix", L.Dot, [(3, 4), (3, 4, 2)], axes=1, normalize=True)
    yield case("dot_high_ranks", L.Dot, [(2, 3, 4, 5), (2, 6, 4, 2)], axes=[2, 2])
    yield case("dot_high_ranks_negative", L.Dot, [(2, 3, 4, 5), (2, 6, 7, 5)], axes=-1)
    yield case("dense_activity", L.Dense, (4, 6), units=3, activity_regularizer="l2")
    yield case("flatten_activity", L.Flatten, (4, 2, 3), activity_regularizer="l1")
    yield case("conv_lstm_1d", L.ConvLSTM1D, (2, 3, 5, 2), filters=3, kernel_size=3, padding="same")
    yield case(
        "conv_lstm_1d_strides",
        L.ConvLSTM1D,
        (2, 3, 7, 2),
        filters=2,
        kernel_size=3,
        strides=2,
        return_sequences=True,
        go_backwards=True,
        use_bias=False,
    )
    yield case("conv_lstm_2d", L.ConvLSTM2D, (2, 3, 5, 4, 2), filters=2, kernel_size=(3, 2), return_sequences=True)
    yield case(
        "conv_lstm_2d_dilated",
        L.ConvLSTM2D,
        (2, 2, 6, 6, 2),
        filters=2,
        kernel_size=2,
        dilation_rate=2,
        activation="relu",
        recurrent_activation="hard_sigmoid",
        unit_forget_bias=False,
    )
    yield case(
        "conv_lstm_2d_first", L.ConvLSTM2D, (2, 3, 2, 5, 4), filters=3, kernel_size=3, padding="same", data_format="channels_first"
    )
    yield case("conv_lstm_3d", L.ConvLSTM3D, (2, 2, 3, 4, 3, 2), filters=2, kernel_size=2, padding="same")
    yield case("reversible_embedding", L.ReversibleEmbedding, (3, 5), input_dim=7, output_dim=4)
    yield case("spectral_dense", L.SpectralNormalization, (4, 6), layer=L.Dense(3), power_iterations=2)
    yield case("spectral_dense_training", L.SpectralNormalization, (4, 6), True, layer=L.Dense(3))
    yield case(
        "spectral_conv_training", L.SpectralNormalization, (2, 5, 5, 2), True, layer=L.Conv2D(3, 3), power_iterations=3
    )


def make():
    layers.make("more_layers", all_cases())
