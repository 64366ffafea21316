"""Runs Keras' own tests with every `compile` attached to Phalanx, and compares the failures with a table.

The tests are those of the installed Keras. Each runs in the scope of a strategy. `trainer_test.py` derives its models
from `Trainer`; equal Sequential and functional models take their place, and `MeanSquaredError` takes that of its metric
that is never reset. A test that needs a package that is missing counts as skipped. Two programs at the end of this file
do what Keras' integration tests do.

    python tests/keras_own.py                          # with KERAS_BACKEND, JAX by default
    python tests/keras_own.py --plain                  # without Phalanx: what fails in any case
    python tests/keras_own.py --site DIRECTORY         # finds missing packages in another environment
"""

import argparse
import fnmatch
import os
import pathlib
import sys
import types

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("PHALANX_PIN", "0")

import pytest  # noqa: E402

FILES = (
    "callbacks/*_test.py",
    "trainers/data_adapters/*_test.py",
    "trainers/epoch_iterator_test.py",
    "trainers/trainer_test.py",
    "models/sequential_test.py",
    "models/functional_test.py",
)

SUBCLASS = "a subclassed model is refused"
OVERRIDDEN = "a subclassed model with methods of its own for steps or losses is refused"
LAYER = "a custom layer is refused"
EAGER = "run_eagerly=True is refused"
SPARSE = "sparse and ragged data are refused"
FUNCTION = "metrics and losses that are Python functions are refused"
READABLE = "weights can be read during training; Keras on JAX leaves them empty"
ROUNDED = "steps_per_epoch is exact; Keras rounds it up to a multiple of steps_per_execution"
DISTRIBUTION = "a keras.distribution or several replicas of tf.distribute are refused"
RESETS = "compares epochs by a metric that is never reset, whose place MeanSquaredError takes"

# Tests that fail as expected, by file and name; a name may have `*`.
EXPECTED = {
    "callbacks/backup_and_restore_test.py": {
        "test_backup_corrupted": LAYER,
        "test_best_case_*": LAYER,
        "test_model_deleted_case_epoch": LAYER,
    },
    "callbacks/callback_test.py": {"test_model_state_is_current_on_epoch_end": SUBCLASS},
    "callbacks/orbax_checkpoint_test.py": {
        "test_comprehensive_model_state_restoration*": LAYER,
        "test_distributed_checkpoint_*": DISTRIBUTION,
    },
    "callbacks/swap_ema_weights_test.py": {"test_swap_ema_weights_with_tf_distribute": DISTRIBUTION},
    "callbacks/tensorboard_test.py": {"test_custom_summary": LAYER},
    "trainers/trainer_test.py": {
        "test_adds_loss_scaling_optimizer": SUBCLASS,
        "test_callbacks_can_update_state_at_batch_boundary": SUBCLASS,
        "test_compute_loss_no_training_backwards_compatibility": OVERRIDDEN,
        "test_evaluate_flow_eager": EAGER,
        "test_evaluate_return_list_respect_metrics_order": FUNCTION,
        "test_evaluate_sparse_*": SPARSE,
        "test_evaluate_with_custom_*": OVERRIDDEN,
        "test_fit_eval_flow_for_jax_model_weights": READABLE,
        "test_fit_flow*_eager": EAGER,
        "test_fit_sparse_*": SPARSE,
        "test_fit_with_custom_train_step": OVERRIDDEN,
        "test_fit_with_val_split*_eager": EAGER,
        "test_fwd_pass_loss_presence_in_compute_loss": OVERRIDDEN,
        "test_internal_only_loss": LAYER,
        "test_loss_scaling_prevents_underflow": SUBCLASS,
        "test_metric_tracking": SUBCLASS,
        "test_metric_update_in_compute_loss": OVERRIDDEN,
        "test_on_batch_methods*_eager": EAGER,
        "test_partial_loss_partial_label": "outputs without a loss are refused",
        "test_predict_generator_*_eager": EAGER,
        "test_predict_preserve_order_*_eager": EAGER,
        "test_predict_sparse_*": SPARSE,
        "test_retracing*": OVERRIDDEN,
        "test_rng_updated_during_predict": LAYER,
        "test_steps_per_*_eager": EAGER,
        "test_steps_per_epoch_match_multi_epoch_*jit": RESETS,
        "test_steps_per_execution_steps_per_epoch_match_multi_epoch_*jit": ROUNDED,
        "test_steps_per_execution_steps_per_epoch_unknown_data_size_match_*jit": RESETS,
        "test_symbolic_build": SUBCLASS,
        "test_trainer_with_raggeds_*": SPARSE,
        "test_training_arg": SUBCLASS,
    },
}

# Tests that are left out, since they fail without Phalanx, too: by backend, file and name.
LEFT_OUT = {
    ("jax", "callbacks/tensorboard_test.py", "test_custom_summary"),  # Its layer needs TensorFlow's backend.
    ("torch", "trainers/trainer_test.py", "test_predict_flow_jit"),  # PyTorch cannot compile a Sequential.
}


def main() -> int:
    arguments = read_arguments()
    sys.path += arguments.site
    import keras

    root = pathlib.Path(keras.__file__).parent / "src"
    files = sorted({path for pattern in FILES for path in root.glob(pattern)})
    files = [path for path in [*files, pathlib.Path(__file__).resolve()] if arguments.only in str(path)]
    plugin = Plugin(root, arguments)
    # Keras' repository has a `conftest.py`, which is not installed.
    sys.modules["conftest"] = conftest_of_keras()
    options = ["--noconftest", "-c", os.devnull, f"--rootdir={root}", "-W", "ignore", "--continue-on-collection-errors"]
    pytest.main(["-p", "no:cacheprovider", "-p", "no:terminal", *options, *map(str, files)], [plugin])
    return plugin.report(arguments.verbose)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="files whose path has this text")
    parser.add_argument("--devices", default="cpu:0", help="devices of the strategy, separated by commas")
    parser.add_argument("--plain", action="store_true", help="without Phalanx")
    parser.add_argument("--site", action="append", default=[], metavar="DIRECTORY", help="where to import from at last")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every failure, and expected ones")
    return parser.parse_args()


def conftest_of_keras() -> types.ModuleType:
    """Returns what tests import from the `conftest.py` of Keras' repository."""
    import keras

    module = types.ModuleType("conftest")
    module.skip_if_backend = lambda name, reason: pytest.mark.skipif(keras.backend.backend() == name, reason=reason)
    return module


class Plugin:
    """Attaches the models of every test, and collects the results by file."""

    def __init__(self, root: pathlib.Path, arguments: argparse.Namespace) -> None:
        import phalanx
        from phalanx.session import Session

        self._root = root
        self._strategy = None if arguments.plain else phalanx.MirroredStrategy(arguments.devices.split(","))
        self._results: dict[str, dict[str, list[str]]] = {}
        self._messages: dict[tuple[str, str], str] = {}
        self._missing: dict[str, str] = {}
        self._uses_engine = False
        prepare = Session.prepare

        def noted(session: Session, model: object, *, training: bool) -> object:
            self._uses_engine = True
            return prepare(session, model, training=training)

        Session.prepare = noted

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        import keras

        for module in {item.module for item in items}:
            if module.__name__.endswith(".trainer_test"):
                vars(module).update(equal_models())
        backend = None if self._strategy is None else keras.backend.backend()
        left_out = [item for item in items if (backend, *self._name(item)) in LEFT_OUT]
        for item in left_out:
            items.remove(item)
            self._results_of(self._name(item)[0])["left out"].append(item.name)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            text = str(report.longrepr).strip().splitlines()[-1].removeprefix("E").strip()
            file = self._file(report.nodeid)
            self._results_of(file)
            missing = text.startswith(("ModuleNotFoundError: ", "ImportError: "))
            if missing:
                self._missing[file] = text.split(": ", 1)[1]
            else:
                self._add(file, "(collection)", "failed", text)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> object:
        self._uses_engine = False
        if self._strategy is None:
            return (yield)
        with self._strategy.scope():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo) -> object:
        report = yield
        if report.when == "call" or report.outcome != "passed":
            self._add(*self._name(item), *self._outcome(report, call))
        return report

    def _outcome(self, report: pytest.TestReport, call: pytest.CallInfo) -> tuple[str, str]:
        if report.failed:
            message = f"{call.excinfo.typename}: {call.excinfo.value}"
            # Also TensorBoard's own error.
            lacks = isinstance(call.excinfo.value, ImportError) or call.excinfo.typename == "TBNotInstalledError"
            return ("skipped" if lacks else "failed"), message
        return report.outcome, ""

    def _add(self, file: str, test: str, outcome: str, message: str) -> None:
        results = self._results_of(file)
        entry = None if self._strategy is None else next((p for p in EXPECTED.get(file, {}) if matches(test, p)), None)
        if entry is not None and outcome in ("passed", "failed"):
            outcome = "refused" if outcome == "failed" else "stale"
        results[outcome].append(test)
        if outcome == "passed" and self._uses_engine:
            results["trained"].append(test)
        self._messages[file, test] = message

    def _results_of(self, file: str) -> dict[str, list[str]]:
        kinds = ("passed", "trained", "refused", "failed", "stale", "skipped", "left out")
        return self._results.setdefault(file, {kind: [] for kind in kinds})

    def _name(self, item: pytest.Item) -> tuple[str, str]:
        return self._file(item.nodeid), item.name

    def _file(self, node: str) -> str:
        # The name of this file, which is not below the root, is left out.
        return node.split("::")[0] or pathlib.Path(__file__).name

    def report(self, verbose: bool) -> int:
        """Prints the results. Returns the exit status."""
        for file, results in sorted(self._results.items()):
            self._print(file, results, verbose)
        kinds = ("passed", "trained", "refused", "failed", "stale", "skipped", "left out")
        total = {kind: [test for results in self._results.values() for test in results[kind]] for kind in kinds}
        print(f"all: {summary(total)}")
        return 1 if total["failed"] or total["stale"] or not total["passed"] else 0

    def _print(self, file: str, results: dict[str, list[str]], verbose: bool) -> None:
        if file in self._missing:
            print(f"{file}: not run: {self._missing[file]}")
            return
        print(f"{file}: {summary(results)}")
        for test in results["failed"]:
            print(f"  FAILED {test}: {shortened(self._messages[file, test])}")
        for test in results["stale"]:
            print(f"  PASSED, but is expected to fail: {test}")
        for test in results["refused"] if verbose else ():
            reason = next(reason for pattern, reason in EXPECTED[file].items() if matches(test, pattern))
            print(f"  {test}: {reason}: {shortened(self._messages[file, test])}")


def matches(test: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(test, pattern)


def summary(results: dict[str, list[str]]) -> str:
    text = (
        f"{len(results['passed'])} passed, {len(results['trained'])} of them on Phalanx, "
        f"{len(results['refused'])} refused as expected, {len(results['failed']) + len(results['stale'])} failed"
    )
    extra = [f"{len(results[kind])} {kind}" for kind in ("skipped", "left out") if results[kind]]
    return ", ".join([text, *extra])


def shortened(message: str) -> str:
    return " ".join(message.split())[:160]


def equal_models() -> dict[str, object]:
    """Returns models and a metric that take the place of those that `trainer_test.py` defines."""
    from keras import layers, metrics, models

    def dense(units: int) -> layers.Dense:
        return layers.Dense(units, use_bias=False, kernel_initializer="ones")

    def example(units: int) -> models.Model:
        return models.Sequential([dense(units)])

    def struct(units: int) -> models.Model:
        inputs = {name: layers.Input((4,), name=name) for name in ("x_one", "x_two")}
        return models.Model(inputs, {"y_one": dense(units)(inputs["x_one"]), "y_two": dense(units)(inputs["x_two"])})

    def list_input(units: int) -> models.Model:
        inputs = [layers.Input((2,)), layers.Input((3,))]
        return models.Model(inputs, layers.add([dense(units)(x) for x in inputs]))

    def list_output(units: int) -> models.Model:
        inputs = layers.Input((4,))
        return models.Model(inputs, [dense(units)(inputs), dense(units)(inputs)])

    return {
        "ExampleModel": example,
        "StructModel": struct,
        "ListInputModel": list_input,
        "ListOutputModel": list_output,
        "EpochAgnosticMeanSquaredError": lambda: metrics.MeanSquaredError(name="mse"),
    }


def classes(rows: int) -> tuple[object, object]:
    import numpy as np

    rng = np.random.default_rng(5)
    return rng.normal(size=(rows, 8)).astype("float32"), rng.integers(0, 4, size=(rows, 1))


def test_subclassed_model_is_refused_or_falls_back() -> None:
    """A model of three dense layers in a class of its own, with validation on a part of the data."""
    import keras

    import phalanx

    class Perceptron(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = [keras.layers.Dense(16, activation="relu") for _ in range(2)]
            self.last = keras.layers.Dense(4)

        def call(self, x: object) -> object:
            for layer in self.hidden:
                x = layer(x)
            return self.last(x)

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    arguments = {"optimizer": "adam", "loss": loss, "metrics": ["accuracy"]}
    with phalanx.MirroredStrategy(["cpu:0"]).scope(), pytest.raises(phalanx.UnsupportedError, match="'Perceptron'"):
        Perceptron().compile(**arguments)
    model = Perceptron()
    with phalanx.MirroredStrategy(["cpu:0"], fallback="keras").scope(), pytest.warns(UserWarning, match="Keras trains"):
        model.compile(**arguments)
    x, y = classes(100)
    history = model.fit(x, y, batch_size=16, epochs=2, validation_split=0.2, verbose=0).history
    assert sorted(history) == ["accuracy", "loss", "val_accuracy", "val_loss"]
    assert model.predict(x, verbose=0).shape == (100, 4)
    assert len(model.evaluate(x, y, verbose=0)) == 2


def test_fixed_batch_size_on_two_devices() -> None:
    """A model for batches of 32 rows is trained by two replicas, from arrays and from `tf.data`."""
    tf = pytest.importorskip("tensorflow")
    import keras
    import numpy as np

    import phalanx

    inputs = keras.layers.Input((8,), batch_size=32)
    outputs = keras.layers.Dense(4)(keras.layers.Dense(16, activation="relu")(inputs))
    model = keras.Model(inputs, outputs)
    x, y = classes(128)
    with phalanx.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.SGD(0.01, momentum=0.9), loss=loss, metrics=["accuracy"])
    before = [np.array(value) for value in model.get_weights()]
    losses = model.fit(x, y, batch_size=32, epochs=2, verbose=0).history["loss"]
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
    losses += model.fit(dataset, epochs=2, validation_data=dataset, verbose=0).history["loss"]
    assert losses[-1] < losses[0] and int(model.optimizer.iterations) == 16
    assert all(not np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
    assert np.allclose(model.evaluate(dataset, verbose=0), model.evaluate(x, y, batch_size=32, verbose=0))
    assert model.predict(x, batch_size=32, verbose=0).shape == (128, 4)


if __name__ == "__main__":
    sys.exit(main())
