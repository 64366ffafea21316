"""A convolutional network on MNIST with callbacks: TensorFlow's tutorial on distributed training with Keras.

Differences from the tutorial: the strategy comes from phalanx, data from `keras.datasets`, checkpoints end in
`.weights.h5`, the learning rate is called `learning_rate`. TensorBoard needs TensorFlow, so it is left out without it.
"""

import glob
import importlib.util
import os

import keras
import numpy as np

import phalanx

(train_images, train_labels), (test_images, test_labels) = keras.datasets.mnist.load_data()

strategy = phalanx.MirroredStrategy()
print(f"Number of devices: {strategy.num_replicas_in_sync}")

BATCH_SIZE_PER_REPLICA = 64
BATCH_SIZE = BATCH_SIZE_PER_REPLICA * strategy.num_replicas_in_sync


def scale(images):
    return images[..., np.newaxis].astype("float32") / 255


with strategy.scope():
    model = keras.Sequential(
        [
            keras.layers.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(loss="sparse_categorical_crossentropy", optimizer=keras.optimizers.Adam(), metrics=["accuracy"])

checkpoint_dir = "./training_checkpoints"
checkpoint_prefix = os.path.join(checkpoint_dir, "ckpt_{epoch}.weights.h5")


def decay(epoch):
    if epoch < 3:
        return 1e-3
    elif epoch >= 3 and epoch < 7:
        return 1e-4
    else:
        return 1e-5


class PrintLR(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        rate = float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))
        print(f"\nLearning rate for epoch {epoch + 1} is {rate}")


callbacks = [
    keras.callbacks.ModelCheckpoint(filepath=checkpoint_prefix, save_weights_only=True),
    keras.callbacks.LearningRateScheduler(decay),
    PrintLR(),
]
if importlib.util.find_spec("tensorflow"):
    callbacks.append(keras.callbacks.TensorBoard(log_dir="./logs"))

EPOCHS = int(os.environ.get("EPOCHS", 12))
model.fit(scale(train_images), train_labels, batch_size=BATCH_SIZE, epochs=EPOCHS, callbacks=callbacks)

print(sorted(os.listdir(checkpoint_dir)))
latest = max(glob.glob(f"{checkpoint_dir}/*.weights.h5"), key=os.path.getmtime)
model.load_weights(latest)
eval_loss, eval_acc = model.evaluate(scale(test_images), test_labels, batch_size=BATCH_SIZE)
print(f"Eval loss: {eval_loss}, Eval accuracy: {eval_acc}")
