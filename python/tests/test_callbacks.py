"""Keras' callbacks, and users', are called as Keras calls them."""

import csv

import keras
import numpy as np
import pytest
from conftest import attached, build_model, classification_data, twins

HOOKS = [
    f"on_{hook}"
    for hook in (
        *(
            "train_begin",
            "train_end",
            "epoch_begin",
            "epoch_end",
            "test_begin",
            "test_end",
            "predict_begin",
            "predict_end",
        ),
        *(f"{phase}_batch_{end}" for phase in ("train", "test", "predict") for end in ("begin", "end")),
    )
]


class Trace(keras.callbacks.Callback):
    """Notes every hook with its number and the names of its logs."""

    def __init__(self, hooks=HOOKS):
        super().__init__()
        self.events = []
        for hook in hooks:
            setattr(self, hook, self.note(hook))

    def note(self, hook):
        def called(*args, logs=None):
            if args and isinstance(args[-1], dict) or args and args[-1] is None:
                args, logs = args[:-1], args[-1]
            self.events.append((hook, args, list(logs or {})))

        return called


def test_all_hooks_come_in_keras_order(strategy, data):
    traces = []
    for model in twins(strategy):
        trace = Trace()
        model.fit(*data, batch_size=20, epochs=2, validation_data=data, callbacks=[trace], verbose=0)
        model.evaluate(*data, batch_size=30, callbacks=[trace], verbose=0)
        model.predict(data[0], batch_size=30, callbacks=[trace], verbose=0)
        traces.append(trace.events)
    for ours, theirs in zip(*traces, strict=True):
        assert ours == theirs


def test_logs_of_hooks_are_numbers_of_keras(strategy, data):
    values = []
    for model in twins(strategy):
        seen = []
        callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs, s=seen: s.append(logs["loss"]))
        model.fit(*data, batch_size=20, shuffle=False, callbacks=[callback], verbose=0)
        values.append(seen)
    np.testing.assert_allclose(*values, rtol=1e-4)


def test_without_hooks_of_batches_none_is_called(strategy, data):
    calls = []

    class Epochs(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            calls.append(epoch)

    model = attached(strategy)
    from phalanx.hooks import Hooks

    original = Hooks.call
    try:
        Hooks.call = lambda self, hook, *rest: (calls.append(hook), original(self, hook, *rest))[1]
        model.fit(*data, batch_size=5, callbacks=[Epochs()], verbose=0)
    finally:
        Hooks.call = original
    assert calls == ["on_train_begin", "on_epoch_begin", "on_epoch_end", 0, "on_train_end"]


def test_checkpoints_every_few_batches_are_those_of_keras(strategy, tmp_path):
    x, y = classification_data(70)
    found = []
    for name, model in zip(("ours", "theirs"), twins(strategy), strict=True):
        folder = tmp_path / name
        callback = keras.callbacks.ModelCheckpoint(
            folder / "{epoch}-{batch}.weights.h5", save_freq=4, save_weights_only=True
        )
        model.fit(x, y, batch_size=10, epochs=3, callbacks=[callback], verbose=0)
        found.append(sorted(path.name for path in folder.iterdir()))
    assert found[0] == found[1] and len(found[0]) == 5


def test_the_best_checkpoint_is_saved(strategy, data, tmp_path):
    path = tmp_path / "best.keras"
    callback = keras.callbacks.ModelCheckpoint(path, monitor="val_loss", save_best_only=True)
    model = attached(strategy)
    history = model.fit(*data, epochs=3, validation_data=data, callbacks=[callback], verbose=0).history
    best = keras.models.load_model(path)
    assert best.evaluate(*data, verbose=0)[0] == pytest.approx(min(history["val_loss"]), rel=1e-4)


def test_learning_rate_callbacks(strategy, data):
    rates = []
    for model in twins(strategy, optimizer="sgd"):
        callbacks = [
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5 if epoch else rate),
            keras.callbacks.ReduceLROnPlateau("loss", factor=0.1, patience=1, min_delta=10.0),
        ]
        history = model.fit(*data, epochs=4, shuffle=False, callbacks=callbacks, verbose=0).history
        rates.append(history["learning_rate"])
        rates.append([float(keras.ops.convert_to_numpy(model.optimizer.learning_rate))])
    np.testing.assert_allclose(rates[0], rates[2], rtol=1e-6)
    np.testing.assert_allclose(rates[1], rates[3], rtol=1e-6)


def test_csv_logger(strategy, data, tmp_path):
    rows = []
    for name, model in zip(("ours", "theirs"), twins(strategy), strict=True):
        path = tmp_path / f"{name}.csv"
        model.fit(*data, epochs=2, validation_data=data, callbacks=[keras.callbacks.CSVLogger(path)], verbose=0)
        rows.append(list(csv.reader(path.open())))
    assert rows[0][0] == rows[1][0] and len(rows[0]) == len(rows[1]) == 3


def test_a_schedule_of_the_optimizer(strategy, data):
    schedule = {"optimizer": None}
    models = []
    for ours in (True, False):
        schedule["optimizer"] = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.5, 2, 0.5))
        keras.utils.set_random_seed(3)
        model = build_model()
        if ours:
            attached(strategy, model, **schedule)
        else:
            model.compile(schedule["optimizer"], loss="categorical_crossentropy", metrics=["accuracy"])
        model.fit(*data, batch_size=20, epochs=2, shuffle=False, verbose=0)
        models.append(model)
    for ours, theirs in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_a_callback_evaluates_and_predicts_with_current_weights(strategy, data):
    class Check(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["own"] = self.model.evaluate(*data, verbose=0)[0]
            self.model.predict(data[0], verbose=0)

    model = attached(strategy)
    history = model.fit(*data, epochs=3, validation_data=data, callbacks=[Check()], verbose=0).history
    np.testing.assert_allclose(history["own"], history["val_loss"], rtol=1e-4)


def test_an_exception_of_a_hook_passes_through(strategy, data):
    class Stop(Exception):
        pass

    ended = []

    class Raise(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise Stop("here")

        def on_train_end(self, logs=None):
            ended.append(True)

    model = attached(strategy)
    with pytest.raises(Stop, match="here"):
        model.fit(*data, callbacks=[Raise()], verbose=0)
    assert not ended
    assert int(model.optimizer.iterations) == 1
    model.fit(*data, verbose=0)


def test_an_exception_of_a_generator_passes_through(strategy, data):
    def batches():
        yield data[0][:20], data[1][:20]
        raise KeyError("broken")

    model = attached(strategy)
    with pytest.raises(KeyError, match="broken"):
        model.fit(batches(), steps_per_epoch=5, verbose=0)
    model.fit(*data, verbose=0)


def test_fit_inside_a_callback_is_an_error(strategy, data):
    class Nested(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.fit(*data, verbose=0)

    with pytest.raises(RuntimeError, match="called by a callback of its own run"):
        attached(strategy).fit(*data, callbacks=[Nested()], verbose=0)


def test_an_epoch_that_a_batch_stopped_is_still_validated(strategy, data):
    class Stop(keras.callbacks.Callback):
        validated = 0

        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = True

        def on_test_batch_end(self, batch, logs=None):
            self.validated += 1

    callback = Stop()
    history = attached(strategy).fit(*data, batch_size=20, validation_data=data, callbacks=[callback], verbose=0)
    assert callback.validated == 3 and "val_loss" in history.history


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="Keras on PyTorch has no steps_per_execution")
def test_the_last_execution_of_several_steps_ends_as_in_keras(strategy):
    x, y = classification_data(35)
    seen = []
    for model in twins(strategy, steps_per_execution=3):
        trace = Trace([f"on_{phase}_batch_{end}" for phase in ("train", "test", "predict") for end in ("begin", "end")])
        model.fit(x, y, batch_size=5, validation_data=(x, y), callbacks=[trace], verbose=0)
        model.predict(x, batch_size=5, callbacks=[trace], verbose=0)
        seen.append([(hook, number) for hook, number, _ in trace.events])
    assert seen[0] == seen[1]


def test_swapped_moving_averages_are_evaluated(strategy, data):
    losses = []
    for ours in (True, False):
        keras.utils.set_random_seed(3)
        model, optimizer = build_model(), keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.9)
        if ours:
            attached(strategy, model, optimizer=optimizer)
        else:
            model.compile(optimizer, loss="categorical_crossentropy", metrics=["accuracy"])
        swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
        history = model.fit(*data, epochs=3, shuffle=False, validation_data=data, callbacks=[swap], verbose=0)
        losses.append(history.history["val_loss"])
    np.testing.assert_allclose(*losses, rtol=1e-3)


@pytest.mark.parametrize(
    "hook",
    [
        "on_train_begin",
        "on_epoch_begin",
        "on_train_batch_end",
        "on_test_begin",
        "on_test_end",
        "on_epoch_end",
        "on_train_end",
    ],
)
def test_a_keyboard_interrupt_of_any_hook_reaches_the_caller(strategy, data, hook):
    def interrupt(*arguments, **logs):
        raise KeyboardInterrupt(hook)

    after = []
    callback = keras.callbacks.Callback()
    setattr(callback, hook, interrupt)
    later = keras.callbacks.LambdaCallback(on_train_end=lambda logs: after.append("train"))
    with pytest.raises(KeyboardInterrupt, match=hook):
        attached(strategy).fit(*data, validation_data=data, verbose=0, callbacks=[callback, later])
    assert after == []
