"""The layer configurations of layers.safetensors.

A case is (name, layer class, keyword arguments, input shapes, options).  Shapes include the batch.
"""

from keras import layers as L

IMAGE = (3, 7, 6, 4)
ACTIVATIONS = (
    "linear relu relu6 leaky_relu elu celu selu gelu glu sigmoid log_sigmoid sparse_sigmoid hard_sigmoid tanh "
    "hard_tanh tanh_shrink hard_shrink soft_shrink softplus squareplus sparse_plus softsign silu hard_silu mish "
    "exponential softmax log_softmax"
).split()


def case(name, layer, shapes, training=False, **kwargs):
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


def shaping():
    yield case("dropout_inference", L.Dropout, (4, 6), rate=0.5)
    yield case("dropout_inference_4d", L.Dropout, IMAGE, rate=0.3)
    yield case("spatial_dropout_inference", L.SpatialDropout2D, IMAGE, rate=0.4)
    yield case("flatten", L.Flatten, IMAGE)
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
    yield case("cropping", L.Cropping2D, (3, 6, 5, 2), cropping=1)
    yield case("cropping_pair", L.Cropping2D, (3, 6, 5, 2), cropping=(2, 0))
    yield case("cropping_sides", L.Cropping2D, (3, 6, 7, 2), cropping=((1, 0), (2, 3)))
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


def all_cases():
    for group in (dense, conv, pooling, normalization, shaping, activation, merging, preprocessing):
        yield from group()
