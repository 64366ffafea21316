"""The layer configurations of layers.safetensors.

A case is (name, layer class, keyword arguments, input shapes, options).  Shapes include the batch.
"""

from keras import layers as L
from keras.src.applications.convnext import LayerScale, StochasticDepth
from keras.src.applications.inception_resnet_v2 import CustomScaleLayer

IMAGE = (3, 7, 6, 4)
SEQUENCE = (3, 9, 4)
VOLUME = (2, 5, 4, 6, 3)
ACTIVATIONS = (
    "linear relu relu6 leaky_relu elu celu selu gelu glu sigmoid log_sigmoid sparse_sigmoid hard_sigmoid tanh "
    "hard_tanh tanh_shrink hard_shrink soft_shrink softplus squareplus sparse_plus softsign silu hard_silu mish "
    "exponential softmax log_softmax"
).split()


def case(name, layer, shapes, training=False, /, **kwargs):
    shapes = shapes if isinstance(shapes, list) else [shapes]
    return dict(name=name, layer=layer, shapes=shapes, training=training, kwargs=kwargs)


def dense():
    yield case("dense", L.Dense, (5, 6), units=4)
    yield case("dense_no_bias", L.Dense, (3, 6), units=1, use_bias=False)
    yield case("dense_relu_3d", L.Dense, (3, 4, 5), units=7, activation="relu")
    yield case("dense_tanh_4d", L.Dense, (3, 2, 3, 5), units=4, activation="tanh")
    yield case("dense_softmax", L.Dense, (4, 6), units=5, activation="softmax")
    yield case("dense_gelu", L.Dense, (4, 6), units=5, activation="gelu")


def conv():
    c = L.Conv2D
    yield case("conv", c, IMAGE, filters=5, kernel_size=3)
    yield case("conv_same", c, IMAGE, filters=5, kernel_size=3, padding="same")
    yield case("conv_same_even_kernel", c, IMAGE, filters=3, kernel_size=(2, 4), padding="same")
    yield case("conv_1x1", c, IMAGE, filters=6, kernel_size=1)
    yield case("conv_1x1_stride2_same", c, IMAGE, filters=6, kernel_size=1, strides=2, padding="same")
    yield case("conv_5x3", c, (3, 9, 8, 2), filters=3, kernel_size=(5, 3))
    yield case("conv_5x3_same", c, (3, 9, 8, 2), filters=3, kernel_size=(5, 3), padding="same")
    yield case("conv_stride2_valid_odd", c, (3, 9, 7, 3), filters=4, kernel_size=3, strides=2)
    yield case("conv_stride2_valid_even", c, (3, 8, 6, 3), filters=4, kernel_size=3, strides=2)
    yield case("conv_stride2_same_odd", c, (3, 9, 7, 3), filters=4, kernel_size=3, strides=2, padding="same")
    yield case("conv_stride2_same_even", c, (3, 8, 6, 3), filters=4, kernel_size=3, strides=2, padding="same")
    yield case("conv_stride_2x3_same", c, (3, 9, 8, 3), filters=4, kernel_size=(3, 2), strides=(2, 3), padding="same")
    yield case("conv_stride4_same", c, (3, 11, 10, 2), filters=3, kernel_size=7, strides=4, padding="same")
    yield case("conv_dilation2", c, (3, 9, 8, 3), filters=4, kernel_size=3, dilation_rate=2)
    yield case("conv_dilation2x1_same", c, (3, 9, 8, 3), filters=4, kernel_size=3, dilation_rate=(2, 1), padding="same")
    yield case("conv_groups2", c, IMAGE, filters=6, kernel_size=3, groups=2)
    yield case("conv_groups4_same_stride2", c, IMAGE, filters=8, kernel_size=3, groups=4, strides=2, padding="same")
    yield case("conv_no_bias", c, IMAGE, filters=5, kernel_size=3, use_bias=False)
    yield case("conv_relu", c, IMAGE, filters=5, kernel_size=3, activation="relu")
    yield case("conv_sigmoid_same", c, IMAGE, filters=5, kernel_size=3, activation="sigmoid", padding="same")
    yield case("conv_one_channel", c, (4, 6, 6, 1), filters=3, kernel_size=3)
    yield case("conv_whole_input", c, (3, 4, 5, 2), filters=3, kernel_size=(4, 5))

    d = L.DepthwiseConv2D
    yield case("depthwise", d, IMAGE, kernel_size=3)
    yield case("depthwise_multiplier2", d, IMAGE, kernel_size=3, depth_multiplier=2)
    yield case("depthwise_same", d, IMAGE, kernel_size=(3, 2), padding="same")
    yield case("depthwise_stride2_same", d, IMAGE, kernel_size=3, strides=2, padding="same", depth_multiplier=2)
    yield case("depthwise_stride2_valid", d, IMAGE, kernel_size=3, strides=2, use_bias=False)
    yield case("depthwise_relu6_dilation", d, IMAGE, kernel_size=2, dilation_rate=2, activation="relu6")


def conv_ranks():
    """Convolutions of sequences and volumes, and channels first."""
    c = L.Conv1D
    yield case("conv1d", c, SEQUENCE, filters=5, kernel_size=3)
    yield case("conv1d_same_stride2", c, SEQUENCE, filters=5, kernel_size=3, strides=2, padding="same")
    yield case("conv1d_causal", c, SEQUENCE, filters=5, kernel_size=3, padding="causal", activation="relu")
    yield case("conv1d_causal_dilation", c, SEQUENCE, filters=5, kernel_size=3, padding="causal", dilation_rate=2)
    yield case("conv1d_causal_stride2", c, (3, 8, 4), filters=5, kernel_size=2, padding="causal", strides=2)
    yield case("conv1d_groups", c, SEQUENCE, filters=6, kernel_size=2, groups=2, use_bias=False)
    yield case("conv1d_wide", c, (2, 12, 16), filters=24, kernel_size=5, padding="same")
    yield case("conv1d_channels_first", c, (3, 4, 9), filters=5, kernel_size=3, data_format="channels_first")

    c = L.Conv2D
    yield case("conv_channels_first", c, (3, 4, 7, 6), filters=5, kernel_size=3, data_format="channels_first")
    yield case(
        "conv_channels_first_relu", c, (3, 4, 7, 6), filters=5, kernel_size=3, activation="relu",
        padding="same", strides=2, data_format="channels_first",
    )
    yield case(
        "conv_channels_first_softmax", c, (3, 4, 5, 6), filters=3, kernel_size=2, activation="softmax",
        data_format="channels_first", use_bias=False,
    )

    c = L.Conv3D
    yield case("conv3d", c, VOLUME, filters=4, kernel_size=3)
    yield case("conv3d_same", c, VOLUME, filters=4, kernel_size=(2, 3, 3), padding="same", activation="tanh")
    yield case("conv3d_1x1", c, VOLUME, filters=4, kernel_size=1)
    yield case("conv3d_stride2_same", c, VOLUME, filters=4, kernel_size=3, strides=2, padding="same")
    yield case("conv3d_stride_1x2x3", c, VOLUME, filters=4, kernel_size=2, strides=(1, 2, 3))
    yield case("conv3d_dilation", c, (2, 6, 5, 7, 2), filters=3, kernel_size=2, dilation_rate=(2, 1, 3))
    yield case("conv3d_groups", c, (2, 4, 4, 5, 4), filters=6, kernel_size=(3, 2, 2), groups=2, padding="same")
    yield case("conv3d_wide", c, (2, 3, 4, 5, 16), filters=20, kernel_size=3, padding="same", use_bias=False)
    yield case("conv3d_one_slice", c, (2, 1, 4, 5, 3), filters=4, kernel_size=(1, 2, 3))
    yield case(
        "conv3d_channels_first", c, (2, 3, 5, 4, 6), filters=4, kernel_size=3, padding="same",
        data_format="channels_first",
    )

    d = L.DepthwiseConv1D
    yield case("depthwise1d", d, SEQUENCE, kernel_size=3)
    yield case("depthwise1d_multiplier2_same", d, SEQUENCE, kernel_size=4, depth_multiplier=2, padding="same")
    yield case("depthwise1d_stride2", d, SEQUENCE, kernel_size=3, strides=2, use_bias=False, activation="relu")
    yield case("depthwise_channels_first", L.DepthwiseConv2D, (3, 4, 7, 6), kernel_size=3, data_format="channels_first")

    for rank, shape in ((1, SEQUENCE), (2, IMAGE)):
        s = (L.SeparableConv1D, L.SeparableConv2D)[rank - 1]
        yield case(f"separable{rank}d", s, shape, filters=5, kernel_size=3)
        yield case(
            f"separable{rank}d_same_multiplier2", s, shape, filters=3, kernel_size=2, depth_multiplier=2,
            padding="same", strides=2, activation="sigmoid",
        )
        yield case(f"separable{rank}d_no_bias", s, shape, filters=3, kernel_size=2, use_bias=False)
    yield case(
        "separable2d_channels_first", L.SeparableConv2D, (3, 4, 7, 6), filters=5, kernel_size=3,
        data_format="channels_first",
    )


def conv_transpose():
    shapes = {1: (3, 6, 4), 2: (3, 5, 4, 3), 3: (2, 3, 4, 2, 3)}
    for rank, layer in ((1, L.Conv1DTranspose), (2, L.Conv2DTranspose), (3, L.Conv3DTranspose)):
        name, shape = f"conv{rank}d_transpose", shapes[rank]
        for padding in ("valid", "same"):
            yield case(f"{name}_{padding}", layer, shape, filters=5, kernel_size=3, padding=padding)
            yield case(f"{name}_{padding}_stride2", layer, shape, filters=2, kernel_size=3, strides=2, padding=padding)
            yield case(f"{name}_{padding}_even", layer, shape, filters=2, kernel_size=4, strides=2, padding=padding)
            yield case(f"{name}_{padding}_stride3", layer, shape, filters=3, kernel_size=2, strides=3, padding=padding)
            yield case(f"{name}_{padding}_1", layer, shape, filters=3, kernel_size=1, strides=2, padding=padding)
            for extra in (0, 1):
                yield case(
                    f"{name}_{padding}_output_padding{extra}", layer, shape, filters=3, kernel_size=3, strides=2,
                    padding=padding, output_padding=extra,
                )
            yield case(
                f"{name}_{padding}_dilation", layer, shape, filters=3, kernel_size=2, dilation_rate=2, padding=padding
            )
    t = L.Conv2DTranspose
    yield case("conv2d_transpose_uneven", t, (2, 3, 4, 2), filters=3, kernel_size=(2, 5), strides=(3, 1), padding="same")
    yield case(
        "conv2d_transpose_wide", t, (2, 4, 4, 16), filters=24, kernel_size=3, strides=2, padding="same",
        activation="relu",
    )
    yield case("conv2d_transpose_no_bias", t, (2, 4, 4, 3), filters=2, kernel_size=4, use_bias=False)
    yield case(
        "conv2d_transpose_channels_first", t, (2, 3, 4, 5), filters=4, kernel_size=3, strides=2,
        padding="same", data_format="channels_first",
    )


def pooling_ranks():
    """Pooling of sequences and volumes, channels first, and adaptive pooling."""
    for short, kind in (("max_pool", "MaxPooling"), ("average_pool", "AveragePooling")):
        one, two, three = (getattr(L, f"{kind}{rank}D") for rank in (1, 2, 3))
        yield case(f"{short}1d", one, SEQUENCE, pool_size=2)
        yield case(f"{short}1d_3_stride2_same", one, SEQUENCE, pool_size=3, strides=2, padding="same")
        yield case(f"{short}1d_channels_first", one, (3, 4, 9), pool_size=2, data_format="channels_first")
        yield case(f"{short}_channels_first", two, (3, 4, 7, 6), pool_size=2, data_format="channels_first")
        yield case(f"{short}3d", three, VOLUME, pool_size=2)
        yield case(f"{short}3d_3_stride2_same", three, VOLUME, pool_size=3, strides=2, padding="same")
        yield case(f"{short}3d_uneven", three, VOLUME, pool_size=(3, 2, 1), strides=(1, 2, 3), padding="same")
        yield case(f"{short}3d_channels_first", three, (2, 3, 5, 4, 6), pool_size=2, data_format="channels_first")
    for short, kind in (("global_average_pool", "GlobalAveragePooling"), ("global_max_pool", "GlobalMaxPooling")):
        for rank, shape in ((1, SEQUENCE), (3, VOLUME)):
            layer = getattr(L, f"{kind}{rank}D")
            yield case(f"{short}{rank}d", layer, shape)
            yield case(f"{short}{rank}d_keepdims", layer, shape, keepdims=True)
            yield case(f"{short}{rank}d_channels_first", layer, shape, data_format="channels_first")
        layer = getattr(L, f"{kind}2D")
        yield case(f"{short}_channels_first", layer, IMAGE, data_format="channels_first", keepdims=True)
    for short, kind in (("adaptive_average_pool", "AdaptiveAveragePooling"), ("adaptive_max_pool", "AdaptiveMaxPooling")):
        one, two, three = (getattr(L, f"{kind}{rank}D") for rank in (1, 2, 3))
        yield case(f"{short}1d", one, SEQUENCE, output_size=3)
        yield case(f"{short}1d_uneven", one, SEQUENCE, output_size=4)
        yield case(f"{short}1d_6", one, SEQUENCE, output_size=6)
        yield case(f"{short}2d", two, IMAGE, output_size=(3, 2))
        yield case(f"{short}2d_channels_first", two, (3, 4, 7, 6), output_size=3, data_format="channels_first")
        yield case(f"{short}3d", three, VOLUME, output_size=(2, 3, 4))


def pooling():
    for short, layer in (("max_pool", L.MaxPooling2D), ("average_pool", L.AveragePooling2D)):
        yield case(short, layer, (3, 6, 8, 3), pool_size=(2, 2))
        yield case(f"{short}_uneven", layer, (3, 7, 5, 3), pool_size=2)
        yield case(f"{short}_3_stride2", layer, (3, 7, 8, 2), pool_size=3, strides=2)
        yield case(f"{short}_2_stride1_same", layer, (3, 5, 4, 2), pool_size=2, strides=1, padding="same")
        yield case(f"{short}_3_stride2_same", layer, (3, 7, 8, 2), pool_size=3, strides=2, padding="same")
        yield case(f"{short}_3x2_stride_1x3_same", layer, (3, 6, 7, 2), pool_size=(3, 2), strides=(1, 3), padding="same")
        yield case(f"{short}_2_stride3", layer, (3, 8, 7, 2), pool_size=2, strides=3)
    for short, layer in (("global_average_pool", L.GlobalAveragePooling2D), ("global_max_pool", L.GlobalMaxPooling2D)):
        yield case(short, layer, IMAGE)
        yield case(f"{short}_keepdims", layer, IMAGE, keepdims=True)


def normalization():
    b = L.BatchNormalization
    for mode, training in (("training", True), ("inference", False)):
        yield case(f"batch_norm_{mode}_2d", b, (5, 4), training)
        yield case(f"batch_norm_{mode}_4d", b, IMAGE, training)
        yield case(f"batch_norm_{mode}_3d", b, (3, 5, 2), training)
        yield case(f"batch_norm_{mode}_no_scale", b, (5, 4), training, scale=False)
        yield case(f"batch_norm_{mode}_no_center", b, IMAGE, training, center=False)
        yield case(f"batch_norm_{mode}_plain", b, (5, 4), training, center=False, scale=False)
        yield case(f"batch_norm_{mode}_options", b, IMAGE, training, momentum=0.7, epsilon=1e-5)
        yield case(f"batch_norm_{mode}_frozen", b, IMAGE, training, trainable=False)
    yield case("batch_norm_training_axis1", b, (3, 4, 5, 2), True, axis=1)

    n = L.LayerNormalization
    yield case("layer_norm", n, (4, 6))
    yield case("layer_norm_3d", n, (3, 4, 5))
    yield case("layer_norm_4d", n, IMAGE)
    yield case("layer_norm_epsilon", n, (4, 6), epsilon=0.1)
    yield case("layer_norm_no_center", n, (4, 6), center=False)
    yield case("layer_norm_no_scale", n, (3, 4, 5), scale=False)
    yield case("layer_norm_plain", n, (4, 6), center=False, scale=False)
    yield case("layer_norm_two_axes", n, (3, 4, 5), axis=[-2, -1])

    g = L.GroupNormalization
    yield case("group_norm", g, IMAGE, groups=2)
    yield case("group_norm_2d", g, (4, 6), groups=3)
    yield case("group_norm_each", g, IMAGE, groups=-1)
    yield case("group_norm_one", g, SEQUENCE, groups=1, epsilon=0.1)
    yield case("group_norm_axis1", g, (3, 4, 5, 2), groups=2, axis=1)
    yield case("group_norm_no_center", g, IMAGE, groups=2, center=False)
    yield case("group_norm_no_scale", g, IMAGE, groups=4, scale=False)

    r = L.RMSNormalization
    yield case("rms_norm", r, (4, 6))
    yield case("rms_norm_3d", r, (3, 4, 5), epsilon=0.1)
    yield case("rms_norm_two_axes", r, (3, 4, 5), axis=[-2, -1])

    u = L.UnitNormalization
    yield case("unit_norm", u, (4, 6))
    yield case("unit_norm_4d", u, IMAGE)
    yield case("unit_norm_axis1", u, (3, 4, 5), axis=1)
    yield case("unit_norm_two_axes", u, (3, 4, 5), axis=[1, -1])


def shaping():
    yield case("dropout_inference", L.Dropout, (4, 6), rate=0.5)
    yield case("dropout_inference_4d", L.Dropout, IMAGE, rate=0.3)
    yield case("spatial_dropout_inference", L.SpatialDropout2D, IMAGE, rate=0.4)
    yield case("spatial_dropout1d_inference", L.SpatialDropout1D, SEQUENCE, rate=0.4)
    yield case("spatial_dropout3d_inference", L.SpatialDropout3D, VOLUME, rate=0.4)
    yield case("spatial_dropout_channels_first", L.SpatialDropout2D, IMAGE, rate=0.4, data_format="channels_first")
    yield case("gaussian_noise_inference", L.GaussianNoise, (4, 6), stddev=0.3)
    yield case("gaussian_dropout_inference", L.GaussianDropout, (4, 6), rate=0.3)
    yield case("alpha_dropout_inference", L.AlphaDropout, (4, 6), rate=0.3)
    yield case("identity", L.Identity, (4, 6))
    yield case("repeat_vector", L.RepeatVector, (4, 6), n=3)
    yield case("flatten", L.Flatten, IMAGE)
    yield case("flatten_channels_first", L.Flatten, IMAGE, data_format="channels_first")
    yield case("flatten_2d", L.Flatten, (4, 6))
    yield case("flatten_3d", L.Flatten, (3, 4, 5))
    yield case("flatten_1d", L.Flatten, (4,))
    yield case("reshape", L.Reshape, (3, 12), target_shape=(3, 4))
    yield case("reshape_infer", L.Reshape, (3, 4, 6), target_shape=(2, -1, 3))
    yield case("reshape_infer_flat", L.Reshape, (3, 4, 6), target_shape=(-1,))
    yield case("permute", L.Permute, (3, 4, 5), dims=(2, 1))
    yield case("permute_4d", L.Permute, IMAGE, dims=(3, 1, 2))
    yield case("zero_padding", L.ZeroPadding2D, (3, 4, 3, 2))
    yield case("zero_padding_pair", L.ZeroPadding2D, (3, 4, 3, 2), padding=(0, 2))
    yield case("zero_padding_sides", L.ZeroPadding2D, (3, 4, 3, 2), padding=((1, 0), (2, 3)))
    yield case("zero_padding_channels_first", L.ZeroPadding2D, (3, 2, 4, 3), padding=(0, 2), data_format="channels_first")
    yield case("zero_padding1d", L.ZeroPadding1D, SEQUENCE)
    yield case("zero_padding1d_ends", L.ZeroPadding1D, SEQUENCE, padding=(0, 2))
    yield case("zero_padding1d_channels_first", L.ZeroPadding1D, SEQUENCE, padding=2, data_format="channels_first")
    yield case("zero_padding3d", L.ZeroPadding3D, VOLUME)
    yield case("zero_padding3d_sides", L.ZeroPadding3D, VOLUME, padding=((1, 0), (2, 3), (0, 1)))
    yield case("zero_padding3d_channels_first", L.ZeroPadding3D, VOLUME, padding=(1, 0, 2), data_format="channels_first")
    yield case("cropping1d", L.Cropping1D, SEQUENCE)
    yield case("cropping1d_ends", L.Cropping1D, SEQUENCE, cropping=(0, 3))
    yield case("cropping3d", L.Cropping3D, VOLUME)
    yield case("cropping3d_sides", L.Cropping3D, VOLUME, cropping=((1, 0), (2, 1), (0, 3)))
    yield case("cropping_channels_first", L.Cropping2D, IMAGE, cropping=((1, 0), (0, 2)), data_format="channels_first")
    yield case("cropping", L.Cropping2D, (3, 6, 5, 2), cropping=1)
    yield case("cropping_pair", L.Cropping2D, (3, 6, 5, 2), cropping=(2, 0))
    yield case("cropping_sides", L.Cropping2D, (3, 6, 7, 2), cropping=((1, 0), (2, 3)))
    yield case("up_sampling1d", L.UpSampling1D, SEQUENCE, size=3)
    yield case("up_sampling3d", L.UpSampling3D, VOLUME)
    yield case("up_sampling3d_1x2x3", L.UpSampling3D, VOLUME, size=(1, 2, 3))
    yield case("up_sampling3d_channels_first", L.UpSampling3D, VOLUME, data_format="channels_first")
    yield case("up_sampling_channels_first", L.UpSampling2D, IMAGE, size=(1, 2), data_format="channels_first")
    for how in ("bicubic", "lanczos3", "lanczos5"):
        yield case(f"up_sampling_{how}", L.UpSampling2D, (2, 4, 3, 2), size=(2, 3), interpolation=how)
    for how in ("nearest", "bilinear"):
        yield case(f"up_sampling_{how}", L.UpSampling2D, (3, 4, 3, 2), interpolation=how)
        yield case(f"up_sampling_{how}_3x2", L.UpSampling2D, (3, 3, 4, 2), size=(3, 2), interpolation=how)
        yield case(f"up_sampling_{how}_1x4", L.UpSampling2D, (3, 3, 2, 1), size=(1, 4), interpolation=how)


def activation():
    for name in ACTIVATIONS:
        # It halves the last axis.
        columns = 10 if name == "glu" else 9
        yield case(f"activation_{name}", L.Activation, (4, columns), activation=name)
    for name in ("softmax", "log_softmax", "gelu", "relu"):
        yield case(f"activation_{name}_4d", L.Activation, (3, 2, 3, 5), activation=name)
    yield case("relu", L.ReLU, (4, 9))
    yield case("relu_max", L.ReLU, (4, 9), max_value=1.5)
    yield case("relu_slope", L.ReLU, (4, 9), negative_slope=0.1)
    yield case("relu_threshold", L.ReLU, (4, 9), threshold=0.7)
    yield case("relu_all", L.ReLU, (5, 9), max_value=2.0, negative_slope=0.2, threshold=0.5)
    yield case("leaky_relu", L.LeakyReLU, (4, 9))
    yield case("leaky_relu_slope", L.LeakyReLU, IMAGE, negative_slope=0.05)
    yield case("elu", L.ELU, (4, 9))
    yield case("elu_alpha", L.ELU, IMAGE, alpha=0.5)
    yield case("prelu", L.PReLU, (4, 9))
    yield case("prelu_shared", L.PReLU, IMAGE, shared_axes=[1, 2])
    yield case("prelu_shared_axis2", L.PReLU, IMAGE, shared_axes=2)
    yield case("softmax", L.Softmax, (4, 9))
    yield case("softmax_3d", L.Softmax, (3, 4, 5))
    yield case("softmax_axis1", L.Softmax, (3, 4, 5), axis=1)


def merging():
    yield case("concatenate", L.Concatenate, [(3, 4), (3, 2), (3, 5)])
    yield case("concatenate_4d", L.Concatenate, [(3, 4, 5, 2), (3, 4, 5, 3)])
    yield case("concatenate_axis1", L.Concatenate, [(3, 4, 2), (3, 1, 2), (3, 3, 2)], axis=1)
    for layer in (L.Add, L.Subtract, L.Multiply, L.Average, L.Maximum, L.Minimum):
        short = layer.__name__.lower()
        yield case(short, layer, [(3, 4), (3, 4)])
        yield case(f"{short}_broadcast", layer, [(2, 1, 3), (2, 4, 3)])
        yield case(f"{short}_broadcast_rank", layer, [(2, 3), (2, 4, 3)])
        if layer is not L.Subtract:
            yield case(f"{short}_three", layer, [(3, 4, 2)] * 3)
            yield case(f"{short}_three_broadcast", layer, [(2, 4, 1, 3), (2, 1, 5, 3), (2, 4, 5, 1)])


def preprocessing():
    yield case("rescaling", L.Rescaling, IMAGE, scale=1 / 255)
    yield case("rescaling_offset", L.Rescaling, (4, 6), scale=1 / 127.5, offset=-1.0)
    yield case("normalization", L.Normalization, (4, 3), mean=[0.5, -1.0, 2.0], variance=[0.25, 4.0, 1.5])
    yield case("normalization_scalar", L.Normalization, IMAGE, axis=None, mean=0.3, variance=2.0)
    yield case("normalization_4d", L.Normalization, (3, 4, 5, 2), mean=[0.5, -1.0], variance=[0.25, 4.0])
    yield case("normalization_invert", L.Normalization, (4, 2), mean=[0.5, -1.0], variance=[0.25, 4.0], invert=True)
    yield case("normalization_zero_variance", L.Normalization, (4, 2), mean=[0.0, 0.0], variance=[0.0, 4.0])
    yield case("embedding", L.Embedding, (5,), input_dim=7, output_dim=3)
    yield case("embedding_2d", L.Embedding, (3, 4), input_dim=6, output_dim=5)
    yield case("embedding_3d", L.Embedding, (2, 3, 2), input_dim=5, output_dim=4)


def sequences():
    steps = (3, 4, 5)
    yield case("masking", L.Masking, steps, mask_value=0.5)
    for short, layer in (("lstm", L.LSTM), ("gru", L.GRU), ("simple_rnn", L.SimpleRNN)):
        yield case(short, layer, steps, units=3)
        yield case(f"{short}_sequences", layer, steps, units=2, return_sequences=True, dropout=0.3)
    yield case("rnn", L.RNN, steps, cell=L.GRUCell(3))
    yield case("bidirectional", L.Bidirectional, steps, layer=L.LSTM(2))
    yield case("time_distributed", L.TimeDistributed, steps, layer=L.Dense(2))
    yield case("layer_scale", LayerScale, IMAGE, init_values=0.5, projection_dim=4)
    yield case("stochastic_depth", StochasticDepth, IMAGE, drop_path_rate=0.3)
    yield case("custom_scale", CustomScaleLayer, [IMAGE, IMAGE], scale=0.3)
    yield case("attention", L.Attention, [(3, 4, 5), (3, 6, 5)])
    yield case("attention_scale", L.Attention, [(3, 4, 5), (3, 6, 2), (3, 6, 5)], use_scale=True)
    yield case("attention_concat", L.Attention, [(3, 4, 5), (3, 6, 5)], score_mode="concat", use_scale=True)
    yield case("additive_attention", L.AdditiveAttention, [(3, 4, 5), (3, 6, 5)])
    yield case("einsum_dense", L.EinsumDense, (3, 4, 5), equation="abc,cd->abd", output_shape=(None, 6), bias_axes="d")
    yield case("einsum_dense_heads", L.EinsumDense, (3, 4, 5), equation="abc,cde->abde", output_shape=(4, 2, 3), bias_axes="de", activation="relu")
    yield case("einsum_dense_ellipsis", L.EinsumDense, (3, 2, 4, 5), equation="...x,xy->...y", output_shape=4, bias_axes="y")
    yield case("einsum_dense_outer_axis", L.EinsumDense, (3, 4, 5), equation="abc,bd->adc", output_shape=(6, None))


def all_cases():
    windows = (conv, conv_ranks, conv_transpose, pooling, pooling_ranks)
    for group in (dense, *windows, normalization, shaping, activation, merging, preprocessing, sequences):
        yield from group()
