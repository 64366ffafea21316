"""ResNet50 as a base on two chosen devices.

Differences from the tutorial: the strategy comes from phalanx and names the devices, and the images have a size
(undefined heights are refused). `--weights imagenet` needs the network, as in the tutorial.

    python resnet50.py --devices gpu:0 gpu:1 --weights imagenet
"""

import argparse

import keras
import numpy as np
from keras.applications import ResNet50
from keras.layers import Dense, GlobalAveragePooling2D
from keras.models import Model

import phalanx

ap = argparse.ArgumentParser()
ap.add_argument("--devices", nargs="+", default=["cpu:0", "cpu:1"])
ap.add_argument("--weights", choices=["imagenet"])
ap.add_argument("--size", type=int, default=224)
ap.add_argument("--epochs", type=int, default=10)
args = ap.parse_args()

# The model to train on several GPUs.
base_model = ResNet50(weights=args.weights, include_top=False, input_shape=(args.size, args.size, 3))

x = GlobalAveragePooling2D()(base_model.output)
x = Dense(256, activation="relu")(x)
x = Dense(128, activation="relu")(x)
predictions = Dense(10, activation="softmax")(x)
model = Model(inputs=base_model.input, outputs=predictions)

strategy = phalanx.MirroredStrategy(args.devices)
with strategy.scope():
    model.compile(optimizer="adam", loss="categorical_crossentropy", metrics=["accuracy"])

# The batch grows with the devices.
batch_size = 4
batch_size *= strategy.num_replicas_in_sync

rng = np.random.default_rng(0)
images = rng.random((4 * batch_size, args.size, args.size, 3), dtype="float32")
labels = keras.utils.to_categorical(rng.integers(0, 10, len(images)), 10)

model.fit(images, labels, epochs=args.epochs, batch_size=batch_size)
