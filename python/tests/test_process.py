"""Signals, forks, threads, memory, start-up, and the command."""

import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import keras
import numpy as np
import pytest
from conftest import attached, build_model, classification_data

import phalanx

TESTS = os.path.dirname(os.path.abspath(__file__))


def run(code, *arguments, timeout=300, **environment):
    script = f"import sys\nsys.path.insert(0, {TESTS!r})\n" + textwrap.dedent(code)
    env = {**os.environ, **environment}
    command = [sys.executable, "-W", "default", "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=timeout)


def test_ctrl_c_finishes_the_step_and_keeps_the_weights(strategy):
    x, y = classification_data(2000)
    model = attached(strategy)
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, batch_size=2, epochs=100_000, verbose=0)
    timer.join()
    steps = int(model.optimizer.iterations)
    assert steps > 0
    assert np.isfinite(model.get_weights()[0]).all()
    model.fit(x, y, batch_size=500, verbose=0)
    assert int(model.optimizer.iterations) == steps + 4


def test_ctrl_c_saves_a_backup(strategy, tmp_path):
    x, y = classification_data(2000)
    model = attached(strategy)
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup", save_freq=1_000_000)
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, batch_size=2, epochs=100_000, callbacks=[backup], verbose=0)
    steps, epochs = int(model.optimizer.iterations), []
    again = attached(strategy)

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            epochs.append(epoch)
            self.model.stop_training = True

    again.fit(x, y, batch_size=2, epochs=100_000, callbacks=[backup, Stop()], verbose=0)
    assert int(again.optimizer.iterations) >= steps
    assert epochs == [(steps - 1) // 1000] or epochs == [steps // 1000]


@pytest.mark.parametrize("epochs", [1, 3])
def test_ctrl_c_in_the_validation_reaches_the_caller_at_once(strategy, epochs):
    x, y = classification_data(1_000_000)
    model, ended = attached(strategy), []
    model.fit(x[:10], y[:10], verbose=0)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    callback = keras.callbacks.LambdaCallback(on_test_begin=lambda logs: timer.start())
    callback.on_test_end = lambda logs=None: ended.append("test")
    callback.on_epoch_end = lambda epoch, logs=None: ended.append("epoch")
    arguments = {"validation_data": (x, y), "validation_batch_size": 1, "callbacks": [callback], "verbose": 0}
    with pytest.raises(KeyboardInterrupt):
        model.fit(x[:10], y[:10], epochs=epochs, **arguments)
    assert ended == []


def test_ctrl_c_ends_an_evaluation(strategy):
    x, y = classification_data(1_000_000)
    model = attached(strategy)
    model.evaluate(x[:10], y[:10], verbose=0)
    began = time.monotonic()
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        model.evaluate(x, y, batch_size=1, verbose=0)
    interrupted = time.monotonic() - began
    model.evaluate(x[: len(x) // 10], y[: len(x) // 10], batch_size=1, verbose=0)
    assert interrupted < 5 * (time.monotonic() - began - interrupted)


def test_a_forked_child_is_told_to_spawn():
    done = run(
        """
        from conftest import *
        x, y = classification_data(20)
        model = attached(phalanx.MirroredStrategy(["cpu:0"]))
        model.fit(x, y, verbose=0)
        pid = os.fork()
        if pid == 0:
            try:
                model.fit(x, y, verbose=0)
            except RuntimeError as error:
                print(error, flush=True)
            del model
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        model.fit(x, y, verbose=0)
        print(int(model.optimizer.iterations))
        """
    )
    assert done.returncode == 0, done.stderr
    assert "start method 'spawn'" in done.stdout and done.stdout.split()[-1] == "2"


def test_two_threads_train_two_models(strategy):
    x, y = classification_data(200)
    models = [attached(strategy, build_model()) for _ in range(2)]
    threads = [threading.Thread(target=model.fit, args=(x, y), kwargs={"epochs": 3, "verbose": 0}) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [int(model.optimizer.iterations) for model in models] == [21, 21]


def test_one_model_is_locked(strategy):
    x, y = classification_data(200)
    model, errors = attached(strategy), []

    class Other(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            thread = threading.Thread(target=self.train)
            thread.start()
            thread.join()

        def train(self):
            try:
                model.fit(x, y, verbose=0)
            except RuntimeError as error:
                errors.append(str(error))

    model.fit(x, y, callbacks=[Other()], verbose=0)
    assert len(errors) == 1 and "is in use" in errors[0]


def test_a_hundred_fits_do_not_leak():
    done = run(
        """
        from conftest import *
        import gc, resource
        def resident():
            gc.collect()
            return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
        x, y = np.random.rand(4000, 256).astype("float32"), np.random.rand(4000, 3).astype("float32")
        strategy = phalanx.MirroredStrategy(["cpu:0"])
        layers = [keras.layers.Input((256,)), keras.layers.Dense(512), keras.layers.Dense(3)]
        model = attached(strategy, keras.Sequential(layers), loss="mse", metrics=[])
        sizes = []
        for _ in range(100):
            model.fit(x, y, batch_size=512, verbose=0)
            model.get_weights()
            sizes.append(resident())
        print(sizes[19], sizes[99])
        sizes = []
        for _ in range(30):
            keras.backend.clear_session()
            layers = [keras.layers.Input((256,)), keras.layers.Dense(512), keras.layers.Dense(3)]
            model = attached(strategy, keras.Sequential(layers), loss="mse", metrics=[])
            model.fit(x, y, batch_size=512, verbose=0)
            sizes.append(resident())
        print(sizes[9], sizes[29])
        """
    )
    assert done.returncode == 0, done.stderr
    same, new = ([float(word) for word in line.split()] for line in done.stdout.splitlines())
    assert same[1] - same[0] < 5, same
    assert new[1] - new[0] < 20, new


def test_fit_needs_little_memory_besides_the_arrays():
    done = run(
        """
        from conftest import *
        import resource
        x = np.zeros((600_000, 64), "float32")
        x += 1
        y = np.zeros((600_000, 1), "float32")
        y += 1
        layers = [keras.layers.Input((64,)), keras.layers.Dense(1)]
        model = attached(phalanx.MirroredStrategy(["cpu:0"]), keras.Sequential(layers), loss="mse", metrics=[])
        model.fit(x[:64], y[:64], verbose=0)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        model.fit(x, y, batch_size=1000, verbose=0)
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
        """
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 10, done.stdout


def test_importing_phalanx_imports_neither_keras_nor_numpy():
    done = run("import phalanx\nphalanx.__version__\nprint(sorted({'keras', 'numpy', 'jax'} & set(sys.modules)))")
    assert done.stdout.strip() == "[]", done.stderr


def test_nothing_warns():
    package = os.path.dirname(phalanx.__file__)
    done = run(
        """
        from conftest import *
        x, y = classification_data(40)
        model = attached(phalanx.MirroredStrategy(["cpu:0"]))
        model.fit(x, y, epochs=2, validation_split=0.5, verbose=0)
        model.evaluate(x, y, verbose=0)
        model.predict(x, verbose=0)
        """
    )
    # Keras warns about itself. Warnings of the library begin with their level, others with a file.
    ours = [line for line in done.stderr.splitlines() if line.startswith(("warning", package))]
    assert done.returncode == 0 and not ours, done.stderr


def test_without_keras_the_scope_says_what_to_install():
    done = run(
        """
        sys.modules["keras"] = None
        import phalanx
        print(phalanx.list_physical_devices("CPU"))
        try:
            with phalanx.MirroredStrategy(["cpu:0"]).scope():
                pass
        except ImportError as error:
            print(error)
        """
    )
    assert "cpu:0" in done.stdout and "pip install keras" in done.stdout, done.stderr


def test_the_command_is_in_the_package(tmp_path):
    command = [sys.executable, "-c", "from phalanx.command import main; import sys; sys.exit(main())"]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == f"phalanx {phalanx.__version__}"
    assert subprocess.run([*command, "train"], capture_output=True, timeout=60).returncode == 2
    done = subprocess.run(
        [*command, "inspect", "missing.keras"], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 1 and "missing.keras" in done.stderr


def test_weights_are_those_of_the_command_to_the_bit(tmp_path):
    x, y = classification_data(100)
    y = np.argmax(y, axis=1).astype("int32")
    np.savez(tmp_path / "data.npz", x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
    keras.utils.set_random_seed(21)
    model = attached(phalanx.MirroredStrategy(["cpu:0"]), build_model(0.25), loss="sparse_categorical_crossentropy")
    model.save(tmp_path / "model.keras")
    model.fit(x, y, epochs=3, batch_size=16, verbose=0)
    arguments = ["train", "model.keras", "--data", "data.npz", "--epochs", "3", "--batch-size", "16", "--seed", "21"]
    arguments += ["--validation-split", "0", "--devices", "cpu:0", "--save", "trained.keras"]
    code = "from phalanx.command import main; import sys; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 0, done.stderr
    trained = keras.models.load_model(tmp_path / "trained.keras")
    for ours, theirs in zip(model.get_weights(), trained.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(model.optimizer.variables, trained.optimizer.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs), err_msg=ours.path)


@pytest.mark.skipif(
    not importlib.util.find_spec("tensorflow") or keras.backend.backend() != "tensorflow", reason="TensorFlow"
)
def test_a_traced_function_sees_the_trained_weights(strategy, data=None):
    import tensorflow as tf

    x, y = classification_data(40)
    model = attached(strategy)
    traced = tf.function(lambda value: model(value, training=False))
    first = traced(x).numpy()
    model.fit(x, y, epochs=2, verbose=0)
    np.testing.assert_allclose(traced(x).numpy(), model.predict(x, verbose=0), rtol=1e-4, atol=1e-5)
    assert not np.allclose(traced(x).numpy(), first)
