"""A run that was killed goes on and ends with the same bits."""

import os
import signal
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
from conftest import attached, build_model, classification_data, compile_model

from phalanx import callback_state

SCRIPT = textwrap.dedent(
    """
    import os, signal, sys
    sys.path.insert(0, {tests!r})
    from conftest import *
    folder, kill_at, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if kind != "unseeded":
        keras.utils.set_random_seed(7)
    x, y = classification_data(200)
    model = attached(phalanx.MirroredStrategy(["cpu:0"]), build_model(dropout=0.2))

    class Kill(keras.callbacks.Callback):
        seen = 0
        def on_train_batch_end(self, batch, logs=None):
            self.seen += 1
            if self.seen == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        def get_state(self):
            return {{"note": [1, 2.5]}}
        def set_state(self, state):
            assert state == {{"note": [1, 2.5]}}, state

    class Rates(keras.callbacks.Callback):
        # Assigns in every hook that comes before a resumed run goes on.
        def on_train_begin(self, logs=None):
            self.model.optimizer.learning_rate = 0.02
        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch
            self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) * 0.9
        def on_epoch_end(self, epoch, logs=None):
            assert self.epoch == epoch
        def get_state(self):
            return {{}}
        def set_state(self, state):
            pass

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 10
        def __getitem__(self, index):
            return x[20 * index:20 * (index + 1)], y[20 * index:20 * (index + 1)]

    data = (Batches(),) if kind == "py_dataset" else (x, y)
    arguments = {{}} if kind == "py_dataset" else {{"batch_size": 20}}
    history = model.fit(*data, epochs=4, validation_data=(x[:40], y[:40]), verbose=0, **arguments, callbacks=[
        keras.callbacks.BackupAndRestore(folder + "/backup", save_freq="epoch" if kind == "epochs" else 3),
        keras.callbacks.EarlyStopping("val_loss", patience=50, restore_best_weights=True),
        keras.callbacks.CSVLogger(folder + "/log.csv"),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.8),
        Rates(),
        Kill(),
    ])
    print(history.epoch, {{name: [float(v).hex() for v in values] for name, values in history.history.items()}})
    np.savez(folder + "/weights.npz", *model.get_weights(), *map(np.asarray, model.optimizer.variables))
    """
).format(tests=os.path.dirname(os.path.abspath(__file__)))


def run(folder, kill_at, kind):
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-c", SCRIPT, str(folder), str(kill_at), kind]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("kind", ["arrays", "py_dataset", "epochs"])
def test_a_killed_run_ends_with_the_bits_of_an_undisturbed_one(tmp_path, kind):
    whole = run(tmp_path / "whole", 0, kind)
    assert whole.returncode == 0, whole.stderr
    folder = tmp_path / "parts"
    for kill_at in (14, 9):
        killed = run(folder, kill_at, kind)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = run(folder, 0, kind)
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout == whole.stdout
    assert (folder / "log.csv").read_text() == (tmp_path / "whole/log.csv").read_text()
    ours, expected = (np.load(path / "weights.npz") for path in (folder, tmp_path / "whole"))
    assert ours.files == expected.files
    for name in expected.files:
        np.testing.assert_array_equal(ours[name], expected[name])


def test_a_callback_without_state_is_named_when_a_run_is_resumed(tmp_path):
    script = SCRIPT.replace("def get_state", "def other").replace("def set_state", "def another")
    folder = tmp_path / "run"
    folder.mkdir()
    for kill_at in (14, 0):
        command = [sys.executable, "-c", script, str(folder), str(kill_at), "unseeded"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "the state of callback 'Kill' is not restored" in done.stderr


def test_the_state_of_a_callback_keeps_its_types():
    class Own(keras.callbacks.Callback):
        state = None

        def get_state(self):
            return {"by": {1: 2, (3, 4): "a"}, "pair": (1, [2.5, None]), "tuple": {"tuple": [1]}, "array": np.arange(3)}

        def set_state(self, state):
            self.state = state

    callback = Own()
    callback_state.load([callback], callback_state.save([callback]))
    assert np.array_equal(callback.state.pop("array"), np.arange(3))
    assert callback.state == {"by": {1: 2, (3, 4): "a"}, "pair": (1, [2.5, None]), "tuple": {"tuple": [1]}}


def test_a_backup_of_keras_is_refused(strategy, data, tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise ZeroDivisionError

    folder = str(tmp_path / "backup")
    with pytest.raises(ZeroDivisionError):
        compile_model(build_model()).fit(
            *data, epochs=4, verbose=0, callbacks=[keras.callbacks.BackupAndRestore(folder), Stop()]
        )
    files = sorted(os.listdir(folder))
    with pytest.raises(ValueError, match=f"{folder}.*Keras wrote"):
        attached(strategy).fit(*data, epochs=4, verbose=0, callbacks=[keras.callbacks.BackupAndRestore(folder)])
    assert sorted(os.listdir(folder)) == files


def test_an_interrupted_run_is_resumed_by_the_next_fit(strategy, tmp_path):
    class Interrupt(keras.callbacks.Callback):
        seen = 0

        def on_train_batch_end(self, batch, logs=None):
            self.seen += 1
            if self.seen == 13:
                raise KeyboardInterrupt

        def on_epoch_begin(self, epoch, logs=None):
            begun.append((epoch, float(self.model.optimizer.learning_rate), float(np.sum(self.model.get_weights()[0]))))

    x, y = classification_data(200)
    model, begun = attached(strategy), []
    callbacks = [
        keras.callbacks.BackupAndRestore(str(tmp_path / "backup")),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
        Interrupt(),
    ]
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, batch_size=20, epochs=3, callbacks=callbacks, verbose=0)
    assert int(model.optimizer.iterations) == 13
    model.fit(x, y, batch_size=20, epochs=3, callbacks=callbacks, verbose=0)
    assert int(model.optimizer.iterations) == 30
    assert [epoch for epoch, _, _ in begun] == [0, 1, 1, 2]
    assert float(model.optimizer.learning_rate) == pytest.approx(0.001 / 8)


@pytest.mark.parametrize("save_freq", ["epoch", 4])
def test_hooks_of_a_resumed_run_read_the_restored_values(strategy, tmp_path, save_freq):
    class Values(keras.callbacks.Callback):
        resumed = False

        def read(self):
            step = int(self.model.optimizer.iterations)
            variables = [*self.model.variables, *self.model.optimizer.variables]
            values = [np.array(variable) for variable in variables]
            return step, values, self.model.predict(x[:20], verbose=0)

        def check(self):
            step, values, predicted = self.read()
            assert step == resumed_at
            for value, saved in zip([*values, predicted], [*seen[step][0], seen[step][1]], strict=True):
                np.testing.assert_allclose(value, saved, rtol=1e-6, atol=1e-7)
            begun.append(step)

        def on_train_begin(self, logs=None):
            if self.resumed:
                self.check()
                # Without effect: the restored values count.
                self.model.trainable_variables[0].assign(self.model.trainable_variables[0] * 0)

        def on_epoch_begin(self, epoch, logs=None):
            if self.resumed and len(begun) < 2:
                assert np.any(self.model.trainable_variables[0])
                begun.append(epoch)

        def on_train_batch_end(self, batch, logs=None):
            step, *values = self.read()
            if self.resumed:
                ends.append(step)
                return
            seen[step] = values
            if step == 15:
                raise ZeroDivisionError

    x, y = classification_data(200)
    seen, begun, ends, resumed_at = {}, [], [], 10 if save_freq == "epoch" else 12
    model, values = attached(strategy), Values()
    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), save_freq=save_freq)
    with pytest.raises(ZeroDivisionError):
        model.fit(x, y, batch_size=20, epochs=2, callbacks=[backup, values], verbose=0)
    values.resumed = True
    with pytest.warns(UserWarning, match="state of callback 'Values'"):
        model.fit(x, y, batch_size=20, epochs=2, callbacks=[backup, values], verbose=0)
    assert begun == [resumed_at, 1]
    assert ends == list(range(resumed_at + 1, 21))
    assert np.any(model.trainable_variables[0])
