"""Models of the published Keras examples (keras.io), as those programs build them, with smaller sizes.

    @example(...) def NAME(): return model

Options: `sizes` gives the sizes of inputs with open ones, by the input's index; `integers` bounds integer inputs, and
`tokens` says that inputs of type float hold integers too; `loss` and `optimizer` compile the model; `chaotic` says that
rounding moves the trained weights (deep networks with batch statistics of few samples, values next to a kink), so that
the tolerance must follow from Keras' own spread. Dropout rates become zero, because random numbers differ from Keras'.
"""

import keras
from keras import layers as L
from keras import ops

EXAMPLES = {}


def example(**options):
    def add(build):
        EXAMPLES[build.__name__] = (build, options)
        return build

    return add


# Vision.


@example(loss="categorical_crossentropy", optimizer="adam")
def mnist_convnet():
    return keras.Sequential([
        keras.Input((28, 28, 1)),
        L.Conv2D(32, kernel_size=(3, 3), activation="relu"),
        L.MaxPooling2D(pool_size=(2, 2)),
        L.Conv2D(64, kernel_size=(3, 3), activation="relu"),
        L.MaxPooling2D(pool_size=(2, 2)),
        L.Flatten(),
        L.Dropout(0.5),
        L.Dense(10, activation="softmax"),
    ])


@example(loss="binary_crossentropy", optimizer="sgd", chaotic=True)
def image_classification_from_scratch():
    inputs = keras.Input((48, 48, 3))
    x = L.Rescaling(1.0 / 255)(inputs)
    x = L.Conv2D(16, 3, strides=2, padding="same")(x)
    x = L.BatchNormalization()(x)
    x = L.Activation("relu")(x)
    previous = x
    for size in [24, 32]:
        x = L.Activation("relu")(x)
        x = L.SeparableConv2D(size, 3, padding="same")(x)
        x = L.BatchNormalization()(x)
        x = L.Activation("relu")(x)
        x = L.SeparableConv2D(size, 3, padding="same")(x)
        x = L.BatchNormalization()(x)
        x = L.MaxPooling2D(3, strides=2, padding="same")(x)
        residual = L.Conv2D(size, 1, strides=2, padding="same")(previous)
        x = L.add([x, residual])
        previous = x
    x = L.SeparableConv2D(40, 3, padding="same")(x)
    x = L.BatchNormalization()(x)
    x = L.Activation("relu")(x)
    x = L.GlobalAveragePooling2D()(x)
    x = L.Dropout(0.25)(x)
    return keras.Model(inputs, L.Dense(1, activation="sigmoid")(x))


@example(loss="categorical_crossentropy")
def image_classification_efficientnet_fine_tuning():
    inputs = L.Input(shape=(64, 64, 3))
    model = keras.applications.EfficientNetB0(include_top=False, input_tensor=inputs, weights=None)
    model.trainable = False
    x = L.GlobalAveragePooling2D(name="avg_pool")(model.output)
    x = L.BatchNormalization()(x)
    x = L.Dropout(0.2, name="top_dropout")(x)
    outputs = L.Dense(7, activation="softmax", name="pred")(x)
    return keras.Model(inputs, outputs, name="EfficientNet")


@example(loss="binary_crossentropy")
def image_classification_3d():
    inputs = keras.Input((32, 32, 16, 1))
    x = L.Conv3D(filters=8, kernel_size=3, activation="relu")(inputs)
    x = L.MaxPool3D(pool_size=2)(x)
    x = L.BatchNormalization()(x)
    x = L.Conv3D(filters=8, kernel_size=3, activation="relu")(x)
    x = L.MaxPool3D(pool_size=2)(x)
    x = L.BatchNormalization()(x)
    x = L.GlobalAveragePooling3D()(x)
    x = L.Dense(units=16, activation="relu")(x)
    x = L.Dropout(0.3)(x)
    return keras.Model(inputs, L.Dense(units=1, activation="sigmoid")(x), name="3dcnn")


@example(loss="sparse_categorical_crossentropy")
def oxford_pets_image_segmentation():
    inputs = keras.Input(shape=(32, 32, 3))
    x = L.Conv2D(16, 3, strides=2, padding="same")(inputs)
    x = L.BatchNormalization()(x)
    x = L.Activation("relu")(x)
    previous = x
    for filters in [16, 24]:
        x = L.Activation("relu")(x)
        x = L.SeparableConv2D(filters, 3, padding="same")(x)
        x = L.BatchNormalization()(x)
        x = L.Activation("relu")(x)
        x = L.SeparableConv2D(filters, 3, padding="same")(x)
        x = L.BatchNormalization()(x)
        x = L.MaxPooling2D(3, strides=2, padding="same")(x)
        residual = L.Conv2D(filters, 1, strides=2, padding="same")(previous)
        x = L.add([x, residual])
        previous = x
    for filters in [24, 16, 8]:
        x = L.Activation("relu")(x)
        x = L.Conv2DTranspose(filters, 3, padding="same")(x)
        x = L.BatchNormalization()(x)
        x = L.Activation("relu")(x)
        x = L.Conv2DTranspose(filters, 3, padding="same")(x)
        x = L.BatchNormalization()(x)
        x = L.UpSampling2D(2)(x)
        residual = L.UpSampling2D(2)(previous)
        residual = L.Conv2D(filters, 1, padding="same")(residual)
        x = L.add([x, residual])
        previous = x
    return keras.Model(inputs, L.Conv2D(3, 3, activation="softmax", padding="same")(x))


def convolution_block(block_input, num_filters=32, kernel_size=3, dilation_rate=1, use_bias=False):
    x = L.Conv2D(
        num_filters,
        kernel_size=kernel_size,
        dilation_rate=dilation_rate,
        padding="same",
        use_bias=use_bias,
        kernel_initializer=keras.initializers.HeNormal(),
    )(block_input)
    x = L.BatchNormalization()(x)
    return ops.nn.relu(x)


@example(loss="sparse_categorical_crossentropy", optimizer=keras.optimizers.SGD(1e-5), chaotic=True)
def deeplabv3_plus():
    image_size = 64
    model_input = keras.Input(shape=(image_size, image_size, 3))
    preprocessed = keras.applications.resnet50.preprocess_input(model_input)
    resnet50 = keras.applications.ResNet50(weights=None, include_top=False, input_tensor=preprocessed)
    x = resnet50.get_layer("conv4_block6_2_relu").output
    dims = x.shape
    y = L.AveragePooling2D(pool_size=(dims[-3], dims[-2]))(x)
    y = convolution_block(y, kernel_size=1, use_bias=True)
    pool = L.UpSampling2D(size=(dims[-3] // y.shape[1], dims[-2] // y.shape[2]), interpolation="bilinear")(y)
    parts = [convolution_block(x, kernel_size=1 if rate == 1 else 3, dilation_rate=rate) for rate in (1, 6, 12, 18)]
    x = L.Concatenate(axis=-1)([pool, *parts])
    x = convolution_block(x, kernel_size=1)
    input_a = L.UpSampling2D(
        size=(image_size // 4 // x.shape[1], image_size // 4 // x.shape[2]), interpolation="bilinear"
    )(x)
    input_b = resnet50.get_layer("conv2_block3_2_relu").output
    input_b = convolution_block(input_b, num_filters=48, kernel_size=1)
    x = L.Concatenate(axis=-1)([input_a, input_b])
    x = convolution_block(x)
    x = convolution_block(x)
    x = L.UpSampling2D(size=(image_size // x.shape[1], image_size // x.shape[2]), interpolation="bilinear")(x)
    return keras.Model(model_input, L.Conv2D(20, kernel_size=(1, 1), padding="same")(x))


@example(loss="binary_crossentropy", optimizer="adam")
def autoencoder():
    inputs = L.Input(shape=(28, 28, 1))
    x = L.Conv2D(32, (3, 3), activation="relu", padding="same")(inputs)
    x = L.MaxPooling2D((2, 2), padding="same")(x)
    x = L.Conv2D(32, (3, 3), activation="relu", padding="same")(x)
    x = L.MaxPooling2D((2, 2), padding="same")(x)
    x = L.Conv2DTranspose(32, (3, 3), strides=2, activation="relu", padding="same")(x)
    x = L.Conv2DTranspose(32, (3, 3), strides=2, activation="relu", padding="same")(x)
    x = L.Conv2D(1, (3, 3), activation="sigmoid", padding="same")(x)
    return keras.Model(inputs, x)


@example(loss="categorical_crossentropy")
def captcha_ocr():
    inputs = L.Input(shape=(80, 24, 1), name="image")
    x = L.Conv2D(8, (3, 3), activation="relu", kernel_initializer="he_normal", padding="same", name="Conv1")(inputs)
    x = L.MaxPooling2D((2, 2), name="pool1")(x)
    x = L.Conv2D(16, (3, 3), activation="relu", kernel_initializer="he_normal", padding="same", name="Conv2")(x)
    x = L.MaxPooling2D((2, 2), name="pool2")(x)
    x = L.Reshape(target_shape=(20, 6 * 16), name="reshape")(x)
    x = L.Dense(24, activation="relu", name="dense1")(x)
    x = L.Dropout(0.2)(x)
    x = L.Bidirectional(L.LSTM(16, return_sequences=True, dropout=0.25))(x)
    x = L.Bidirectional(L.LSTM(12, return_sequences=True, dropout=0.25))(x)
    return keras.Model(inputs, L.Dense(21, activation="softmax", name="dense2")(x))


@example(loss="binary_crossentropy", sizes={0: (4, 12, 12, 1)})
def conv_lstm():
    inp = L.Input(shape=(None, 12, 12, 1))
    x = L.ConvLSTM2D(filters=8, kernel_size=(5, 5), padding="same", return_sequences=True, activation="relu")(inp)
    x = L.BatchNormalization()(x)
    x = L.ConvLSTM2D(filters=8, kernel_size=(3, 3), padding="same", return_sequences=True, activation="relu")(x)
    x = L.BatchNormalization()(x)
    x = L.ConvLSTM2D(filters=8, kernel_size=(1, 1), padding="same", return_sequences=True, activation="relu")(x)
    x = L.Conv3D(filters=1, kernel_size=(3, 3, 3), activation="sigmoid", padding="same")(x)
    return keras.Model(inp, x)


@example(loss="sparse_categorical_crossentropy")
def convmixer():
    def activation_block(x):
        x = L.Activation("gelu")(x)
        return L.BatchNormalization()(x)

    inputs = keras.Input((32, 32, 3))
    x = L.Rescaling(scale=1.0 / 255)(inputs)
    x = activation_block(L.Conv2D(24, kernel_size=2, strides=2)(x))
    for _ in range(3):
        x0 = x
        x = L.DepthwiseConv2D(kernel_size=5, padding="same")(x)
        x = L.Add()([activation_block(x), x0])
        x = activation_block(L.Conv2D(24, kernel_size=1)(x))
    x = L.GlobalAvgPool2D()(x)
    return keras.Model(inputs, L.Dense(10, activation="softmax")(x))


@example(loss="sparse_categorical_crossentropy", optimizer="adam")
def knowledge_distillation_teacher():
    return keras.Sequential(
        [
            keras.Input(shape=(28, 28, 1)),
            L.Conv2D(32, (3, 3), strides=(2, 2), padding="same"),
            L.LeakyReLU(negative_slope=0.2),
            L.MaxPooling2D(pool_size=(2, 2), strides=(1, 1), padding="same"),
            L.Conv2D(48, (3, 3), strides=(2, 2), padding="same"),
            L.Flatten(),
            L.Dense(10),
        ],
        name="teacher",
    )


@example(sizes={0: (12, 10, 1)}, optimizer="adam")
def super_resolution_sub_pixel():
    inputs = keras.Input(shape=(None, None, 1))
    options = {"activation": "relu", "kernel_initializer": "orthogonal", "padding": "same"}
    x = L.Conv2D(32, 5, **options)(inputs)
    x = L.Conv2D(32, 3, **options)(x)
    x = L.Conv2D(16, 3, **options)(x)
    return keras.Model(inputs, L.Conv2D(9, 3, **options)(x))


@example(loss="sparse_categorical_crossentropy")
def cutmix_resnet20():
    def resnet_layer(inputs, filters=16, size=3, strides=1, activation="relu", normalize=True):
        x = L.Conv2D(
            filters,
            kernel_size=size,
            strides=strides,
            padding="same",
            kernel_initializer="he_normal",
            kernel_regularizer=keras.regularizers.L2(1e-4),
        )(inputs)
        if normalize:
            x = L.BatchNormalization()(x)
        return L.Activation(activation)(x) if activation else x

    inputs = L.Input(shape=(32, 32, 3))
    filters, x = 16, resnet_layer(inputs)
    for stack in range(3):
        for block in range(2):
            strides = 2 if stack > 0 and block == 0 else 1
            y = resnet_layer(x, filters, strides=strides)
            y = resnet_layer(y, filters, activation=None)
            if stack > 0 and block == 0:
                x = resnet_layer(x, filters, 1, strides, None, False)
            x = L.add([x, y])
            x = L.Activation("relu")(x)
        filters *= 2
    y = L.Flatten()(L.AveragePooling2D(pool_size=8)(x))
    return keras.Model(inputs, L.Dense(10, activation="softmax", kernel_initializer="he_normal")(y))


@example()
def metric_learning():
    inputs = L.Input(shape=(32, 32, 3))
    x = L.Conv2D(filters=32, kernel_size=3, strides=2, activation="relu")(inputs)
    x = L.Conv2D(filters=48, kernel_size=3, strides=2, activation="relu")(x)
    x = L.GlobalAveragePooling2D()(x)
    embeddings = L.Dense(units=8, activation=None)(x)
    return keras.Model(inputs, L.UnitNormalization()(embeddings))


@example(loss="binary_crossentropy")
def siamese_contrastive():
    inputs = L.Input((28, 28, 1))
    x = L.BatchNormalization()(inputs)
    x = L.Conv2D(4, (5, 5), activation="tanh")(x)
    x = L.AveragePooling2D(pool_size=(2, 2))(x)
    x = L.Conv2D(16, (5, 5), activation="tanh")(x)
    x = L.AveragePooling2D(pool_size=(2, 2))(x)
    x = L.Flatten()(x)
    x = L.BatchNormalization()(x)
    embedding = keras.Model(inputs, L.Dense(10, activation="tanh")(x))
    input_1, input_2 = L.Input((28, 28, 1)), L.Input((28, 28, 1))
    a, b = embedding(input_1), embedding(input_2)
    distance = ops.sqrt(ops.maximum(ops.sum(ops.square(a - b), axis=1, keepdims=True), 1e-7))
    normal = L.BatchNormalization()(distance)
    return keras.Model([input_1, input_2], L.Dense(1, activation="sigmoid")(normal))


@example(loss="sparse_categorical_crossentropy")
def reptile():
    def block(x):
        x = L.Conv2D(filters=16, kernel_size=3, strides=2, padding="same")(x)
        return L.ReLU()(L.BatchNormalization()(x))

    inputs = L.Input(shape=(28, 28, 1))
    x = L.Flatten()(block(block(block(block(inputs)))))
    return keras.Model(inputs, L.Dense(5, activation="softmax")(x))


@example(sizes={0: (16, 12, 3)}, images=True)
def zero_dce():
    image = keras.Input(shape=[None, None, 3])
    conv = lambda x, filters=8, activation="relu": L.Conv2D(
        filters, (3, 3), strides=(1, 1), activation=activation, padding="same"
    )(x)
    c1 = conv(image)
    c2 = conv(c1)
    c3 = conv(c2)
    c4 = conv(c3)
    c5 = conv(L.Concatenate(axis=-1)([c4, c3]))
    c6 = conv(L.Concatenate(axis=-1)([c5, c2]))
    r = conv(L.Concatenate(axis=-1)([c6, c1]), 24, "tanh")
    x = image
    for i in range(8):
        part = r[:, :, :, 3 * i : 3 * i + 3]
        x = x + part * (ops.square(x) - x)
    return keras.Model(image, [r, x])


@example(optimizer="adam")
def nerf():
    inputs = keras.Input(shape=(60, 39))
    x = inputs
    for i in range(8):
        x = L.Dense(units=16, activation="relu")(x)
        if i % 4 == 0 and i > 0:
            x = L.concatenate([x, inputs], axis=-1)
    return keras.Model(inputs, L.Dense(units=4)(x))


@example(loss="sparse_categorical_crossentropy")
def video_classification():
    frames = keras.Input((10, 32))
    mask = keras.Input((10,), dtype="bool")
    x = L.GRU(16, return_sequences=True)(frames, mask=mask)
    x = L.GRU(8)(x)
    x = L.Dropout(0.4)(x)
    x = L.Dense(8, activation="relu")(x)
    return keras.Model([frames, mask], L.Dense(5, activation="softmax")(x))


@example()
def keypoint_detection():
    backbone = keras.applications.MobileNetV2(weights=None, include_top=False, input_shape=(96, 96, 3))
    backbone.trainable = False
    inputs = L.Input((96, 96, 3))
    x = keras.applications.mobilenet_v2.preprocess_input(inputs)
    x = backbone(x)
    x = L.Dropout(0.3)(x)
    x = L.SeparableConv2D(8, kernel_size=3, strides=1, activation="relu")(x)
    return keras.Model(inputs, L.SeparableConv2D(8, kernel_size=1, strides=1, activation="sigmoid")(x))


@example(sizes={0: (20, 24, 3)})
def learnable_resizer():
    def conv_block(x, filters, kernel_size, strides, activation=None):
        x = L.Conv2D(filters, kernel_size, strides, padding="same", use_bias=False)(x)
        x = L.BatchNormalization()(x)
        return activation(x) if activation else x

    inputs = L.Input(shape=[None, None, 3])
    bottleneck_skip = L.Resizing(16, 16, interpolation="bilinear")(inputs)
    x = L.Conv2D(16, 7, strides=1, padding="same")(inputs)
    x = L.LeakyReLU(negative_slope=0.2)(x)
    x = L.Conv2D(16, 1, strides=1, padding="same")(x)
    x = L.LeakyReLU(negative_slope=0.2)(x)
    x = L.BatchNormalization()(x)
    bottleneck = L.Resizing(16, 16, interpolation="bilinear")(x)
    y = conv_block(bottleneck, 16, 3, 1, L.LeakyReLU(negative_slope=0.2))
    x = L.Add()([bottleneck, conv_block(y, 16, 3, 1)])
    x = L.Conv2D(16, 3, strides=1, padding="same", use_bias=False)(x)
    x = L.BatchNormalization()(x)
    x = L.Add()([bottleneck, x])
    x = L.Conv2D(3, 7, strides=1, padding="same")(x)
    return keras.Model(inputs, L.Add()([bottleneck_skip, x]), name="learnable_resizer")


@example(loss="sparse_categorical_crossentropy")
def mobilevit():
    patch_size = 4

    def conv_block(x, filters=16, kernel_size=3, strides=2):
        return L.Conv2D(filters, kernel_size, strides=strides, activation=keras.activations.swish, padding="same")(x)

    def inverted_residual_block(x, expanded, output, strides=1):
        m = L.Conv2D(expanded, 1, padding="same", use_bias=False)(x)
        m = L.BatchNormalization()(m)
        m = keras.activations.swish(m)
        if strides == 2:
            m = L.ZeroPadding2D(padding=((0, 1), (0, 1)))(m)
        m = L.DepthwiseConv2D(3, strides=strides, padding="same" if strides == 1 else "valid", use_bias=False)(m)
        m = L.BatchNormalization()(m)
        m = keras.activations.swish(m)
        m = L.Conv2D(output, 1, padding="same", use_bias=False)(m)
        m = L.BatchNormalization()(m)
        return L.Add()([m, x]) if x.shape[-1] == output and strides == 1 else m

    def transformer_block(x, layers, dim, heads=2):
        for _ in range(layers):
            x1 = L.LayerNormalization(epsilon=1e-6)(x)
            attention = L.MultiHeadAttention(num_heads=heads, key_dim=dim, dropout=0.1)(x1, x1)
            x2 = L.Add()([attention, x])
            x3 = L.LayerNormalization(epsilon=1e-6)(x2)
            for units in (x.shape[-1] * 2, x.shape[-1]):
                x3 = L.Dense(units, activation=keras.activations.swish)(x3)
                x3 = L.Dropout(0.1)(x3)
            x = L.Add()([x3, x2])
        return x

    def mobilevit_block(x, blocks, dim):
        local = conv_block(x, filters=dim, strides=1)
        local = conv_block(local, filters=dim, kernel_size=1, strides=1)
        patches = int((local.shape[1] * local.shape[2]) / patch_size)
        unfolded = L.Reshape((patch_size, patches, dim))(local)
        features = transformer_block(unfolded, blocks, dim)
        folded = L.Reshape((*local.shape[1:-1], dim))(features)
        folded = conv_block(folded, filters=x.shape[-1], kernel_size=1, strides=1)
        return conv_block(L.Concatenate(axis=-1)([x, folded]), filters=dim, strides=1)

    inputs = keras.Input((64, 64, 3))
    x = L.Rescaling(scale=1.0 / 255)(inputs)
    x = conv_block(x, filters=8)
    x = inverted_residual_block(x, 16, 8)
    x = inverted_residual_block(x, 16, 12, strides=2)
    x = inverted_residual_block(x, 24, 12)
    x = inverted_residual_block(x, 24, 16, strides=2)
    x = mobilevit_block(x, 2, 16)
    x = conv_block(x, filters=32, kernel_size=1, strides=1)
    x = L.GlobalAvgPool2D()(x)
    return keras.Model(inputs, L.Dense(5, activation="softmax")(x))


@example(loss="binary_crossentropy")
def basnet_refinement():
    def convolution(inputs, filters, dilation=1):
        x = L.Conv2D(filters, (3, 3), padding="same", dilation_rate=dilation)(inputs)
        return L.Activation("relu")(L.BatchNormalization()(x))

    inputs = keras.Input((32, 32, 1))
    x = L.Conv2D(8, (3, 3), padding="same")(inputs)
    skips = []
    for _ in range(3):
        x = convolution(x, 8)
        skips.append(x)
        x = L.MaxPool2D(2, 2)(x)
    x = convolution(x, 8, 2)
    for skip in reversed(skips):
        x = L.UpSampling2D(size=2, interpolation="bilinear")(x)
        x = convolution(L.concatenate([skip, x], axis=-1), 8)
    x = L.Conv2D(1, (3, 3), padding="same")(x)
    return keras.Model(inputs, L.Activation("sigmoid")(L.Add()([inputs, x])))


@example(loss="sparse_categorical_crossentropy")
def fully_convolutional_network():
    inputs = keras.Input(shape=(64, 64, 3))
    vgg = keras.applications.VGG19(include_top=False, weights=None)
    fc = [
        L.Conv2D(16, (7, 7), padding="same", use_bias=False, activation="relu"),
        L.Dropout(0.5),
        L.Conv2D(16, (1, 1), padding="same", use_bias=False, activation="relu"),
    ]
    backbone = keras.Model(vgg.layers[1].input, [vgg.get_layer(n).output for n in ("block3_pool", "block4_pool", "block5_pool")])
    backbone.trainable = False
    pool3, pool4, pool5 = backbone(inputs)
    for layer in fc:
        pool5 = layer(pool5)
    score = lambda x: L.Conv2D(5, (1, 1), padding="same", activation="linear", kernel_initializer="zeros")(x)
    pool4, pool3, pool5 = score(pool4), score(pool3), score(pool5)
    fcn16 = L.Add()([pool4, L.UpSampling2D(size=(2, 2), interpolation="bilinear")(pool5)])
    fcn8 = L.Add()([pool3, L.UpSampling2D(size=(2, 2), interpolation="bilinear")(fcn16)])
    x = L.UpSampling2D(size=(8, 8), interpolation="bilinear")(fcn8)
    return keras.Model(inputs, L.Activation("softmax")(x))


@example(loss="binary_crossentropy")
def gradient_centralization():
    chain = []
    for filters in (8, 16, 16):
        chain += [L.Conv2D(filters, (3, 3), activation="relu"), L.MaxPooling2D(2, 2)]
    return keras.Sequential([
        L.Input(shape=(48, 48, 3)),
        *chain,
        L.Dropout(0.5),
        L.Flatten(),
        L.Dense(32, activation="relu"),
        L.Dense(1, activation="sigmoid"),
    ])


@example(sizes={0: (12, 12, 3)}, loss="mae", optimizer=keras.optimizers.SGD(1e-6))
def edsr():
    def res_block(x):
        y = L.Conv2D(16, 3, padding="same", activation="relu")(x)
        return L.Add()([x, L.Conv2D(16, 3, padding="same")(y)])

    inputs = L.Input(shape=(None, None, 3))
    x = L.Rescaling(scale=1.0 / 255)(inputs)
    x = x1 = L.Conv2D(16, 3, padding="same")(x)
    for _ in range(3):
        x1 = res_block(x1)
    x1 = L.Conv2D(16, 3, padding="same")(x1)
    x = L.Add()([x, x1])
    x = L.Conv2D(16, 3, padding="same")(x)
    x = L.Conv2D(3, 3, padding="same")(x)
    return keras.Model(inputs, L.Rescaling(scale=255)(x))


@example(sizes={0: (16, 20, 3)}, loss="mae")
def mirnet_block():
    def selective_kernel(a, b, channels=8):
        u = L.Add()([a, b])
        s = L.Reshape((1, 1, channels))(L.GlobalAveragePooling2D()(u))
        z = L.Conv2D(1, kernel_size=(1, 1), activation="relu")(s)
        v1, v2 = (L.Conv2D(channels, kernel_size=(1, 1), activation="softmax")(z) for _ in range(2))
        return L.Add()([v1 * a, v2 * b])

    def spatial_attention(x):
        average = ops.mean(x, axis=-1, keepdims=True)
        largest = ops.max(x, axis=-1, keepdims=True)
        concatenated = L.Concatenate(axis=-1)([average, largest])
        return x * keras.activations.sigmoid(L.Conv2D(1, kernel_size=(1, 1))(concatenated))

    inputs = keras.Input(shape=[None, None, 3])
    x = L.Conv2D(8, kernel_size=(3, 3), padding="same")(inputs)
    low = L.Conv2D(8, 3, padding="same")(L.MaxPooling2D(2)(L.Conv2D(8, 3, padding="same", activation="relu")(x)))
    low = L.UpSampling2D(interpolation="bilinear")(L.Conv2D(8, 1)(spatial_attention(low)))
    x = selective_kernel(spatial_attention(x), low)
    x = L.Conv2D(3, kernel_size=(3, 3), padding="same")(x)
    return keras.Model(inputs, L.Add()([inputs, x]))


@example(loss="sparse_categorical_crossentropy")
def token_learner():
    def token_learner_block(inputs, tokens=4):
        x = L.LayerNormalization(epsilon=1e-6)(inputs)
        attention = x
        for _ in range(3):
            attention = L.Conv2D(tokens, 3, activation=keras.activations.gelu, padding="same", use_bias=False)(attention)
        attention = L.Conv2D(tokens, 3, activation="sigmoid", padding="same", use_bias=False)(attention)
        attention = L.Reshape((-1, tokens))(attention)
        attention = L.Permute((2, 1))(attention)
        num_filters = inputs.shape[-1]
        inputs = L.Reshape((1, -1, num_filters))(inputs)
        attended = ops.expand_dims(attention, axis=-1) * inputs
        return ops.mean(attended, axis=2)

    inputs = L.Input(shape=(24, 24, 3))
    x = L.Conv2D(16, kernel_size=4, strides=4, padding="VALID")(inputs)
    positions = L.Embedding(36, 16)(ops.arange(start=0, stop=36, step=1))
    x = L.Reshape((36, 16))(x) + positions
    for i in range(3):
        x1 = L.LayerNormalization(epsilon=1e-6)(x)
        attention = L.MultiHeadAttention(num_heads=2, key_dim=16, dropout=0.1)(x1, x1)
        x2 = L.Add()([attention, x])
        x4 = L.Dense(16, activation="gelu")(L.Dense(32, activation="gelu")(L.LayerNormalization(epsilon=1e-6)(x2)))
        x = L.Add()([L.Dropout(0.1)(x4), x2])
        if i == 1:
            x = token_learner_block(L.Reshape((6, 6, 16))(x))
    x = L.GlobalAvgPool1D()(L.LayerNormalization(epsilon=1e-6)(x))
    return keras.Model(inputs, L.Dense(10, activation="softmax")(x))


@example(loss="sparse_categorical_crossentropy")
def supervised_contrastive():
    inputs = keras.Input(shape=(32, 32, 3))
    x = L.Normalization(mean=[120.0, 118.0, 110.0], variance=[60.0, 61.0, 63.0])(inputs)
    resnet = keras.applications.ResNet50V2(include_top=False, weights=None, input_shape=(32, 32, 3), pooling="avg")
    encoder = keras.Model(inputs, resnet(x), name="cifar10-encoder")
    encoder.trainable = False
    inputs = keras.Input(shape=(32, 32, 3))
    features = L.Dropout(0.5)(encoder(inputs))
    features = L.Dense(16, activation="relu")(features)
    return keras.Model(inputs, L.Dense(10, activation="softmax")(features), name="cifar10-classifier")


@example(chaotic=True)
def deep_dream_features():
    model = keras.applications.InceptionV3(weights=None, include_top=False, input_shape=(96, 96, 3))
    names = ["mixed4", "mixed5", "mixed6", "mixed7"]
    return keras.Model(model.inputs, {name: model.get_layer(name).output for name in names})


@example(sizes={0: (40, 48, 3)})
def neural_style_features():
    model = keras.applications.VGG19(weights=None, include_top=False)
    names = ["block1_conv1", "block2_conv1", "block5_conv2"]
    return keras.Model(model.inputs, [model.get_layer(name).output for name in names])


@example(chaotic=True)
def visualizing_convnets():
    model = keras.applications.ResNet50V2(weights=None, include_top=False, input_shape=(48, 48, 3))
    return keras.Model(model.inputs, model.get_layer("conv3_block4_out").output)


@example(loss="sparse_categorical_crossentropy")
def pointnet():
    def conv_bn(x, filters):
        x = L.Conv1D(filters, kernel_size=1, padding="valid")(x)
        return L.Activation("relu")(L.BatchNormalization(momentum=0.0)(x))

    def dense_bn(x, filters):
        return L.Activation("relu")(L.BatchNormalization(momentum=0.0)(L.Dense(filters)(x)))

    def tnet(inputs, features):
        x = conv_bn(conv_bn(inputs, 8), 16)
        x = L.GlobalMaxPooling1D()(x)
        x = dense_bn(dense_bn(x, 16), 8)
        x = L.Dense(features * features, kernel_initializer="zeros", bias_initializer="ones")(x)
        transform = L.Reshape((features, features))(x)
        return L.Dot(axes=(2, 1))([inputs, transform])

    inputs = keras.Input(shape=(64, 3))
    x = tnet(inputs, 3)
    x = conv_bn(x, 8)
    x = tnet(x, 8)
    x = L.GlobalMaxPooling1D()(conv_bn(x, 24))
    x = L.Dropout(0.3)(dense_bn(x, 16))
    return keras.Model(inputs, L.Dense(10, activation="softmax")(x), name="pointnet")


@example(loss="sparse_categorical_crossentropy")
def retinanet_head():
    inputs = keras.Input((24, 24, 8))
    options = {"padding": "same", "kernel_initializer": keras.initializers.RandomNormal(0.0, 0.01)}

    def head(outputs, bias):
        chain = []
        for _ in range(4):
            chain += [L.Conv2D(8, 3, **options), L.ReLU()]
        return keras.Sequential([keras.Input(shape=[None, None, 8]), *chain, L.Conv2D(outputs, 3, bias_initializer=bias, **options)])

    x = head(9 * 4, keras.initializers.Constant(-4.6))(inputs)
    return keras.Model(inputs, L.Reshape([-1, 4])(x))


@example(loss="binary_crossentropy", optimizer="adam")
def sample_size_estimate():
    base = keras.applications.MobileNetV2(input_shape=(64, 64, 3), include_top=False, weights=None)
    base.trainable = False
    inputs = keras.Input((64, 64, 3))
    x = keras.applications.mobilenet_v2.preprocess_input(inputs)
    x = base(x, training=False)
    x = L.GlobalAveragePooling2D()(x)
    x = L.Dropout(0.5)(x)
    x = L.Dense(8, activation="relu")(x)
    return keras.Model(inputs, L.Dense(1, activation="sigmoid")(x))


@example(loss="sparse_categorical_crossentropy")
def mlp_mixer():
    inputs = keras.Input((24, 24, 3))
    x = L.Conv2D(12, 6, 6)(inputs)
    x = L.Reshape((16, 12))(x)
    for _ in range(2):
        y = L.LayerNormalization(epsilon=1e-6)(x)
        y = ops.transpose(y, axes=(0, 2, 1))
        y = keras.Sequential([L.Dense(16, activation="gelu"), L.Dense(16), L.Dropout(0.2)])(y)
        y = ops.transpose(y, axes=(0, 2, 1))
        x = x + y
        y = keras.Sequential([L.Dense(24, activation="gelu"), L.Dense(12), L.Dropout(0.2)])(L.LayerNormalization(epsilon=1e-6)(x))
        x = x + y
    x = L.Dropout(0.2)(L.GlobalAveragePooling1D()(x))
    return keras.Model(inputs, L.Dense(10)(x))


# Text.


@example(loss="binary_crossentropy", optimizer="adam", sizes={0: (40,)}, integers=100)
def text_classification_from_scratch():
    inputs = keras.Input(shape=(None,), dtype="int64")
    x = L.Embedding(100, 16)(inputs)
    x = L.Dropout(0.5)(x)
    x = L.Conv1D(16, 7, padding="valid", activation="relu", strides=3)(x)
    x = L.Conv1D(16, 7, padding="valid", activation="relu", strides=3)(x)
    x = L.GlobalMaxPooling1D()(x)
    x = L.Dense(16, activation="relu")(x)
    x = L.Dropout(0.5)(x)
    return keras.Model(inputs, L.Dense(1, activation="sigmoid", name="predictions")(x))


@example(loss="binary_crossentropy", optimizer="adam", sizes={0: (20,)}, integers=100)
def bidirectional_lstm_imdb():
    inputs = keras.Input(shape=(None,), dtype="int32")
    x = L.Embedding(100, 16)(inputs)
    x = L.Bidirectional(L.LSTM(8, return_sequences=True))(x)
    x = L.Bidirectional(L.LSTM(8))(x)
    return keras.Model(inputs, L.Dense(1, activation="sigmoid")(x))


@example(loss="categorical_crossentropy", optimizer="rmsprop", sizes={0: (9, 12), 1: (7, 14)})
def lstm_seq2seq():
    encoder_inputs = keras.Input(shape=(None, 12))
    _, state_h, state_c = L.LSTM(16, return_state=True)(encoder_inputs)
    decoder_inputs = keras.Input(shape=(None, 14))
    outputs, _, _ = L.LSTM(16, return_sequences=True, return_state=True)(
        decoder_inputs, initial_state=[state_h, state_c]
    )
    return keras.Model([encoder_inputs, decoder_inputs], L.Dense(14, activation="softmax")(outputs))


@example(sizes={0: (1, 14)})
def lstm_seq2seq_decoder():
    inputs = keras.Input(shape=(None, 14))
    h, c = keras.Input(shape=(16,)), keras.Input(shape=(16,))
    outputs, new_h, new_c = L.LSTM(16, return_sequences=True, return_state=True)(inputs, initial_state=[h, c])
    return keras.Model([inputs, h, c], [L.Dense(14, activation="softmax")(outputs), new_h, new_c])


@example(loss="sparse_categorical_crossentropy", optimizer="rmsprop", sizes={0: (160,)}, integers=50)
def pretrained_word_embeddings():
    sequence = keras.Input(shape=(None,), dtype="int32")
    embedding = L.Embedding(50, 12, trainable=False)
    x = embedding(sequence)
    x = L.Conv1D(16, 5, activation="relu")(x)
    x = L.MaxPooling1D(5)(x)
    x = L.Conv1D(16, 5, activation="relu")(x)
    x = L.MaxPooling1D(5)(x)
    x = L.Conv1D(16, 2, activation="relu")(x)
    x = L.GlobalMaxPooling1D()(x)
    x = L.Dense(16, activation="relu")(x)
    x = L.Dropout(0.5)(x)
    return keras.Model(sequence, L.Dense(20, activation="softmax")(x))


@example(loss="categorical_crossentropy", optimizer="adam")
def addition_rnn():
    return keras.Sequential([
        L.Input((7, 12)),
        L.LSTM(16),
        L.RepeatVector(4),
        L.LSTM(16, return_sequences=True),
        L.Dense(12, activation="softmax"),
    ])


@example(loss="binary_crossentropy", optimizer="adam")
def multi_label_classification():
    return keras.Sequential([
        keras.Input((64,)),
        L.Dense(32, activation="relu"),
        L.Dense(16, activation="relu"),
        L.Dense(9, activation="sigmoid"),
    ])


@example(loss="binary_crossentropy", optimizer="rmsprop", integers=60, tokens=True)
def active_learning_review():
    return keras.Sequential([
        L.Input(shape=(15,)),
        L.Embedding(input_dim=60, output_dim=12),
        L.Bidirectional(L.LSTM(8, return_sequences=True)),
        L.GlobalMaxPool1D(),
        L.Dense(10, activation="relu"),
        L.Dropout(0.5),
        L.Dense(1, activation="sigmoid"),
    ])


@example(loss="categorical_crossentropy", optimizer="rmsprop")
def lstm_character_level_text_generation():
    return keras.Sequential([keras.Input(shape=(40, 30)), L.LSTM(24), L.Dense(30, activation="softmax")])


@example(loss="sparse_categorical_crossentropy", integers=40, tokens=True)
def text_classification_with_transformer():
    inputs = L.Input(shape=(12,))
    x = L.Embedding(40, 16)(inputs) + L.Embedding(12, 16)(ops.arange(12))
    attention = L.MultiHeadAttention(num_heads=2, key_dim=16)(x, x)
    out1 = L.LayerNormalization(epsilon=1e-6)(x + L.Dropout(0.1)(attention))
    ffn = keras.Sequential([L.Dense(16, activation="relu"), L.Dense(16)])(out1)
    x = L.LayerNormalization(epsilon=1e-6)(out1 + L.Dropout(0.1)(ffn))
    x = L.GlobalAveragePooling1D()(x)
    x = L.Dense(12, activation="relu")(L.Dropout(0.1)(x))
    return keras.Model(inputs, L.Dense(2, activation="softmax")(x))


@example(loss="sparse_categorical_crossentropy", integers=30)
def miniature_gpt():
    inputs = L.Input(shape=(10,), dtype="int32")
    x = L.Embedding(30, 16)(inputs) + L.Embedding(10, 16)(ops.arange(0, 10, 1))
    attention = L.MultiHeadAttention(2, 16)(x, x, use_causal_mask=True)
    out1 = L.LayerNormalization(epsilon=1e-6)(x + attention)
    ffn = keras.Sequential([L.Dense(16, activation="relu"), L.Dense(16)])(out1)
    x = L.LayerNormalization(epsilon=1e-6)(out1 + ffn)
    return keras.Model(inputs, [L.Dense(30, activation="softmax")(x)])


@example(loss="sparse_categorical_crossentropy", integers=30)
def masked_language_model():
    inputs = L.Input((12,), dtype="int64")
    x = L.Embedding(30, 16, name="word_embedding")(inputs)
    positions = L.Embedding(12, 16, name="position_embedding")(ops.arange(start=0, stop=12, step=1))
    x = x + positions
    attention = L.MultiHeadAttention(num_heads=4, key_dim=4, name="encoder_0_attention")(x, x, x)
    attention = L.Dropout(0.1, name="encoder_0_dropout")(attention)
    x = L.LayerNormalization(epsilon=1e-6, name="encoder_0_norm")(x + attention)
    ffn = keras.Sequential([L.Dense(32, activation="relu"), L.Dense(16)], name="encoder_0_ffn")(x)
    x = L.LayerNormalization(epsilon=1e-6)(x + ffn)
    return keras.Model(inputs, L.Dense(30, name="mlm_cls", activation="softmax")(x), name="masked_bert_model")


@example(loss="sparse_categorical_crossentropy", sizes={0: (14,), 1: (9,)}, integers=40)
def sequence_to_sequence_transformer():
    encoder_inputs = keras.Input(shape=(None,), dtype="int64", name="encoder_inputs")
    x = L.Embedding(40, 16, mask_zero=True)(encoder_inputs)
    y = L.LayerNormalization()(x + L.MultiHeadAttention(num_heads=2, key_dim=8)(x, x))
    encoded = L.LayerNormalization()(y + keras.Sequential([L.Dense(24, activation="relu"), L.Dense(16)])(y))
    decoder_inputs = keras.Input(shape=(None,), dtype="int64", name="decoder_inputs")
    x = L.Embedding(40, 16, mask_zero=True)(decoder_inputs)
    y = L.LayerNormalization()(L.Add()([x, L.MultiHeadAttention(2, 8)(x, x, use_causal_mask=True)]))
    z = L.LayerNormalization()(L.Add()([y, L.MultiHeadAttention(2, 8)(query=y, value=encoded, key=encoded)]))
    z = L.LayerNormalization()(z + keras.Sequential([L.Dense(24, activation="relu"), L.Dense(16)])(z))
    return keras.Model([encoder_inputs, decoder_inputs], L.Dense(40, activation="softmax")(L.Dropout(0.5)(z)))


@example(loss="sparse_categorical_crossentropy", sizes={0: (14,)}, integers=40)
def ner_transformer():
    inputs = keras.Input((None,), dtype="int32")
    x = L.Embedding(40, 16, mask_zero=True)(inputs)
    attention = L.MultiHeadAttention(num_heads=4, key_dim=16)(x, x)
    x = L.LayerNormalization(epsilon=1e-6)(x + L.Dropout(0.1)(attention))
    x = L.Dropout(0.1)(x)
    x = L.Dense(16, activation="relu")(x)
    return keras.Model(inputs, L.Dense(10, activation="softmax")(x))


@example(loss="categorical_crossentropy", integers=40)
def semantic_similarity_heads():
    ids = L.Input(shape=(16,), dtype="int32", name="input_ids")
    masks = L.Input(shape=(16,), dtype="int32", name="attention_masks")
    x = L.Embedding(40, 12)(ids) * ops.expand_dims(ops.cast(masks, "float32"), -1)
    sequence = L.Bidirectional(L.LSTM(8, return_sequences=True))(x)
    average = L.GlobalAveragePooling1D()(sequence)
    largest = L.GlobalMaxPooling1D()(sequence)
    x = L.Dropout(0.3)(L.concatenate([average, largest]))
    return keras.Model([ids, masks], L.Dense(3, activation="softmax")(x))


# Structured data.


@example(loss="binary_crossentropy", optimizer="adam")
def imbalanced_classification():
    chain = []
    for _ in range(3):
        chain += [L.Dense(32, activation="relu"), L.Dropout(0.3)]
    return keras.Sequential([keras.Input((30,)), *chain, L.Dense(1, activation="sigmoid")])


@example(loss="sparse_categorical_crossentropy")
def wide_deep_cross_networks():
    inputs = {f"f{i}": L.Input(name=f"f{i}", shape=(), dtype="float32") for i in range(6)}
    columns = [ops.expand_dims(inputs[name], -1) for name in inputs]
    x0 = L.concatenate(columns)
    cross = x0
    for _ in range(2):
        cross = x0 * L.Dense(cross.shape[-1])(cross) + cross
    cross = L.BatchNormalization()(cross)
    deep = x0
    for units in [16, 16]:
        deep = L.Dense(units)(deep)
        deep = L.BatchNormalization()(deep)
        deep = L.ReLU()(deep)
        deep = L.Dropout(0.1)(deep)
    merged = L.concatenate([cross, deep])
    return keras.Model(inputs, L.Dense(7, activation="softmax")(merged))


@example(loss="mse", integers=12)
def movielens_behavior_transformer():
    movies = keras.Input((5,), dtype="int32", name="sequence_movie_ids")
    target = keras.Input((1,), dtype="int32", name="target_movie_id")
    user = keras.Input((3,), name="user_features")
    embedding = L.Embedding(12, 8, name="movie_embedding")
    encoded, encoded_target = embedding(movies), embedding(target)
    positions = L.Embedding(5, 8, name="position_embedding")(ops.arange(start=0, stop=5, step=1))
    encoded = encoded * 2.0 + positions
    x = L.Concatenate(axis=1)([encoded, encoded_target])
    attention = L.Dropout(0.1)(L.MultiHeadAttention(num_heads=3, key_dim=x.shape[2], dropout=0.1)(x, x))
    x1 = L.LayerNormalization()(L.Add()([x, attention]))
    x2 = L.Dense(units=x1.shape[-1])(L.LeakyReLU()(x1))
    x = L.LayerNormalization()(L.Add()([x1, L.Dropout(0.1)(x2)]))
    features = L.concatenate([L.Flatten()(x), L.Reshape([3])(user)])
    for units in [24, 12]:
        features = L.Dense(units)(features)
        features = L.BatchNormalization()(features)
        features = L.LeakyReLU()(features)
    return keras.Model([movies, target, user], L.Dense(units=1)(features))


@example(loss="binary_crossentropy", integers=6)
def tabtransformer():
    categories = [keras.Input((), dtype="int32", name=f"c{i}") for i in range(4)]
    numbers = [keras.Input((), name=f"n{i}") for i in range(3)]
    encoded = [L.Embedding(6, 8)(c) for c in categories]
    numeric = L.concatenate([ops.expand_dims(n, -1) for n in numbers])
    x = ops.stack(encoded, axis=1)
    positions = L.Embedding(4, 8)(ops.arange(start=0, stop=4, step=1))
    x = x + positions
    for _ in range(2):
        attention = L.MultiHeadAttention(num_heads=4, key_dim=8, dropout=0.2)(x, x)
        y = L.LayerNormalization(epsilon=1e-6)(L.Add()([attention, x]))
        forward = L.Dense(8, activation=keras.activations.gelu)(L.Dropout(0.2)(y))
        x = L.LayerNormalization(epsilon=1e-6)(L.Add()([forward, y]))
    features = L.concatenate([L.Flatten()(x), L.LayerNormalization(epsilon=1e-6)(numeric)])
    features = L.Dense(20, activation=keras.activations.selu)(L.BatchNormalization()(features))
    return keras.Model([*categories, *numbers], L.Dense(units=1, activation="sigmoid")(features))


@example(integers=20)
def node2vec_movielens():
    inputs = {name: L.Input(name=name, shape=(), dtype="int32") for name in ("target", "context")}
    embeddings = L.Embedding(input_dim=20, output_dim=8, embeddings_initializer="he_normal", name="item_embeddings")
    dot = L.Dot(axes=1, normalize=False, name="dot_similarity")
    return keras.Model(inputs, dot([embeddings(inputs["target"]), embeddings(inputs["context"])]))


@example(loss="binary_crossentropy", integers=20)
def collaborative_filtering():
    user, movie = (L.Input((1,), dtype="int32") for _ in range(2))
    options = {"embeddings_initializer": "he_normal", "embeddings_regularizer": keras.regularizers.l2(1e-6)}
    u, m = L.Embedding(20, 8, **options)(user), L.Embedding(20, 8, **options)(movie)
    bias_u, bias_m = L.Embedding(20, 1)(user), L.Embedding(20, 1)(movie)
    dot = L.Dot(axes=-1)([u, m])
    x = L.Flatten()(dot) + L.Flatten()(bias_u) + L.Flatten()(bias_m)
    return keras.Model([user, movie], keras.activations.sigmoid(x))


# Time series.


@example(optimizer="adam")
def timeseries_anomaly_detection():
    return keras.Sequential([
        L.Input(shape=(48, 1)),
        L.Conv1D(filters=32, kernel_size=7, padding="same", strides=2, activation="relu"),
        L.Dropout(rate=0.2),
        L.Conv1D(filters=16, kernel_size=7, padding="same", strides=2, activation="relu"),
        L.Conv1DTranspose(filters=16, kernel_size=7, padding="same", strides=2, activation="relu"),
        L.Dropout(rate=0.2),
        L.Conv1DTranspose(filters=32, kernel_size=7, padding="same", strides=2, activation="relu"),
        L.Conv1DTranspose(filters=1, kernel_size=7, padding="same"),
    ])


@example(loss="sparse_categorical_crossentropy", optimizer="adam", chaotic=True)
def timeseries_classification_from_scratch():
    inputs = x = L.Input((60, 1))
    for _ in range(3):
        x = L.Conv1D(filters=16, kernel_size=3, padding="same")(x)
        x = L.BatchNormalization()(x)
        x = L.ReLU()(x)
    return keras.Model(inputs, L.Dense(2, activation="softmax")(L.GlobalAveragePooling1D()(x)))


@example(loss="sparse_categorical_crossentropy")
def timeseries_classification_transformer():
    inputs = x = keras.Input(shape=(50, 1))
    for _ in range(2):
        y = L.MultiHeadAttention(key_dim=16, num_heads=2, dropout=0.25)(x, x)
        y = L.Dropout(0.25)(y)
        y = L.LayerNormalization(epsilon=1e-6)(y)
        res = y + x
        y = L.Conv1D(filters=4, kernel_size=1, activation="relu")(res)
        y = L.Dropout(0.25)(y)
        y = L.Conv1D(filters=1, kernel_size=1)(y)
        x = L.LayerNormalization(epsilon=1e-6)(y) + res
    x = L.GlobalAveragePooling1D(data_format="channels_last")(x)
    x = L.Dropout(0.4)(L.Dense(32, activation="relu")(x))
    return keras.Model(inputs, L.Dense(2, activation="softmax")(x))


@example(optimizer="adam")
def timeseries_weather_forecasting():
    inputs = L.Input(shape=(30, 7))
    return keras.Model(inputs, L.Dense(1)(L.LSTM(16)(inputs)))


@example(loss="binary_crossentropy", optimizer="adam")
def eeg_signal_classification():
    inputs = keras.Input(shape=(512, 1))
    x = inputs
    for filters, strides, kernel in ((8, 2, 3), (8, 2, 3), (16, 2, 5), (16, 4, 5), (24, 2, 7)):
        x = L.Conv1D(filters=filters, kernel_size=kernel, strides=strides, activation="relu", padding="same")(x)
        x = L.BatchNormalization()(x)
    x = L.Dropout(0.2)(x)
    x = L.Flatten()(x)
    x = L.Dense(16, activation="relu", kernel_regularizer=keras.regularizers.L2())(x)
    return keras.Model(inputs, L.Dense(8, activation="sigmoid")(x))


@example()
def traffic_forecasting_lstm():
    inputs = L.Input((12, 5, 3))
    x = ops.transpose(inputs, [0, 2, 1, 3])
    x = ops.reshape(x, (-1, 12, 15))
    x = keras.Model(inputs, x).output
    return keras.Model(inputs, L.Dense(6)(L.LSTM(12, activation="relu")(x)))


# Generative networks.


@example()
def vae_encoder():
    inputs = keras.Input(shape=(28, 28, 1))
    x = L.Conv2D(16, 3, activation="relu", strides=2, padding="same")(inputs)
    x = L.Conv2D(24, 3, activation="relu", strides=2, padding="same")(x)
    x = L.Flatten()(x)
    x = L.Dense(16, activation="relu")(x)
    return keras.Model(inputs, [L.Dense(2, name="z_mean")(x), L.Dense(2, name="z_log_var")(x)], name="encoder")


@example(loss="binary_crossentropy")
def vae_decoder():
    inputs = keras.Input(shape=(2,))
    x = L.Dense(7 * 7 * 16, activation="relu")(inputs)
    x = L.Reshape((7, 7, 16))(x)
    x = L.Conv2DTranspose(16, 3, activation="relu", strides=2, padding="same")(x)
    x = L.Conv2DTranspose(8, 3, activation="relu", strides=2, padding="same")(x)
    return keras.Model(inputs, L.Conv2DTranspose(1, 3, activation="sigmoid", padding="same")(x), name="decoder")


@example(loss="binary_crossentropy")
def conditional_gan_discriminator():
    return keras.Sequential(
        [
            L.InputLayer((28, 28, 11)),
            L.Conv2D(16, (3, 3), strides=(2, 2), padding="same"),
            L.LeakyReLU(negative_slope=0.2),
            L.Conv2D(24, (3, 3), strides=(2, 2), padding="same"),
            L.LeakyReLU(negative_slope=0.2),
            L.GlobalMaxPooling2D(),
            L.Dense(1),
        ],
        name="discriminator",
    )


@example()
def conditional_gan_generator():
    return keras.Sequential(
        [
            L.InputLayer((26,)),
            L.Dense(7 * 7 * 26),
            L.LeakyReLU(negative_slope=0.2),
            L.Reshape((7, 7, 26)),
            L.Conv2DTranspose(16, (4, 4), strides=(2, 2), padding="same"),
            L.LeakyReLU(negative_slope=0.2),
            L.Conv2DTranspose(16, (4, 4), strides=(2, 2), padding="same"),
            L.LeakyReLU(negative_slope=0.2),
            L.Conv2D(1, (7, 7), padding="same", activation="sigmoid"),
        ],
        name="generator",
    )


@example(loss="binary_crossentropy")
def dcgan_discriminator():
    return keras.Sequential([
        keras.Input(shape=(32, 32, 3)),
        L.Conv2D(16, kernel_size=4, strides=2, padding="same"),
        L.LeakyReLU(negative_slope=0.2),
        L.Conv2D(24, kernel_size=4, strides=2, padding="same"),
        L.LeakyReLU(negative_slope=0.2),
        L.Flatten(),
        L.Dropout(0.2),
        L.Dense(1, activation="sigmoid"),
    ])


@example()
def wgan_gp_generator():
    def upsample_block(x, filters, activation, use_bn=True):
        x = L.UpSampling2D((2, 2))(x)
        x = L.Conv2D(filters, (3, 3), strides=(1, 1), padding="same", use_bias=False)(x)
        if use_bn:
            x = L.BatchNormalization()(x)
        return activation(x)

    noise = L.Input(shape=(16,))
    x = L.Dense(4 * 4 * 16, use_bias=False)(noise)
    x = L.BatchNormalization()(x)
    x = L.LeakyReLU(0.2)(x)
    x = L.Reshape((4, 4, 16))(x)
    x = upsample_block(x, 12, L.LeakyReLU(0.2))
    x = upsample_block(x, 8, L.LeakyReLU(0.2))
    x = upsample_block(x, 1, L.Activation("tanh"))
    return keras.Model(noise, L.Cropping2D((2, 2))(x), name="generator")


@example()
def wgan_gp_discriminator():
    inputs = L.Input(shape=(28, 28, 1))
    x = L.ZeroPadding2D((2, 2))(inputs)
    for filters in (8, 12, 16):
        x = L.Conv2D(filters, (5, 5), strides=(2, 2), padding="same", use_bias=True)(x)
        x = L.LeakyReLU(0.2)(x)
        x = L.Dropout(0.3)(x)
    return keras.Model(inputs, L.Dense(1)(L.Flatten()(x)), name="discriminator")


@example()
def cyclegan_generator():
    def reflection(x, pad):
        return ops.pad(x, [[0, 0], [pad, pad], [pad, pad], [0, 0]], mode="reflect")

    def norm(x):
        return L.GroupNormalization(groups=-1)(x)

    init = keras.initializers.RandomNormal(mean=0.0, stddev=0.02)
    image = L.Input(shape=(32, 32, 3))
    x = reflection(image, 3)
    x = L.Conv2D(8, (7, 7), kernel_initializer=init, use_bias=False)(x)
    x = L.Activation("relu")(norm(x))
    x = L.Activation("relu")(norm(L.Conv2D(16, 3, strides=2, padding="same", use_bias=False)(x)))
    y = reflection(x, 1)
    y = norm(L.Conv2D(16, 3, padding="valid", use_bias=False)(y))
    x = L.add([x, y])
    x = L.Conv2DTranspose(8, (3, 3), strides=(2, 2), padding="same", use_bias=False)(x)
    x = L.Activation("relu")(norm(x))
    x = L.Conv2D(3, (7, 7), padding="valid")(reflection(x, 3))
    return keras.Model(image, L.Activation("tanh")(x))


@example()
def real_nvp_coupling():
    inputs = L.Input(shape=(2,))
    options = {"kernel_regularizer": keras.regularizers.l2(0.01)}

    def network(activation):
        x = inputs
        for _ in range(4):
            x = L.Dense(16, activation="relu", **options)(x)
        return L.Dense(2, activation=activation, **options)(x)

    return keras.Model(inputs, [network("tanh"), network("linear")])


@example(loss="mae")
def ddim_residual_unet():
    def residual_block(x, width):
        residual = x if x.shape[3] == width else L.Conv2D(width, kernel_size=1)(x)
        x = L.BatchNormalization(center=False, scale=False)(x)
        x = L.Conv2D(width, kernel_size=3, padding="same", activation="swish")(x)
        x = L.Conv2D(width, kernel_size=3, padding="same")(x)
        return L.Add()([x, residual])

    images, variances = keras.Input(shape=(32, 32, 3)), keras.Input(shape=(1, 1, 1))
    angular = ops.exp(ops.linspace(0.0, 6.9, 8)) * 2.0 * 3.14159
    embedded = ops.concatenate([ops.sin(variances * angular), ops.cos(variances * angular)], axis=3)
    e = L.UpSampling2D(size=32, interpolation="nearest")(embedded)
    x = L.Concatenate()([L.Conv2D(8, kernel_size=1)(images), e])
    skips = []
    for width in (8, 12):
        x = residual_block(x, width)
        skips.append(x)
        x = L.AveragePooling2D(pool_size=2)(x)
    x = residual_block(x, 16)
    for width in (12, 8):
        x = L.UpSampling2D(size=2, interpolation="bilinear")(x)
        x = residual_block(L.Concatenate()([x, skips.pop()]), width)
    x = L.Conv2D(3, kernel_size=1, kernel_initializer="zeros")(x)
    return keras.Model([images, variances], x, name="residual_unet")


@example(sizes={0: (8, 8, 32)})
def adain_decoder():
    config = {"kernel_size": 3, "strides": 1, "padding": "same", "activation": "relu"}
    return keras.Sequential([
        L.InputLayer((None, None, 32)),
        L.Conv2D(filters=32, **config),
        L.UpSampling2D(),
        L.Conv2D(filters=16, **config),
        L.Conv2D(filters=16, **config),
        L.UpSampling2D(),
        L.Conv2D(filters=3, kernel_size=3, strides=1, padding="same", activation="sigmoid"),
    ])


@example()
def vq_vae_encoder():
    inputs = keras.Input(shape=(28, 28, 1))
    x = L.Conv2D(32, 3, activation="relu", strides=2, padding="same")(inputs)
    x = L.Conv2D(64, 3, activation="relu", strides=2, padding="same")(x)
    return keras.Model(inputs, L.Conv2D(16, 1, padding="same")(x), name="encoder")


# Audio.


@example(loss="sparse_categorical_crossentropy", optimizer="adam")
def speaker_recognition():
    def residual_block(x, filters, count=3):
        s = L.Conv1D(filters, 1, padding="same")(x)
        for _ in range(count - 1):
            x = L.Conv1D(filters, 3, padding="same")(x)
            x = L.Activation("relu")(x)
        x = L.Conv1D(filters, 3, padding="same")(x)
        x = L.Add()([x, s])
        x = L.Activation("relu")(x)
        return L.MaxPool1D(pool_size=2, strides=2)(x)

    inputs = L.Input(shape=(256, 1), name="input")
    x = residual_block(inputs, 8, 2)
    x = residual_block(x, 16, 2)
    x = residual_block(x, 16, 3)
    x = L.AveragePooling1D(pool_size=3, strides=3)(x)
    x = L.Flatten()(x)
    x = L.Dense(24, activation="relu")(x)
    return keras.Model(inputs, L.Dense(5, activation="softmax", name="output")(x))


@example(loss="categorical_crossentropy", sizes={0: (24, 33)})
def ctc_asr_deepspeech2():
    spectrogram = L.Input((None, 33), name="input")
    x = L.Reshape((-1, 33, 1), name="expand_dim")(spectrogram)
    x = L.Conv2D(8, [11, 41], strides=[2, 2], padding="same", use_bias=False, name="conv_1")(x)
    x = L.BatchNormalization(name="conv_1_bn")(x)
    x = L.ReLU(name="conv_1_relu")(x)
    x = L.Conv2D(8, [11, 21], strides=[1, 2], padding="same", use_bias=False, name="conv_2")(x)
    x = L.BatchNormalization(name="conv_2_bn")(x)
    x = L.ReLU(name="conv_2_relu")(x)
    x = L.Reshape((-1, x.shape[-2] * x.shape[-1]))(x)
    for i in range(1, 3):
        recurrent = L.GRU(
            units=12,
            activation="tanh",
            recurrent_activation="sigmoid",
            use_bias=True,
            return_sequences=True,
            reset_after=True,
            name=f"gru_{i}",
        )
        x = L.Bidirectional(recurrent, name=f"bidirectional_{i}", merge_mode="concat")(x)
        if i < 2:
            x = L.Dropout(rate=0.5)(x)
    x = L.Dense(units=24, name="dense_1")(x)
    x = L.ReLU(name="dense_1_relu")(x)
    return keras.Model(spectrogram, L.Dense(units=20, activation="softmax")(x), name="DeepSpeech_2")


@example(loss="categorical_crossentropy", optimizer="adam")
def accent_recognition():
    model = [L.Input((64,))]
    for units in (32, 24, 16, 8):
        model += [L.Dense(units, activation="relu"), L.Dropout(0.4)]
    return keras.Sequential([*model, L.Dense(6, activation="softmax")])


@example(loss="sparse_categorical_crossentropy")
def audio_stft():
    inputs = L.Input((400, 1))
    x = L.STFTSpectrogram(
        mode="log", frame_length=32, frame_step=16, fft_length=64, trainable=False, data_format="channels_last"
    )(inputs)
    x = L.Conv1D(8, 3, activation="relu")(x)
    x = L.BatchNormalization()(x)
    x = L.GlobalMaxPooling1D()(x)
    return keras.Model(inputs, L.Dense(10, activation="softmax")(x))


# Reinforcement learning.


@example()
def actor_critic():
    inputs = L.Input(shape=(4,))
    common = L.Dense(32, activation="relu")(inputs)
    return keras.Model(inputs, [L.Dense(2, activation="softmax")(common), L.Dense(1)(common)])


@example()
def deep_q_network():
    return keras.Sequential([
        keras.Input((4, 44, 44)),
        L.Permute((2, 3, 1)),
        L.Conv2D(8, 8, strides=4, activation="relu"),
        L.Conv2D(12, 4, strides=2, activation="relu"),
        L.Conv2D(12, 3, strides=1, activation="relu"),
        L.Flatten(),
        L.Dense(32, activation="relu"),
        L.Dense(4, activation="linear"),
    ])


@example()
def ddpg_actor():
    last_init = keras.initializers.RandomUniform(minval=-0.003, maxval=0.003)
    inputs = L.Input(shape=(3,))
    out = L.Dense(32, activation="relu")(inputs)
    out = L.Dense(32, activation="relu")(out)
    outputs = L.Dense(1, activation="tanh", kernel_initializer=last_init)(out)
    return keras.Model(inputs, outputs * 2.0)


@example()
def ddpg_critic():
    state = L.Input(shape=(3,))
    state_out = L.Dense(12, activation="relu")(L.Dense(8, activation="relu")(state))
    action = L.Input(shape=(1,))
    action_out = L.Dense(12, activation="relu")(action)
    out = L.Dense(16, activation="relu")(L.Concatenate()([state_out, action_out]))
    return keras.Model([state, action], L.Dense(1)(out))


def without_dropout(layer):
    for attribute in ("rate", "dropout", "recurrent_dropout", "_dropout"):
        # Recurrent layers show the rates of their cells.
        if isinstance(vars(layer).get(attribute), float):
            setattr(layer, attribute, 0.0)
    for inner in layer._layers:
        without_dropout(inner)


def all_models():
    """Yields (name, model, options), as file_models.py does."""
    for name, (build, options) in EXAMPLES.items():
        model = build()
        without_dropout(model)
        loss = options.get("loss", "mse")
        count = len(model.outputs)
        model.compile(options.get("optimizer", "sgd"), loss if count == 1 else [loss] * count)
        known = {"legacy": False, "probabilities": loss != "mse"}
        yield name, model, known | options
