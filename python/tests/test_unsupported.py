"""What Phalanx cannot train is refused with all reasons at once, or left to Keras if the strategy says so."""

import warnings

import keras
import numpy as np
import pytest
from conftest import attached, build_model, compile_model, twins

import phalanx


@keras.saving.register_keras_serializable("test")
class Twice(keras.layers.Layer):
    def call(self, x):
        return 2 * x


def my_loss(y_true, y_pred):
    return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)


def model_with(*layers):
    return keras.Sequential([keras.layers.Input((4,)), *layers, keras.layers.Dense(3, "softmax")], name="model")


class CustomStep(keras.Model):
    def train_step(self, data):
        return {}


def subclassed():
    inputs = keras.Input((4,))
    return CustomStep(inputs, keras.layers.Dense(3)(inputs), name="model")


REFUSED = {
    "custom layer": (lambda: model_with(Twice(name="twice")), {}, ["layer 'twice' (Twice) is unknown"]),
    "lambda": (lambda: model_with(keras.layers.Lambda(lambda x: x, name="l")), {}, ["layer 'l' (Lambda)"]),
    "loss": (build_model, {"loss": my_loss}, ["loss 'my_loss' is a Python function"]),
    "metric": (build_model, {"metrics": [my_loss]}, ["metric 'my_loss' is a Python function"]),
    "eager": (build_model, {"run_eagerly": True}, ["run_eagerly=True"]),
    "states": (
        lambda: keras.Sequential(
            [keras.layers.Input(batch_shape=(2, 3, 4)), keras.layers.GRU(3, stateful=True, name="gru")], name="model"
        ),
        {},
        ["layer 'gru': stateful=True"],
    ),
    "axis of a loss": (
        build_model,
        {"loss": keras.losses.SparseCategoricalCrossentropy(axis=1)},
        ["SparseCategoricalCrossentropy: axis: expected -1, received 1"],
    ),
    "an ignored class": (
        build_model,
        {"metrics": [keras.metrics.SparseCategoricalCrossentropy(ignore_class=1)]},
        ["SparseCategoricalCrossentropy: ignore_class: expected null, received 1"],
    ),
    "step": (subclassed, {}, ["model class 'CustomStep'", "method 'train_step' is overridden"]),
    "several": (
        lambda: model_with(Twice(name="twice"), keras.layers.Lambda(lambda x: x, name="l")),
        {"loss": my_loss, "run_eagerly": True},
        ["'twice' (Twice)", "'l' (Lambda)", "my_loss", "run_eagerly=True"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_every_unsupported_part_is_named(strategy, name):
    build, arguments, reasons = REFUSED[name]
    with pytest.raises(phalanx.UnsupportedError) as error:
        attached(strategy, build(), **arguments)
    text = str(error.value)
    assert text.startswith("phalanx cannot train 'model': ") and 'fallback="keras"' in text
    assert isinstance(error.value, NotImplementedError)
    for reason in reasons:
        assert any(reason in part for part in error.value.reasons), error.value.reasons
    assert len(error.value.reasons) == len(reasons), error.value.reasons


@pytest.mark.parametrize("name", ["custom layer", "loss", "several"])
def test_keras_trains_after_one_warning_if_the_strategy_says_so(data, name):
    build, arguments, _ = REFUSED[name]
    strategy = phalanx.MirroredStrategy(["cpu:0"], fallback="keras")
    with pytest.warns(UserWarning, match="Keras trains 'model', since phalanx cannot") as warned:
        model = attached(strategy, build(), **arguments)
        model.fit(*data, verbose=0, validation_data=data)
        model.evaluate(*data, verbose=0)
        assert model.predict(data[0], verbose=0).shape == (60, 3)
        model.train_on_batch(*data)
    assert sum("phalanx cannot" in str(warning.message) for warning in warned) == 1


def test_a_refused_model_is_not_attached(strategy, data):
    model = model_with(Twice())
    with pytest.raises(phalanx.UnsupportedError):
        attached(strategy, model)
    assert "fit" not in vars(model)
    compile_model(model).fit(*data, verbose=0)


def test_an_unbuilt_model_is_checked_when_fit_builds_it(strategy, data):
    model = attached(strategy, keras.Sequential([Twice(), keras.layers.Dense(3, "softmax")], name="model"))
    with pytest.raises(phalanx.UnsupportedError, match="Twice"):
        model.fit(*data, verbose=0)


def test_an_open_size_is_refused_by_name(strategy):
    inputs = keras.Input((None, None, 3))
    x = keras.layers.Flatten(name="flat")(keras.layers.Conv2D(2, 3)(inputs))
    try:
        model = keras.Model(inputs, keras.layers.Dense(2, name="head")(x))
    except ValueError:
        pytest.skip("Keras itself refuses the model")
    with pytest.raises((phalanx.UnsupportedError, ValueError), match="flat|head"):
        attached(strategy, model, loss="mse", metrics=[]).fit(np.zeros((2, 8, 8, 3)), np.zeros((2, 2)), verbose=0)


def test_explain_describes_devices_and_memory_or_all_reasons(strategy):
    text = phalanx.explain(attached(strategy), batch_size=64)
    assert "phalanx trains 'model' on cpu:0 (1 replica)" in text
    assert "batch: 64 global, 64 per replica" in text and "total" in text
    text = phalanx.explain(compile_model(model_with(Twice(name="twice")), loss=my_loss))
    assert "cannot train 'model'" in text and "twice" in text and "my_loss" in text


def test_a_model_trains_after_explain(strategy, data):
    model = attached(strategy)
    plan = phalanx.explain(model)
    assert "gradients" in plan
    assert "optimizer slots" in plan
    model.fit(*data, verbose=0)
    assert int(model.optimizer.iterations) == 2
    assert len(model.evaluate(*data, verbose=0)) == 2
    assert phalanx.explain(model) == plan


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"devices": []}, "at least one device"),
        ({"devices": ["cpu:0", "cpu:0"]}, "each device once"),
        ({"devices": ["tpu:0"]}, "expected a name such as 'gpu:0'"),
        ({"devices": ["gpu:97"]}, "gpu:97"),
        ({"threads": 0}, "expected 1 or more"),
        ({"fallback": "numpy"}, "fallback: expected one of"),
        ({"on_nan": "ignore"}, "on_nan: expected one of"),
    ],
)
def test_wrong_arguments_of_a_strategy(arguments, message):
    with pytest.raises(ValueError, match=message):
        phalanx.MirroredStrategy(**arguments)


def test_device_names_of_tensorflow_are_understood():
    assert phalanx.MirroredStrategy(["/device:CPU:0", "CPU:1"]).devices == ["cpu:0", "cpu:1"]
    assert "cpu:0" in phalanx.list_physical_devices("CPU")


def test_keras_trains_every_batch_of_a_generator_for_a_model_that_is_not_built(data):
    strategy = phalanx.MirroredStrategy(["cpu:0"], fallback="keras")
    read = []

    def batches():
        for start in range(0, 60, 15):
            read.append(start)
            yield data[0][start : start + 15], data[1][start : start + 15]

    with pytest.warns(UserWarning, match="phalanx cannot"):
        model = attached(strategy, keras.Sequential([Twice(), keras.layers.Dense(3, "softmax")], name="model"))
        model.fit(batches(), steps_per_epoch=4, verbose=0)
    assert int(model.optimizer.iterations) == 4
    assert set(read) == {0, 15, 30, 45}


def pooled():
    inputs = keras.Input((5, 4), name="steps")
    mask = keras.Input((5,), dtype="bool", optional=True, name="mask")
    mean = keras.layers.GlobalAveragePooling1D()(inputs, mask=mask)
    return keras.Model([inputs, mask], keras.layers.Dense(1)(mean), name="model")


steps = np.random.default_rng(0).random((40, 5, 4)).astype("float32")
given, missing, targets = [steps, np.ones((40, 5), bool)], [steps, None], steps[:, 0, :1]


def generator(x, y):
    for start in range(0, len(y), 10):
        yield tuple(part if part is None else part[start : start + 10] for part in x), y[start : start + 10]


def train(model, way, x, y):
    if way == "arrays":
        return model.fit(x, y, batch_size=10, shuffle=False, verbose=0).history["loss"]
    if way == "generator":
        return model.fit(generator(x, y), verbose=0).history["loss"]
    if way == "validation":
        history = model.fit(given, y, validation_data=(x, y), shuffle=False, verbose=0).history
        return [history["loss"][0], history["val_loss"][0]]
    if way == "evaluate":
        return model.evaluate(x, y, verbose=0)
    return getattr(model, way)(x, y)


@pytest.mark.parametrize("way", ["arrays", "generator", "validation", "evaluate", "train_on_batch", "test_on_batch"])
def test_unsupported_data_is_refused_or_left_to_keras(strategy, way):
    arguments, reason = {"loss": "mse", "metrics": None}, "input 'mask' is missing"
    model = attached(strategy, pooled(), **arguments)
    train(model, "arrays", given, targets)
    with pytest.raises(phalanx.UnsupportedError, match=f"cannot train 'model': .*{reason}(?s:.*)fallback") as error:
        train(model, way, missing, targets)
    assert len(error.value.reasons) == 1 and reason in error.value.reasons[0]
    ours, theirs = twins(phalanx.MirroredStrategy(["cpu:0"], fallback="keras"), pooled, **arguments)
    for twin in (ours, theirs):
        train(twin, "arrays", given, targets)
    with pytest.warns(UserWarning, match=reason) as caught:
        received = train(ours, way, missing, targets)
    assert any(warning.filename == __file__ for warning in caught)
    np.testing.assert_allclose(received, train(theirs, way, missing, targets), rtol=1e-3)
    train(ours, "arrays", given, targets)


def test_keras_trains_on_all_batches_of_generators_that_were_opened():
    losses = []
    for model in twins(phalanx.MirroredStrategy(["cpu:0"], fallback="keras"), pooled, loss="mse", metrics=None):
        held_out = generator([2 * steps, None], targets)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            training = generator(given, targets)
            history = model.fit(training, validation_data=held_out, validation_steps=4, verbose=0).history
        losses.append([history["loss"][0], history["val_loss"][0]])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def test_training_without_a_loss_metrics_and_penalties_is_refused(strategy, data):
    model = attached(strategy, loss=None, metrics=None)
    for method in (model.fit, model.evaluate):
        with pytest.raises(phalanx.UnsupportedError, match="had no loss"):
            method(*data, verbose=0)
    with pytest.raises(phalanx.UnsupportedError, match="had no loss"):
        model.test_on_batch(*data)
    assert model.predict(data[0], verbose=0).shape[0] == len(data[0])


def test_variables_without_weight_decay_are_refused_also_after_compile(strategy, data):
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.5)
    model = attached(strategy, optimizer=optimizer)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    with pytest.raises(phalanx.UnsupportedError, match="optimizer 'AdamW': exclude_from_weight_decay"):
        model.fit(*data, verbose=0)
    optimizer.exclude_from_weight_decay()
    model.fit(*data, verbose=0)


def test_another_epsilon_is_refused(strategy):
    epsilon = keras.config.epsilon()
    keras.config.set_epsilon(1e-2)
    try:
        with pytest.raises(phalanx.UnsupportedError, match=r"keras\.config\.set_epsilon\(0\.01\)"):
            attached(strategy)
    finally:
        keras.config.set_epsilon(epsilon)
    attached(strategy)
