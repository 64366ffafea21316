"""Every kind of data trains as the same arrays do."""

import contextlib
import importlib.util
import os
import pathlib
import time
import warnings

import keras
import numpy as np
import pandas
import pytest
from conftest import assert_same_weights, attached, build_model, classification_data, twins

import phalanx

EXACT = {"rtol": 0, "atol": 0}


def trained(strategy, *args, **arguments):
    keras.utils.set_random_seed(1)
    model = attached(strategy)
    arguments = {"batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0, **arguments}
    model.fit(*args, **{name: value for name, value in arguments.items() if value is not None})
    return model


@pytest.fixture
def expected(strategy, data):
    return trained(strategy, *data)


@pytest.mark.parametrize("dtype", ["float64", "float16", "float32"])
def test_floats_of_any_width(strategy, data, dtype):
    x, y = data
    x = np.round(x * 8) / 8
    model = trained(strategy, x.astype(dtype), y.astype(dtype))
    assert_same_weights(model, trained(strategy, x, y), **EXACT)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint64", ">i4", "bool"])
def test_integers_of_any_width(strategy, data, dtype):
    x = (np.abs(data[0]) * 2).astype("int32")
    x = x.astype(bool).astype("int32") if dtype == "bool" else x
    model = trained(strategy, x.astype(dtype), data[1])
    assert_same_weights(model, trained(strategy, x.astype("float32"), data[1]), **EXACT)


def test_views_with_strides_and_lists(strategy, data, expected):
    x, y = data
    wide = np.repeat(x, 2, axis=1)
    assert_same_weights(trained(strategy, wide[:, ::2], np.asfortranarray(y)), expected, **EXACT)


def test_tensors_of_the_backend(strategy, data, expected):
    x, y = (keras.ops.convert_to_tensor(array) for array in data)
    assert_same_weights(trained(strategy, x, y), expected, **EXACT)


def test_pandas(strategy, data, expected):
    x, y = pandas.DataFrame(data[0], columns=list("abcd")), pandas.DataFrame(data[1])
    assert_same_weights(trained(strategy, x, y), expected, **EXACT)


def test_generators(strategy, data, expected):
    x, y = data

    def batches():
        while True:
            for start in range(0, len(x), 16):
                yield x[start : start + 16], y[start : start + 16]

    model = trained(strategy, batches(), steps_per_epoch=4, batch_size=None)
    assert_same_weights(model, expected, **EXACT)


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y, **arguments):
        super().__init__(**arguments)
        self.x, self.y, self.epochs = x, y, 0

    def __len__(self):
        return -(-len(self.x) // 16)

    def __getitem__(self, index):
        return self.x[16 * index : 16 * (index + 1)], self.y[16 * index : 16 * (index + 1)]

    def on_epoch_end(self):
        self.epochs += 1


@pytest.mark.parametrize("workers", [1, 2])
def test_py_datasets(strategy, data, expected, workers):
    dataset = Batches(*data, workers=workers, max_queue_size=4)
    assert_same_weights(trained(strategy, dataset, batch_size=None), expected, **EXACT)
    assert dataset.epochs >= 2


def test_validation_and_prediction_of_a_py_dataset(strategy, data):
    model = attached(strategy)
    history = model.fit(Batches(*data), validation_data=Batches(*data), epochs=2, verbose=0).history
    np.testing.assert_allclose(history["val_loss"][-1], model.evaluate(*data, verbose=0)[0], rtol=1e-5)
    np.testing.assert_allclose(model.predict(Batches(*data), verbose=0), model.predict(data[0], verbose=0), rtol=1e-6)
    assert len(model.predict(Batches(*data), steps=2, verbose=0)) == 32


def test_class_weights_of_batches(strategy, data):
    weights = {0: 2.0, 1: 0.5}
    model = trained(strategy, Batches(*data), batch_size=None, class_weight=weights)
    assert_same_weights(model, trained(strategy, *data, class_weight=weights), rtol=1e-5, atol=1e-6)


def test_batches_of_different_sizes(strategy, data):
    x, y = data

    def batches():
        for rows in (slice(0, 8), slice(8, 40), slice(40, 60)):
            yield x[rows], y[rows]

    with pytest.warns(UserWarning, match="ran out of data"):
        model = trained(strategy, batches(), batch_size=None, epochs=1)
    assert int(model.optimizer.iterations) == 3


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs PyTorch")
def test_data_loaders(strategy, data, expected):
    import torch

    pairs = torch.utils.data.TensorDataset(*(torch.from_numpy(array) for array in data))
    loader = torch.utils.data.DataLoader(pairs, batch_size=16)
    assert_same_weights(trained(strategy, loader, batch_size=None), expected, **EXACT)


needs_tensorflow = pytest.mark.skipif(not importlib.util.find_spec("tensorflow"), reason="needs TensorFlow")


@needs_tensorflow
@pytest.mark.parametrize("after", ["batch", "prefetch", "cache", "map"])
def test_tf_data(strategy, data, expected, after):
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(data).batch(16)
    dataset = {
        "batch": lambda: dataset,
        "prefetch": lambda: dataset.prefetch(2),
        "cache": lambda: dataset.cache(),
        "map": lambda: dataset.map(lambda x, y: (x, y)),
    }[after]()
    assert_same_weights(trained(strategy, dataset, batch_size=None), expected, **EXACT)


@needs_tensorflow
def test_endless_tf_data(strategy, data):
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(data).repeat().batch(16)
    model = trained(strategy, dataset, batch_size=None, steps_per_epoch=5, epochs=3)
    assert int(model.optimizer.iterations) == 15


def test_image_data_generators(strategy):
    from keras.src.legacy.preprocessing.image import ImageDataGenerator

    rng = np.random.default_rng(0)
    x, y = rng.random((40, 8, 8, 3)).astype("float32"), rng.random((40, 2)).astype("float32")

    def build():
        return keras.Sequential([keras.layers.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(2)])

    # The generator has three batches: the second epoch gets the last one and ends with a warning.
    for model in twins(strategy, build, loss="mse", metrics=[]):
        flow = ImageDataGenerator(horizontal_flip=True).flow(x, y, batch_size=16)
        with pytest.warns(UserWarning, match="ran out of data"):
            history = model.fit(flow, steps_per_epoch=2, epochs=3, validation_data=(x, y), verbose=0)
        assert int(model.optimizer.iterations) == 5 and len(history.history["val_loss"]) == 3


def test_the_arrays_are_not_copied(strategy):
    rng = np.random.default_rng(0)
    x = rng.random((3000, 4)).astype("float32")
    seen = phalanx._phalanx.ArrayData([x], [], None, 8)
    before = x.copy()
    model = build_model()
    attached(strategy, model).fit(x, classification_data(3000)[1], verbose=0)
    np.testing.assert_array_equal(x, before)
    assert seen is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": np.zeros((8, 5)), "y": np.zeros((8, 3))}, "Expected shape .None, 4."),
        ({"x": np.zeros((8, 4)), "y": np.zeros((7, 3))}, "cardinality|same number|sizes"),
        ({"x": np.zeros((8, 4)), "y": np.zeros((8, 2))}, "expected 8 rows of .* 3"),
        (
            {"x": np.zeros((8, 4)), "y": np.zeros((8, 3)), "sample_weight": np.zeros((8, 2))},
            "sample weights: expected one for each sample",
        ),
        ({"x": np.full((8, 4), 2**40), "y": np.zeros((8, 3))}, "integers of 32 bits"),
    ],
)
def test_data_that_does_not_fit_is_an_error_that_says_why(strategy, arguments, message):
    with pytest.raises(ValueError, match=message):
        attached(strategy).fit(**arguments, verbose=0)


class Growing(keras.utils.PyDataset):
    """Batches of ten rows; `grow` of them are added after each epoch."""

    def __init__(self, data, batches, grow=0):
        super().__init__()
        self.data, self.batches, self.grow = data, batches, grow
        self.read, self.begun, self.ended = [], 0, 0

    def __len__(self):
        return self.batches

    def __getitem__(self, index):
        self.read.append(index)
        return tuple(part[10 * index : 10 * index + 10] for part in self.data)

    def on_epoch_begin(self):
        self.begun += 1

    def on_epoch_end(self):
        self.ended += 1
        self.batches += self.grow


@pytest.mark.parametrize(("batches", "grow"), [(2, 1), (3, 0), (6, -1)])
def test_a_py_dataset_that_changes_its_length_trains_on_the_batches_that_keras_takes(strategy, data, batches, grow):
    # Not Adam: Keras on TensorFlow counts a step more when data ends early.
    results = []
    for model in twins(strategy, optimizer="sgd"):
        train, held_out = Growing(data, batches, grow), Growing(data, 2)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            history = model.fit(train, epochs=3, shuffle=False, validation_data=held_out, verbose=0)
            model.evaluate(held_out, verbose=0)
            model.predict(held_out, verbose=0)
        ran_out = sum("ran out of data" in str(warning.message) for warning in caught)
        results.append((history.history, ran_out, train.ended, held_out.ended, sorted(set(train.read))))
    (history, *ours), (expected, *others) = results
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-4)
    if keras.backend.backend() != "tensorflow":
        # TensorFlow reads ahead in a thread of its own.
        assert ours == others


def test_data_of_a_built_model_is_read_once(strategy, data):
    x, y = data
    dataset, read = Growing(data, 3), []
    model = attached(strategy)
    model.fit(x, y, verbose=0)
    model.fit(dataset, shuffle=False, verbose=0)
    assert dataset.read == [0, 1, 2] and (dataset.begun, dataset.ended) == (1, 2)

    def batches():
        for start in range(0, 30, 10):
            read.append(start)
            yield x[start : start + 10], y[start : start + 10]

    model.fit(batches(), verbose=0)
    assert read == [0, 10, 20]


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs TensorFlow")
@pytest.mark.parametrize("ending", [lambda d: d, lambda d: d.map(lambda x, y: (x, y)).filter(lambda x, y: True)])
def test_shuffled_tf_data_has_the_order_of_keras(strategy, data, ending):
    import tensorflow as tf

    losses = []
    for model in twins(strategy, optimizer="sgd"):
        model.fit(*data, shuffle=False, verbose=0)
        dataset = ending(tf.data.Dataset.from_tensor_slices(data).shuffle(100, seed=3).batch(7))
        losses.append([model.fit(dataset, epochs=2, verbose=0).history["loss"] for _ in range(2)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")
def test_shuffled_data_loaders_have_the_order_of_keras(strategy, data):
    import torch

    if keras.backend.backend() == "tensorflow":
        pytest.skip("Keras reads a DataLoader through tf.data, ahead of the steps")
    losses = []
    for model in twins(strategy):
        rows = torch.utils.data.TensorDataset(*map(torch.tensor, data))
        shuffled = torch.Generator().manual_seed(3)
        loader = torch.utils.data.DataLoader(rows, 7, shuffle=True, generator=shuffled)
        losses.append([model.fit(loader, epochs=2, verbose=0).history["loss"] for _ in range(2)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


def test_a_list_for_inputs_with_unsorted_keys_is_refused_as_in_keras(strategy, data):
    x, y = data
    inputs = {"u": keras.Input((4,), name="u"), "b": keras.Input((4,), name="b")}
    outputs = keras.layers.Dense(3, "softmax")(keras.layers.Subtract()([inputs["u"], inputs["b"]]))
    model = attached(strategy, keras.Model(inputs, outputs))
    with pytest.raises(ValueError, match="(?s)structure.*'u': 'u', 'b': 'b'"):
        model.fit([x, x], y, verbose=0)
    model.fit({"b": x, "u": x}, y, verbose=0)


def test_predictions_have_their_keys_in_the_order_of_keras(strategy, data):
    x, _ = data

    def build():
        inputs = keras.Input((4,))
        return keras.Model(inputs, {key: keras.layers.Dense(1, name=f"to_{key}")(inputs) for key in "zac"})

    model, plain = twins(strategy, build, loss={key: "mse" for key in "zac"}, metrics=None)
    for method in ("predict", "predict_on_batch"):
        received, expected = getattr(model, method)(x), getattr(plain, method)(x)
        assert list(received) == list(expected)
        for key in expected:
            np.testing.assert_allclose(received[key], expected[key], rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"epochs": 2.0}, TypeError, "fit: epochs: expected an integer, received 2.0"),
        ({"batch_size": 16.0}, TypeError, "fit: batch_size: expected an integer, received 16.0"),
        ({"batch_size": -1}, ValueError, "fit: batch_size: expected 1 or more, received -1"),
        ({"initial_epoch": -1}, ValueError, "fit: initial_epoch: expected 0 or more, received -1"),
    ],
)
def test_numbers_that_are_none_name_their_argument(strategy, data, arguments, error, message):
    with pytest.raises(error, match=message):
        attached(strategy).fit(*data, verbose=0, **arguments)


def data_threads():
    """The engine's threads that read data."""
    names = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            names.append(pathlib.Path(f"/proc/self/task/{task}/comm").read_text())
    return [name for name in names if name.startswith("phalanx-data")]


needs_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs PyTorch")


@needs_torch
@pytest.mark.parametrize("failing", [0, 3, 11, 25])
def test_an_exception_of_a_data_loader_comes_after_the_batches_before_it(strategy, failing):
    import torch

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 300

        def __getitem__(self, row):
            if row == 10 * failing + 5:
                raise ZeroDivisionError(f"row {row}")
            return x[row], y[row]

    x, y = classification_data(300)
    model = attached(strategy)
    model.fit(x[:10], y[:10], verbose=0)
    with pytest.raises(ZeroDivisionError, match=f"row {10 * failing + 5}$"):
        model.fit(torch.utils.data.DataLoader(Rows(), batch_size=10), verbose=0)
    # The batch before may be waiting for the next one.
    assert failing <= int(model.optimizer.iterations) <= 1 + failing
    assert not data_threads()
    model.fit(x[:10], y[:10], verbose=0)


@needs_torch
def test_data_loaders_are_read_again_in_each_epoch_and_to_the_end_of_the_steps_only(strategy):
    import torch

    class Rows(torch.utils.data.IterableDataset):
        def __iter__(self):
            begun.append(len(read))
            for row in zip(x, y, strict=True):
                read.append(row)
                yield row

    x, y = classification_data(400)
    read, begun = [], []
    model = attached(strategy)
    model.fit(x[:10], y[:10], verbose=0)
    model.fit(torch.utils.data.DataLoader(Rows(), batch_size=10), steps_per_epoch=3, epochs=2, verbose=0)
    assert int(model.optimizer.iterations) == 7
    assert len(read) == 60 and not data_threads()


@needs_torch
def test_data_loaders_whose_batches_differ_in_type_and_shape(strategy, data):
    import torch

    def collate(rows):
        kind = calls.append(0) or len(calls) % 4
        x, y = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
        x = torch.from_numpy(x.astype("float64") if kind == 1 else x)
        y = torch.from_numpy(np.asfortranarray(y) if kind == 2 else y)
        return {0: (x, y), 1: [x, y], 2: (x, y), 3: (x, y, torch.ones(len(x)))}[kind]

    calls = []
    loader = torch.utils.data.DataLoader(list(zip(*data, strict=True)), batch_size=16, collate_fn=collate)
    model = trained(strategy, loader, batch_size=None)
    assert_same_weights(model, trained(strategy, *data), rtol=1e-6, atol=1e-7)


@needs_tensorflow
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "bfloat16", "float64"])
def test_tf_data_of_any_type(strategy, data, dtype):
    import tensorflow as tf

    x = (np.abs(data[0]) > 1).astype("float32")
    rows = tf.data.Dataset.from_tensor_slices((tf.cast(x, dtype), data[1]))
    model = trained(strategy, rows.batch(16), batch_size=None)
    assert_same_weights(model, trained(strategy, x, data[1]), **EXACT)


def test_a_generator_is_read_two_batches_ahead(strategy):
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.05)
            seen.append((batch, len(read)))

    def batches():
        for start in range(0, 400, 10):
            read.append(start)
            yield x[start : start + 10], y[start : start + 10]

    x, y = classification_data(400)
    read, seen = [], []
    model = attached(strategy)
    model.fit(x[:10], y[:10], verbose=0)
    model.fit(batches(), steps_per_epoch=20, verbose=0, callbacks=[Stop()])
    # One batch trains, one is next, two are ready and one waits for a place.
    assert all(count <= batch + 1 + 4 for batch, count in seen), seen
    assert len(read) == 20
