"""Weights, slots and iterations read from Python are the trained ones, and assignments reach the devices."""

import copy
import pickle

import keras
import numpy as np
import pytest
from conftest import assert_same_weights, attached, build_model, classification_data, compile_model, twins

import phalanx

EPOCHS = {"rtol": 1e-3, "atol": 1e-4}


class Record(keras.callbacks.Callback):
    """Reads the model in every hook of epochs and batches."""

    def __init__(self, read):
        super().__init__()
        self.read, self.values = read, []

    def on_epoch_begin(self, epoch, logs=None):
        self.values.append(self.read(self.model))

    def on_train_batch_end(self, batch, logs=None):
        self.values.append(self.read(self.model))

    def on_epoch_end(self, epoch, logs=None):
        self.values.append(self.read(self.model))


def slot_of(optimizer):
    """The first slot; zeros as long as Keras on TensorFlow has not built the optimizer."""
    variables = optimizer.variables[2:]
    return np.array(keras.ops.convert_to_numpy(variables[0])) if variables else np.zeros((4, 8))


READS = {
    "get_weights": lambda model: model.get_weights()[0].copy(),
    "numpy": lambda model: np.array(keras.ops.convert_to_numpy(model.layers[0].kernel)),
    "call": lambda model: keras.ops.convert_to_numpy(model(np.ones((2, 4), "float32"), training=False)),
    "predict": lambda model: model.predict(np.ones((2, 4), "float32"), verbose=0),
    "iterations": lambda model: int(model.optimizer.iterations),
    "slot": lambda model: slot_of(model.optimizer),
}


@pytest.mark.parametrize("name", READS)
def test_every_hook_reads_the_weights_of_the_last_step(strategy, data, name):
    records = []
    for model in twins(strategy):
        record = Record(READS[name])
        model.fit(*data, batch_size=20, epochs=2, shuffle=False, verbose=0, callbacks=[record])
        records.append(record.values)
    assert len(records[0]) == 10
    for ours, theirs in zip(*records, strict=True):
        np.testing.assert_allclose(ours, theirs, **EPOCHS)


def test_an_assignment_in_any_hook_reaches_the_devices(strategy, data):
    class Assign(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                self.model.layers[0].kernel.assign(np.full((4, 8), 0.25))

        def on_epoch_end(self, epoch, logs=None):
            weights = self.model.get_weights()
            self.model.set_weights([weight * 0.5 for weight in weights])

    ours, theirs = twins(strategy)
    for model in (ours, theirs):
        model.fit(*data, batch_size=20, epochs=2, shuffle=False, verbose=0, callbacks=[Assign()])
    assert_same_weights(ours, theirs, **EPOCHS)


def test_an_assignment_between_two_fits_counts(strategy, data):
    ours, theirs = twins(strategy)
    for model in (ours, theirs):
        model.fit(*data, shuffle=False, verbose=0)
        model.layers[-1].bias.assign([1.0, -1.0, 0.0])
        model.optimizer.learning_rate = 0.01
        model.fit(*data, shuffle=False, verbose=0)
    assert_same_weights(ours, theirs, **EPOCHS)
    assert int(ours.optimizer.iterations) == 4
    np.testing.assert_allclose(ours.predict(data[0], verbose=0), theirs.predict(data[0], verbose=0), **EPOCHS)


@pytest.mark.parametrize(
    "hook", ["on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_epoch_end"]
)
def test_stopping_and_a_new_learning_rate_in_any_hook(strategy, data, hook):
    class Change(keras.callbacks.Callback):
        calls = 0

        def change(self):
            self.calls += 1
            self.model.optimizer.learning_rate = 0.5 / self.calls
            if self.calls == 3:
                self.model.stop_training = True

    def called(self, *args, **kwargs):
        self.change()

    setattr(Change, hook, called)
    epochs = []
    for model in (models := twins(strategy, optimizer="sgd")):
        history = model.fit(*data, batch_size=20, epochs=6, shuffle=False, verbose=0, callbacks=[Change()])
        epochs.append((history.epoch, int(model.optimizer.iterations)))
    assert epochs[0] == epochs[1]
    assert_same_weights(*models, **EPOCHS)


def test_a_saved_model_has_the_trained_weights_and_state(strategy, data, tmp_path):
    model = attached(strategy)
    model.fit(*data, verbose=0)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded).fit is type(model).fit and "fit" not in vars(loaded)
    assert_same_weights(loaded, model)
    for ours, theirs in zip(loaded.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
    other = build_model()
    other.load_weights(tmp_path / "model.weights.h5")
    assert_same_weights(other, model)


def test_a_model_loaded_in_the_scope_is_attached_and_goes_on(strategy, data, tmp_path):
    model = attached(strategy)
    model.fit(*data, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    with strategy.scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert "fit" in vars(loaded)
    for one in (model, loaded):
        one.fit(*data, shuffle=False, verbose=0)
    assert_same_weights(loaded, model, rtol=0, atol=0)
    assert int(loaded.optimizer.iterations) == 4


def test_weights_loaded_into_an_attached_model_count(strategy, data, tmp_path):
    model = attached(strategy)
    model.save_weights(tmp_path / "first.weights.h5")
    first = model.predict(data[0], verbose=0)
    model.fit(*data, epochs=2, verbose=0)
    assert not np.allclose(model.predict(data[0], verbose=0), first)
    model.load_weights(tmp_path / "first.weights.h5")
    np.testing.assert_allclose(model.predict(data[0], verbose=0), first, rtol=1e-6)


def test_freezing_and_compiling_again(strategy, data):
    ours, theirs = twins(strategy)
    for model in (ours, theirs):
        model.fit(*data, shuffle=False, verbose=0)
        model.get_layer("hidden").trainable = False
    with pytest.raises(ValueError, match="hidden.*compile"):
        ours.fit(*data, verbose=0)
    frozen = ours.get_layer("hidden").get_weights()
    for model in (ours, theirs):
        compile_model(model, "sgd").fit(*data, shuffle=False, verbose=0)
    assert_same_weights(ours, theirs, **EPOCHS)
    for before, after in zip(frozen, ours.get_layer("hidden").get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


def test_two_models_share_layers(strategy, data):
    x, y = data
    base = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(6, "relu", name="shared")])
    first = attached(strategy, keras.Sequential([keras.layers.Input((4,)), base, keras.layers.Dense(3, "softmax")]))
    second = attached(strategy, keras.Sequential([keras.layers.Input((4,)), base, keras.layers.Dense(3, "softmax")]))
    first.fit(x, y, verbose=0)
    kernel = base.get_weights()[0].copy()
    second.fit(x, y, verbose=0)
    assert not np.array_equal(base.get_weights()[0], kernel)
    kernel = base.get_weights()[0].copy()
    np.testing.assert_array_equal(first.layers[0].get_weights()[0], kernel)
    np.testing.assert_allclose(
        first.predict(x, verbose=0), keras.ops.convert_to_numpy(first(x, training=False)), rtol=1e-5, atol=1e-6
    )


def test_copies_are_plain_models(strategy, data):
    model = attached(strategy)
    model.fit(*data, verbose=0)
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert "fit" not in vars(twin)
        assert_same_weights(twin, model)
    clone = keras.models.clone_model(model)
    assert "fit" not in vars(clone)
    assert model.to_json() == keras.models.model_from_json(model.to_json()).to_json()
    assert {type(weight).__module__ for weight in clone.weights} == {
        type(weight).__module__ for weight in model.weights
    }


def test_restoring_the_best_weights_of_early_stopping(strategy, data):
    weights = {}

    class Keep(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            weights[epoch] = self.model.get_weights()

    model = attached(strategy, optimizer=keras.optimizers.SGD(5.0))
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)
    history = model.fit(*data, epochs=20, validation_data=data, verbose=0, callbacks=[Keep(), stopping])
    best = int(np.argmin(history.history["val_loss"]))
    assert stopping.best_epoch == best and len(history.epoch) == best + 3
    for ours, expected in zip(model.get_weights(), weights[best], strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_moving_averages_of_weights(strategy, data):
    arguments = {"optimizer": None}
    models = []
    for scope in (True, False):
        arguments["optimizer"] = keras.optimizers.Adam(use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=None)
        model = build_model()
        models.append(attached(strategy, model, **arguments) if scope else compile_model(model, **arguments))
    models[1].set_weights(models[0].get_weights())
    for model in models:
        model.fit(*data, epochs=2, shuffle=False, verbose=0)
    assert_same_weights(*models, **EPOCHS)


def test_weights_without_axes_are_read_and_saved(strategy, data, tmp_path):
    inputs = keras.Input((4,))
    normalization = keras.layers.Normalization()
    model = keras.Model(inputs, keras.layers.Dense(3, "softmax")(normalization(inputs)))
    normalization.adapt(data[0])
    attached(strategy, model).fit(*data, verbose=0)
    model.save(tmp_path / "model.keras")
    assert_same_weights(keras.models.load_model(tmp_path / "model.keras"), model)


def test_steps_of_an_optimizer_from_python_count(strategy, data):
    ours, theirs = twins(strategy, optimizer=keras.optimizers.SGD(0.5))
    theirs.optimizer = keras.optimizers.SGD(0.5)
    theirs.optimizer.build(theirs.trainable_variables)
    for model in (ours, theirs):
        if model is ours:
            model.fit(*data, epochs=0, verbose=0)
            model.evaluate(*data, verbose=0)
        gradients = [keras.ops.ones(variable.shape) for variable in model.trainable_variables]
        model.optimizer.apply(gradients, model.trainable_variables)
    np.testing.assert_allclose(ours.predict(data[0], verbose=0), theirs.predict(data[0], verbose=0), **EPOCHS)


def test_a_trained_model_inside_another(strategy, data):
    x, y = data
    base = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(6, "relu"), keras.layers.Dense(3)])
    base.compile("adam", "mse")
    base.fit(x, y, verbose=0)
    base.trainable = False
    frozen = base.get_weights()
    model = attached(strategy, keras.Sequential([keras.layers.Input((4,)), base, keras.layers.Dense(3, "softmax")]))
    model.fit(x, y, epochs=2, verbose=0)
    for before, after in zip(frozen, base.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


BACKEND = keras.backend.backend()


def test_readers_past_keras_see_the_weights_after_train_on_batch(strategy):
    """A GAN: a shared generator that is not compiled predicts between the steps."""
    generator = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(4)])
    critic = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    source = keras.layers.Input((4,))
    model = attached(strategy, keras.Model(source, critic(generator(source))), optimizer="sgd", loss="mse", metrics=[])
    x = classification_data(20)[0]
    # Traced before the first step, so no variable is known to be read past Keras.
    before = generator.predict(x, verbose=0)
    for _ in range(2):
        model.train_on_batch(x, np.ones((20, 1)))
        after = generator.predict(x, verbose=0)
        np.testing.assert_allclose(after, keras.ops.convert_to_numpy(generator(x)), rtol=1e-5, atol=1e-6)
        assert not np.allclose(before, after)
        before = after


@pytest.mark.skipif(BACKEND != "torch", reason="PyTorch")
def test_the_state_of_a_module_after_train_on_batch(strategy, data):
    model = attached(strategy)
    for _ in range(2):
        model.train_on_batch(*data)
        state = {name: value.numpy().copy() for name, value in model.state_dict().items()}
        for path, value in zip([weight.path for weight in model.weights], model.get_weights(), strict=True):
            assert any(value.shape == read.shape and np.array_equal(value, read) for read in state.values()), path


@pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow")
def test_assignments_of_a_traced_function_between_steps_count(strategy, data):
    import tensorflow as tf

    ours, theirs = twins(strategy, optimizer="sgd")
    for model in (ours, theirs):
        model.train_on_batch(*data)
        halve = tf.function(lambda model=model: [value.assign(value * 0.5) for value in model.trainable_variables])
        for _ in range(2):
            halve()
            model.train_on_batch(*data)
    assert_same_weights(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow")
def test_a_traced_function_in_a_hook_of_batches_sees_the_weights(strategy, data):
    import tensorflow as tf

    class Read(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append((traced(data[0][:4]).numpy(), self.model(data[0][:4]).numpy()))

    model = attached(strategy)
    model.train_on_batch(*data)
    traced = tf.function(lambda x: model(x))
    traced(data[0][:4])
    seen = []
    model.fit(*data, batch_size=20, epochs=2, callbacks=[Read()], verbose=0)
    assert len(seen) == 6
    for at_once, by_keras in seen:
        np.testing.assert_allclose(at_once, by_keras, rtol=1e-5, atol=1e-6)
    assert not np.allclose(seen[0][0], seen[-1][0])


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_train_batch_end", "on_epoch_end"])
def test_what_was_assigned_before_an_exception_in_a_hook_stays(strategy, data, hook, error):
    class Raise(keras.callbacks.Callback):
        done = False

        def act(self, number, logs=None):
            if self.done or number < (hook == "on_train_batch_end"):
                return
            self.done = True
            self.model.set_weights([np.ones_like(value) for value in self.model.get_weights()])
            self.model.optimizer.learning_rate = 0.125
            raise error

    model = attached(strategy, optimizer="sgd")
    callback = Raise()
    setattr(callback, hook, callback.act)
    with pytest.raises(error):
        model.fit(*data, batch_size=20, epochs=2, callbacks=[callback], verbose=0)
    for value in model.get_weights():
        np.testing.assert_array_equal(value, np.ones_like(value))
    assert float(model.optimizer.learning_rate) == 0.125
    # The devices have them too: all classes are equal.
    np.testing.assert_allclose(model.predict(data[0], verbose=0), np.full((60, 3), 1 / 3), rtol=1e-5)
    model.fit(*data, batch_size=60, verbose=0)
    assert float(model.optimizer.learning_rate) == 0.125


def test_a_data_set_that_sets_the_learning_rate_at_the_end_of_an_epoch(strategy, data):
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return tuple(part[20 * index : 20 * index + 20] for part in data)

        def on_epoch_end(self):
            model.optimizer.learning_rate = float(model.optimizer.learning_rate) / 2

    class Rates(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate))

    seen = []
    for attach in (lambda model: attached(strategy, model, optimizer=keras.optimizers.SGD(0.5)), compile_model):
        rates, model = [], attach(build_model())
        model.optimizer.learning_rate = 0.5
        model.fit(Batches(), epochs=2, shuffle=False, callbacks=[Rates()], verbose=0)
        seen.append([*rates, float(model.optimizer.learning_rate)])
    ours, theirs = seen
    # Keras on some backends ends an epoch before the first one.
    assert ours == theirs and ours[3] == ours[0] / 2


def test_predicting_after_trainable_changed_since_compile(strategy, data):
    ours, theirs = twins(strategy)
    ours.trainable = False
    # The first call creates the engine.
    np.testing.assert_allclose(*(model.predict(data[0], verbose=0) for model in (ours, theirs)), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(*(model.evaluate(*data, verbose=0) for model in (ours, theirs)), rtol=1e-4)
    assert not any(layer.trainable for layer in ours.layers)
    assert not ours.trainable_variables
    with pytest.raises(ValueError, match="`trainable` of .* changed since compile"):
        ours.fit(*data, verbose=0)
    ours.trainable = True
    for model in (ours, theirs):
        model.fit(*data, batch_size=20, shuffle=False, verbose=0)
    assert len(ours.optimizer.variables) == len(theirs.optimizer.variables)
    assert_same_weights(ours, theirs, **EPOCHS)


def test_predicting_after_a_layer_was_added_since_compile(strategy, data):
    ours, theirs = twins(strategy)
    for model in (ours, theirs):
        model.fit(*data, batch_size=60, shuffle=False, verbose=0)
    layer = keras.layers.Dense(3, activation="softmax")
    for model in (ours, theirs):
        model.add(layer)
    np.testing.assert_allclose(*(model.predict(data[0], verbose=0) for model in (ours, theirs)), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(*(model.evaluate(*data, verbose=0) for model in (ours, theirs)), rtol=1e-3)
    with pytest.raises(phalanx.UnsupportedError, match="optimizer was built for other weights: call compile"):
        ours.fit(*data, verbose=0)
    compile_model(ours)
    ours.fit(*data, verbose=0)
    assert int(ours.optimizer.iterations) == 2
