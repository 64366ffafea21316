"""A perceptron on MNIST that goes on from its last checkpoint: Keras' guide to distributed training.

Differences from the guide: the strategy comes from phalanx, and arrays are passed to `fit` as they are.
"""

import os

import keras

import phalanx

EPOCHS = int(os.environ.get("EPOCHS", 1))


def get_compiled_model():
    # Make a simple 2-layer densely-connected neural network.
    inputs = keras.Input(shape=(784,))
    x = keras.layers.Dense(256, activation="relu")(inputs)
    x = keras.layers.Dense(256, activation="relu")(x)
    outputs = keras.layers.Dense(10)(x)
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer=keras.optimizers.Adam(),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
    return model


def get_dataset():
    # Reserve the last samples for validation.
    (x_train, y_train), (x_test, y_test) = keras.datasets.mnist.load_data()
    num_val_samples = len(x_train) // 6
    x_train = x_train.reshape(-1, 784).astype("float32") / 255
    x_test = x_test.reshape(-1, 784).astype("float32") / 255
    y_train = y_train.astype("float32")
    y_test = y_test.astype("float32")
    return (
        (x_train[:-num_val_samples], y_train[:-num_val_samples]),
        (x_train[-num_val_samples:], y_train[-num_val_samples:]),
        (x_test, y_test),
    )


# Prepare a directory to store all the checkpoints.
checkpoint_dir = "./ckpt"
if not os.path.exists(checkpoint_dir):
    os.makedirs(checkpoint_dir)


def make_or_restore_model():
    # Either restore the latest model, or create a fresh one if there is no checkpoint available.
    checkpoints = [checkpoint_dir + "/" + name for name in os.listdir(checkpoint_dir)]
    if checkpoints:
        latest_checkpoint = max(checkpoints, key=os.path.getctime)
        print("Restoring from", latest_checkpoint)
        return keras.models.load_model(latest_checkpoint)
    print("Creating a new model")
    return get_compiled_model()


def run_training(epochs=1):
    # Create a MirroredStrategy.
    strategy = phalanx.MirroredStrategy()

    # Open a strategy scope and create/restore the model
    with strategy.scope():
        model = make_or_restore_model()

        callbacks = [
            # This callback saves the model every epoch.
            # We include the current epoch in the file name.
            keras.callbacks.ModelCheckpoint(filepath=checkpoint_dir + "/ckpt-{epoch}.keras", save_freq="epoch")
        ]
        model.fit(
            *train_dataset,
            epochs=epochs,
            callbacks=callbacks,
            validation_data=val_dataset,
            verbose=2,
        )
        return model


train_dataset, val_dataset, test_dataset = get_dataset()

# Running the first time creates the model
run_training(epochs=EPOCHS)

# Calling the same function again will resume from where we left off
model = run_training(epochs=EPOCHS)

model.evaluate(*test_dataset)
