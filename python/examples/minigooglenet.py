"""MiniGoogLeNet on CIFAR-10 on several GPUs: the tutorial of PyImageSearch.

Differences from the tutorial: `multi_gpu_model` comes from phalanx (Keras 3 has none), `lr` is called `learning_rate`,
labels become one-hot rows by `to_categorical`, and the images are augmented by a `PyDataset` (Keras 3 without
TensorFlow has no `ImageDataGenerator`).

    python minigooglenet.py --output plot.png --gpus 4
"""

import argparse

import keras
import matplotlib
import numpy as np
from keras import layers

from phalanx import multi_gpu_model

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


def conv_module(x, filters, size, strides, padding="same"):
    x = layers.Conv2D(filters, size, strides=strides, padding=padding)(x)
    x = layers.BatchNormalization()(x)
    return layers.Activation("relu")(x)


def inception_module(x, filters_1x1, filters_3x3):
    return layers.concatenate([conv_module(x, filters_1x1, 1, 1), conv_module(x, filters_3x3, 3, 1)])


def downsample_module(x, filters):
    return layers.concatenate([conv_module(x, filters, 3, 2, padding="valid"), layers.MaxPooling2D(3, strides=2)(x)])


def build_minigooglenet(width, height, depth, classes):
    inputs = keras.Input((height, width, depth))
    x = conv_module(inputs, 96, 3, 1)
    x = inception_module(x, 32, 32)
    x = inception_module(x, 32, 48)
    x = downsample_module(x, 80)
    x = inception_module(x, 112, 48)
    x = inception_module(x, 96, 64)
    x = inception_module(x, 80, 80)
    x = inception_module(x, 48, 96)
    x = downsample_module(x, 96)
    x = inception_module(x, 176, 160)
    x = inception_module(x, 176, 160)
    x = layers.AveragePooling2D(7)(x)
    x = layers.Dropout(0.5)(x)
    x = layers.Flatten()(x)
    return keras.Model(inputs, layers.Dense(classes, activation="softmax")(x), name="googlenet")


class AugmentedImages(keras.utils.PyDataset):
    """Batches of images that are shifted by up to a tenth and mirrored at random."""

    def __init__(self, x, y, batch_size):
        super().__init__()
        self.x, self.y, self.batch_size = x, y, batch_size
        self.rng = np.random.default_rng(1)
        self.order = np.arange(len(x))

    def __len__(self):
        return len(self.x) // self.batch_size

    def __getitem__(self, index):
        rows = self.order[index * self.batch_size : (index + 1) * self.batch_size]
        return np.stack([self.augment(self.x[row]) for row in rows]), self.y[rows]

    def on_epoch_end(self):
        self.rng.shuffle(self.order)

    def augment(self, image):
        height, width, _ = image.shape
        down, right = (self.rng.integers(-(size // 10), size // 10 + 1) for size in (height, width))
        rows = np.clip(np.arange(height) - down, 0, height - 1)
        columns = np.clip(np.arange(width) - right, 0, width - 1)
        if self.rng.random() < 0.5:
            columns = columns[::-1]
        return image[rows][:, columns]


ap = argparse.ArgumentParser()
ap.add_argument("-o", "--output", required=True, help="path to output plot")
ap.add_argument("-g", "--gpus", type=int, default=1, help="# of GPUs to use for training")
ap.add_argument("-e", "--epochs", type=int, default=70, help="# of epochs to train")
args = vars(ap.parse_args())
G = args["gpus"]

NUM_EPOCHS = args["epochs"]
INIT_LR = 5e-3


def poly_decay(epoch):
    return INIT_LR * (1 - (epoch / float(NUM_EPOCHS)))


print("[INFO] loading CIFAR-10 data...")
((trainX, trainY), (testX, testY)) = keras.datasets.cifar10.load_data()
trainX = trainX.astype("float32")
testX = testX.astype("float32")
mean = np.mean(trainX, axis=0)
trainX -= mean
testX -= mean
trainY = keras.utils.to_categorical(trainY, 10)
testY = keras.utils.to_categorical(testY, 10)

callbacks = [keras.callbacks.LearningRateScheduler(poly_decay)]

print(f"[INFO] training with {G} GPUs...")
model = build_minigooglenet(width=32, height=32, depth=3, classes=10)
# Without a GPU, the CPU trains.
model = multi_gpu_model(model, gpus=G) if G else multi_gpu_model(model, gpus=["cpu:0"])

print("[INFO] compiling model...")
opt = keras.optimizers.SGD(learning_rate=INIT_LR, momentum=0.9)
model.compile(loss="categorical_crossentropy", optimizer=opt, metrics=["accuracy"])

print("[INFO] training network...")
H = model.fit(
    AugmentedImages(trainX, trainY, batch_size=64 * max(G, 1)),
    validation_data=(testX, testY),
    epochs=NUM_EPOCHS,
    callbacks=callbacks,
    verbose=2,
)

H = H.history
N = np.arange(0, len(H["loss"]))
plt.style.use("ggplot")
plt.figure()
plt.plot(N, H["loss"], label="train_loss")
plt.plot(N, H["val_loss"], label="test_loss")
plt.plot(N, H["accuracy"], label="train_acc")
plt.plot(N, H["val_accuracy"], label="test_acc")
plt.title("MiniGoogLeNet on CIFAR-10")
plt.xlabel("Epoch #")
plt.ylabel("Loss/Accuracy")
plt.legend()
plt.savefig(args["output"])
plt.close()
