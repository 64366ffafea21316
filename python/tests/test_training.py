"""Training, evaluation and prediction give Keras' numbers."""

import contextlib
import io
import re

import keras
import numpy as np
import pytest
from conftest import assert_same_weights, attached, build_model, classification_data, compile_model, twins

import phalanx

STEP = {"rtol": 1e-5, "atol": 1e-5}
EPOCHS = {"rtol": 1e-3, "atol": 1e-4}


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "rmsprop", "adamw", "nadam", "adagrad"])
def test_one_step_changes_weights_and_slots_as_keras_does(strategy, data, optimizer):
    ours, theirs = twins(strategy, optimizer=optimizer)
    for model in (ours, theirs):
        model.fit(*data, batch_size=60, shuffle=False, verbose=0)
    assert_same_weights(ours, theirs, **STEP)
    for left, right in zip(ours.optimizer.variables, theirs.optimizer.variables, strict=True):
        np.testing.assert_allclose(np.asarray(left), np.asarray(right), err_msg=left.path, **STEP)
    assert int(ours.optimizer.iterations) == 1


def test_history_results_and_predictions_are_those_of_keras(strategy, data):
    ours, theirs = twins(strategy)
    arguments = {"epochs": 3, "batch_size": 16, "shuffle": False, "verbose": 0, "validation_split": 0.2}
    history = [model.fit(*data, **arguments) for model in (ours, theirs)]
    assert list(history[0].history) == list(history[1].history)
    assert history[0].epoch == history[1].epoch
    assert ours.history is history[0]
    for name, values in history[1].history.items():
        np.testing.assert_allclose(history[0].history[name], values, err_msg=name, **EPOCHS)
    np.testing.assert_allclose(ours.evaluate(*data, verbose=0), theirs.evaluate(*data, verbose=0), **EPOCHS)
    results = [model.evaluate(*data, verbose=0, return_dict=True) for model in (ours, theirs)]
    assert list(results[0]) == list(results[1])
    predictions = ours.predict(data[0], verbose=0)
    np.testing.assert_allclose(predictions, theirs.predict(data[0], verbose=0), **EPOCHS)
    assert predictions.dtype == np.float32 and predictions.flags.writeable


def test_results_that_are_vectors_are_arrays_as_in_keras(strategy, data):
    def metrics():
        return [
            keras.metrics.F1Score(name="f1"),
            keras.metrics.Precision(thresholds=[0.2, 0.4], name="precision"),
            keras.metrics.AUC(thresholds=[0.3, 0.5], label_weights=[1.0, 2.0, 0.5], name="auc"),
            keras.metrics.MeanMetricWrapper(keras.losses.huber, name="huber", delta=0.2),
        ]

    x, y = data
    ours = attached(strategy, metrics=metrics())
    theirs = compile_model(build_model(), metrics=metrics())
    theirs.set_weights(ours.get_weights())
    seen = []
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(logs["f1"]))
    fit = {"epochs": 2, "batch_size": 16, "shuffle": False, "verbose": 0}
    history = [
        model.fit(x, y, callbacks=callbacks, **fit).history for model, callbacks in ((ours, [callback]), (theirs, []))
    ]
    assert list(history[0]) == list(history[1])
    for name, values in history[1].items():
        for left, right in zip(history[0][name], values, strict=True):
            assert type(left) is type(right) and np.shape(left) == np.shape(right), name
            np.testing.assert_allclose(left, right, err_msg=name, **EPOCHS)
    assert all(value.dtype == np.float32 and value.shape == (3,) for value in [*seen, *history[0]["f1"]])
    results = [model.evaluate(x, y, verbose=0, return_dict=True) for model in (ours, theirs)]
    assert list(results[0]) == list(results[1])
    for name, value in results[1].items():
        np.testing.assert_allclose(results[0][name], value, err_msg=name, **EPOCHS)
    lists = [model.evaluate(x, y, verbose=0) for model in (ours, theirs)]
    assert [np.shape(value) for value in lists[0]] == [np.shape(value) for value in lists[1]]
    results = [model.train_on_batch(x, y, return_dict=True)["precision"] for model in (ours, theirs)]
    np.testing.assert_allclose(*results, **EPOCHS)


def test_sample_and_class_weights(strategy, data):
    x, y = data
    sample_weight = np.linspace(0.5, 2.0, len(x)).astype("float32")
    for arguments in ({"sample_weight": sample_weight}, {"class_weight": {0: 1.0, 1: 3.0, 2: 0.25}}):
        ours, theirs = twins(strategy)
        logs = [m.fit(x, y, batch_size=32, shuffle=False, verbose=0, **arguments).history for m in (ours, theirs)]
        assert_same_weights(ours, theirs, **EPOCHS)
        np.testing.assert_allclose(logs[0]["loss"], logs[1]["loss"], **EPOCHS)


def test_validation_data_with_weights_steps_and_frequency(strategy, data):
    x, y = data
    weight = np.linspace(1.0, 2.0, 20).astype("float32")
    arguments = {
        "epochs": 4,
        "validation_data": (x[:20], y[:20], weight),
        "validation_freq": 2,
        "validation_batch_size": 5,
        "validation_steps": 3,
        "shuffle": False,
        "verbose": 0,
    }
    ours, theirs = twins(strategy)
    history = [model.fit(x, y, **arguments).history for model in (ours, theirs)]
    assert [len(values) for values in history[0].values()] == [len(values) for values in history[1].values()]
    for name, values in history[1].items():
        np.testing.assert_allclose(history[0][name], values, err_msg=name, **EPOCHS)


def test_initial_epoch_and_steps_per_epoch(strategy, data):
    ours, theirs = twins(strategy)
    arguments = {
        "epochs": 5,
        "initial_epoch": 2,
        "steps_per_epoch": 2,
        "batch_size": 10,
        "shuffle": False,
        "verbose": 0,
    }
    history = [model.fit(*data, **arguments) for model in (ours, theirs)]
    assert history[0].epoch == history[1].epoch == [2, 3, 4]
    np.testing.assert_allclose(history[0].history["loss"], history[1].history["loss"], **EPOCHS)
    assert int(ours.optimizer.iterations) == int(theirs.optimizer.iterations) == 6


def test_no_epochs_call_the_callbacks_once(strategy, data):
    model, called = attached(strategy), []
    callback = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: called.append("begin"), on_train_end=lambda logs: called.append("end")
    )
    model.fit(*data, epochs=0, callbacks=[callback], verbose=0)
    assert called == ["begin", "end"]


def test_batch_methods_give_keras_results(strategy, data):
    x, y = data
    ours, theirs = twins(strategy)
    weight = np.linspace(0.5, 1.5, 20).astype("float32")
    for start in (0, 20, 40):
        rows = slice(start, start + 20)
        results = [m.train_on_batch(x[rows], y[rows], sample_weight=weight) for m in (ours, theirs)]
        np.testing.assert_allclose(results[0], results[1], **EPOCHS)
    results = [m.train_on_batch(x, y, class_weight={0: 2.0, 1: 1.0}, return_dict=True) for m in (ours, theirs)]
    assert list(results[0]) == list(results[1])
    np.testing.assert_allclose(list(results[0].values()), list(results[1].values()), **EPOCHS)
    assert_same_weights(ours, theirs, **EPOCHS)
    np.testing.assert_allclose(ours.test_on_batch(x, y), theirs.test_on_batch(x, y), **EPOCHS)
    np.testing.assert_allclose(ours.predict_on_batch(x), theirs.predict_on_batch(x), **EPOCHS)


def test_two_replicas_give_the_weights_of_one(data):
    weights = []
    for devices in (["cpu:0"], ["cpu:0", "cpu:1"]):
        keras.utils.set_random_seed(5)
        model = keras.Sequential(
            [keras.layers.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3, "softmax")]
        )
        strategy = phalanx.MirroredStrategy(devices)
        assert strategy.num_replicas_in_sync == len(devices)
        attached(strategy, model).fit(*data, batch_size=14, epochs=3, verbose=0)
        weights.append(model.get_weights())
    for one, two in zip(*weights, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


def test_deterministic_replicas_give_the_same_bits(data):
    weights = []
    for count in (1, 2):
        keras.utils.set_random_seed(5)
        strategy = phalanx.MirroredStrategy([f"cpu:{i}" for i in range(count)], deterministic=True)
        model = attached(strategy, build_model(dropout=0.3))
        model.fit(*data, batch_size=16, epochs=2, verbose=0)
        weights.append(model.get_weights())
    for one, two in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, two)


def test_the_seed_of_keras_repeats_a_run_to_the_bit(strategy, data):
    weights = []
    for _ in range(2):
        keras.utils.set_random_seed(11)
        model = attached(strategy, build_model(dropout=0.5))
        model.fit(*data, batch_size=8, epochs=2, verbose=0)
        weights.append(model.get_weights())
    for one, two in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, two)


def two_inputs_two_outputs():
    a, b = keras.Input((4,), name="a"), keras.Input((3,), name="b")
    hidden = keras.layers.Dense(6, activation="tanh")(keras.layers.concatenate([a, b]))
    outputs = {"class": keras.layers.Dense(3, activation="softmax", name="class")(hidden)}
    outputs["value"] = keras.layers.Dense(1, name="value")(hidden)
    return keras.Model({"a": a, "b": b}, outputs)


@pytest.mark.parametrize(
    "arguments",
    [
        {"loss": keras.losses.Huber(delta=0.1)},
        {"loss": [keras.losses.Huber(delta=0.2)], "metrics": [["mae"]]},
        {"loss": keras.losses.CosineSimilarity(axis=1)},
        {"loss": "mse", "metrics": [keras.metrics.CosineSimilarity(axis=1)]},
    ],
    ids=["delta", "lists", "axis of a loss", "axis of a metric"],
)
def test_arguments_that_configs_of_keras_leave_out(strategy, arguments):
    rng = np.random.default_rng(3)
    x, y = (rng.normal(size=(20, 4, 3)).astype("float32") for _ in range(2))

    def build():
        return keras.Sequential([keras.layers.Input((4, 3)), keras.layers.Dense(3)])

    ours, theirs = twins(strategy, build, optimizer="sgd", **{"metrics": [], **arguments})
    left, right = (model.evaluate(x, y, verbose=0, return_dict=True) for model in (ours, theirs))
    assert left == pytest.approx(right, rel=1e-5)
    for model in (ours, theirs):
        model.fit(x, y, batch_size=20, shuffle=False, verbose=0)
    assert_same_weights(ours, theirs, **STEP)


def test_dicts_of_inputs_and_outputs(strategy):
    # Whole batches: of a partial one, Keras on TensorFlow counts the loss of an output as that of a whole one.
    rng = np.random.default_rng(0)
    x = {"b": rng.normal(size=(64, 3)).astype("float32"), "a": rng.normal(size=(64, 4)).astype("float32")}
    y = {"value": x["a"].sum(1, keepdims=True), "class": keras.utils.to_categorical(np.argmax(x["b"], 1), 3)}
    loss = {"class": "categorical_crossentropy", "value": "mse"}
    arguments = {
        "loss": loss,
        "metrics": {"class": ["accuracy"], "value": ["mae"]},
        "loss_weights": {"class": 1.0, "value": 0.5},
    }
    ours, theirs = twins(strategy, two_inputs_two_outputs, **arguments)
    history = [model.fit(x, y, epochs=2, shuffle=False, verbose=0).history for model in (ours, theirs)]
    assert list(history[0]) == list(history[1])
    for name, values in history[1].items():
        np.testing.assert_allclose(history[0][name], values, err_msg=name, **EPOCHS)
    assert_same_weights(ours, theirs, **EPOCHS)
    predicted = [model.predict(x, verbose=0) for model in (ours, theirs)]
    assert list(predicted[0]) == list(predicted[1])
    for name in predicted[1]:
        np.testing.assert_allclose(predicted[0][name], predicted[1][name], **EPOCHS)
    np.testing.assert_allclose(ours.evaluate(x, y, verbose=0), theirs.evaluate(x, y, verbose=0), **EPOCHS)


def test_a_weighted_metric_of_a_taken_name(strategy, data):
    x, y = data
    weight = np.linspace(0.1, 2.0, len(x)).astype("float32")
    ours, theirs = twins(strategy, metrics=["accuracy"], weighted_metrics=["accuracy"])
    results = [m.fit(x, y, sample_weight=weight, shuffle=False, verbose=0).history for m in (ours, theirs)]
    assert list(results[0]) == list(results[1])
    for name, values in results[1].items():
        np.testing.assert_allclose(results[0][name], values, err_msg=name, **EPOCHS)


def test_a_model_without_input_is_built_by_fit(strategy, data):
    layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3, activation="softmax")]
    model = attached(strategy, keras.Sequential(layers))
    model.fit(*data, epochs=1, verbose=0)
    assert model.get_weights()[0].shape == (4, 8)
    assert model.predict(data[0][:7], verbose=0).shape == (7, 3)


def test_progress_lines_are_those_of_keras(strategy, data):
    lines = []
    for model in twins(strategy):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            model.fit(*data, batch_size=20, epochs=2, validation_split=0.5, verbose=2)
        lines.append([words_of(line) for line in out.getvalue().splitlines()])
    assert lines[0] == lines[1]
    assert any("val_accuracy:" in line for line in lines[0])


def words_of(line):
    """The words of a progress line without its numbers and times."""
    return [word for word in line.split() if not word[0].isdigit() or re.fullmatch(r"\d+/\d+", word)]


def test_mixed_precision_with_a_loss_scale(strategy, data):
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = attached(strategy)
        losses = model.fit(*data, epochs=3, batch_size=20, verbose=0).history["loss"]
    finally:
        keras.config.set_dtype_policy(previous)
    assert losses[-1] < losses[0]
    assert int(model.optimizer.inner_optimizer.iterations) == 9
    assert model.predict(data[0], verbose=0).dtype == np.float16


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="Keras on PyTorch has no steps_per_execution")
def test_steps_per_execution_paces_the_hooks_of_batches(strategy):
    x, y = classification_data(50)
    seen = []
    for model in twins(strategy, steps_per_execution=3):
        numbers = []
        callback = keras.callbacks.LambdaCallback(
            on_train_batch_begin=lambda batch, logs, n=numbers: n.append(("begin", batch)),
            on_train_batch_end=lambda batch, logs, n=numbers: n.append(("end", batch)),
        )
        model.fit(x, y, batch_size=5, callbacks=[callback], verbose=0)
        seen.append(numbers)
    assert seen[0][:6] == seen[1][:6]


def test_multi_gpu_model_returns_the_model(data, monkeypatch):
    monkeypatch.setattr(phalanx.strategy, "_gpu_list", lambda gpus: ["cpu:0", "cpu:1"])
    model = build_model()
    assert phalanx.multi_gpu_model(model, gpus=2) is model
    compile_model(model).fit(*data, verbose=0)
    assert int(model.optimizer.iterations) == 2


def test_a_loss_that_is_not_finite_warns_once_and_goes_on(strategy, data, recwarn):
    x, y = data
    x = np.where(np.arange(len(x))[:, None] == 30, np.nan, x)
    model = attached(strategy)
    history = model.fit(x, y, batch_size=10, epochs=2, shuffle=False, verbose=0)
    assert np.isnan(history.history["loss"]).all()
    (warning,) = [warning for warning in recwarn if "the loss is NaN" in str(warning.message)]
    assert warning.category is UserWarning and warning.filename == __file__
    model = attached(strategy)
    history = model.fit(
        x, y, batch_size=10, epochs=2, shuffle=False, verbose=0, callbacks=[keras.callbacks.TerminateOnNaN()]
    )
    assert int(model.optimizer.iterations) == 4 and len(history.epoch) == 1
    with pytest.raises(FloatingPointError):
        attached(phalanx.MirroredStrategy(["cpu:0"], on_nan="raise")).fit(x, y, verbose=0)
