"""Keras' private names. Every use of `keras.src` is in this file.

The names exist in Keras 3.10 to 3.15. Other versions get one warning.
"""

import contextlib
import copy
import functools
import inspect
import json
import pathlib
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

try:
    import keras
except ImportError as error:
    raise ImportError("phalanx trains Keras models: install Keras with `pip install keras`") from error

from keras.src import backend, tree
from keras.src.backend import KerasTensor
from keras.src.backend.common import standardize_dtype
from keras.src.backend.common.variables import Variable
from keras.src.callbacks.callback_list import CallbackList
from keras.src.distribution import distribution_lib
from keras.src.models.functional import Functional
from keras.src.models.sequential import Sequential
from keras.src.saving import saving_lib
from keras.src.saving.object_registration import get_registered_name
from keras.src.trainers import data_adapters
from keras.src.trainers.compile_utils import CompileMetrics
from keras.src.trainers.data_adapters import array_slicing, data_adapter_utils
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter
from keras.src.trainers.data_adapters.torch_data_loader_adapter import TorchDataLoaderAdapter
from keras.src.trainers.epoch_iterator import EpochIterator as KerasEpochIterator
from keras.src.utils import rng_utils
from keras.src.utils.python_utils import is_default

__all__ = [
    "ArrayDataAdapter",
    "CallbackList",
    "DataAdapter",
    "EpochIterator",
    "Functional",
    "GeneratorDataAdapter",
    "KerasTensor",
    "PyDatasetAdapter",
    "Sequential",
    "TFDatasetAdapter",
    "TorchDataLoaderAdapter",
    "Variable",
    "is_default",
    "keras",
    "standardize_dtype",
    "tree",
]

FIRST_KNOWN_VERSION = (3, 10)
LAST_KNOWN_VERSION = (3, 15)


def _warn_about_unknown_version() -> None:
    version = tuple(int(part) for part in keras.__version__.split(".")[:2])
    if not FIRST_KNOWN_VERSION <= version <= LAST_KNOWN_VERSION:
        warnings.warn(f"phalanx is tested with Keras 3.10 to 3.15; this is {keras.__version__}", stacklevel=2)


_warn_about_unknown_version()


def backend_name() -> str:
    """Returns `"jax"`, `"tensorflow"` or `"torch"`."""
    return backend.backend()


# Models


def trainer_class() -> type:
    """Returns the class that defines `compile`.

    It is a base of `keras.Model`. Wrapped elsewhere, `compile` would pass for an override, and `load_model` would leave
    models uncompiled.
    """
    return next(parent for parent in keras.Model.__mro__ if "compile" in vars(parent))


def functional_of(model: Any) -> Any:
    """Returns the functional model that does a `Sequential`'s work, or the model itself."""
    return model._functional if isinstance(model, Sequential) else model


def flatten_layers(model: Any) -> list[Any]:
    """Lists all layers of a model and of the layers in it, without the model."""
    return list(model._flatten_layers(include_self=False))


def is_built(model: Any) -> bool:
    """Whether a model and its layers have their variables."""
    if isinstance(model, Sequential) and model._functional is None:
        return False
    return bool(model.built) and all(layer.built for layer in model._flatten_layers())


def build(model: Any, x: Any, y: Any, sample_weight: Any) -> None:
    """Creates all variables of a model, its optimizer and its metrics, given the data's `KerasTensor`s."""
    if not is_built(model):
        _build_layers(model, x)
    build_optimizer(model)
    if model.compiled and y is not None:
        _build_objective(model, x, y, sample_weight)
    model._post_build()


def build_optimizer(model: Any) -> None:
    """Creates the variables of a built model's optimizer, if it has one."""
    if getattr(model, "optimizer", None) is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def _build_layers(model: Any, x: Any) -> None:
    if isinstance(model, Sequential) and not tree.is_nested(x):
        model.build(x.shape)
    if not is_built(model):
        backend.compute_output_spec(model, x, training=False)


def _build_objective(model: Any, x: Any, y: Any, sample_weight: Any) -> None:
    """Builds metrics and losses from shapes. Without this, callbacks do not find the direction of a metric."""
    parts = [part for part in (model._compile_metrics, model._compile_loss) if part is not None]
    unbuilt = [part for part in parts if not part.built]
    outputs = functional_of(model)._outputs_struct
    if unbuilt and not tree.is_nested(outputs) and not tree.is_nested(y):
        for part in unbuilt:
            part.build(y, outputs)
    elif unbuilt:
        model._symbolic_build(data_batch=(x, y, sample_weight))


def builds_from_data(model: Any, compiled: bool) -> bool:
    """Whether Keras would read a batch before a run, and begin the data again, to build a model and its metrics."""
    if backend_name() == "tensorflow":
        return False
    parts = (model._compile_metrics, model._compile_loss) if compiled else ()
    built = all(layer.built for layer in model._flatten_layers())
    return not built or any(part is not None and not part.built for part in parts)


def inputs_struct(model: Any) -> Any:
    """Returns the structure of `KerasTensor`s that a model takes."""
    return functional_of(model)._inputs_struct


def outputs_struct(model: Any) -> Any:
    """Returns the structure of `KerasTensor`s that a model returns."""
    return functional_of(model)._outputs_struct


def is_optional(reference: KerasTensor) -> bool:
    """Whether a model's input may be `None`."""
    return bool(getattr(reference._keras_history.operation, "optional", False))


def flatten_metrics(model: Any, logs: dict[str, Any]) -> Any:
    """Returns results as `evaluate` does: the loss, then the metrics in the order of `compile`."""
    return model._flatten_metrics_in_order(logs)


def assert_compiled(model: Any, method: str) -> None:
    """Raises Keras' error if a model is not compiled."""
    model._assert_compile_called(method)


def resets_metrics_on_batch(model: Any) -> bool:
    """Whether this version's `train_on_batch` returns the results of the batch alone."""
    return "reset_metrics" in inspect.unwrap(type(model).train_on_batch).__code__.co_names


def registered_name(value: Any) -> str:
    """Returns the name under which Keras saves an object's class or a function."""
    return get_registered_name(value)


def numpy_type(dtype: Any) -> Any:
    """Returns NumPy's type for the name of an element type."""
    name = standardize_dtype(dtype)
    if name == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return name


def order_outputs(outputs: Any) -> Any:
    """Returns predictions with their keys in the order of this backend's `predict`."""
    if isinstance(outputs, dict) and backend_name() != "tensorflow":
        return {key: outputs[key] for key in sorted(outputs)}
    return outputs


# Handing over


def serialize(model: Any) -> str:
    """Returns the text of a `.keras` file's `config.json`, with all arguments of losses and metrics."""
    with saving_lib.ObjectSharingScope(), _complete_configs(compile_objectives(model)):
        config = saving_lib.serialize_keras_object(model)
    return json.dumps(config)


def compile_arguments(model: Any) -> dict[str, Any]:
    """Returns the arguments of `compile`."""
    config = getattr(model, "_compile_config", None)
    return getattr(config, "config", {}) if config is not None else {}


def compile_objectives(model: Any) -> list[Any]:
    """Lists the losses and metrics that were given to `compile`."""
    arguments = compile_arguments(model)
    return tree.flatten([arguments.get(name) for name in ("loss", "metrics", "weighted_metrics")])


@contextlib.contextmanager
def _complete_configs(parts: list[Any]) -> Iterator[None]:
    """Adds to configs of losses and metrics the arguments that their `get_config` leaves out, as Huber's `delta`."""
    completed = []
    for part in {id(part): part for part in parts}.values():
        missing = _missing_from_config(part)
        if missing:
            vars(part)["get_config"] = functools.partial(_complete_config, part, missing)
            completed.append(part)
    try:
        yield
    finally:
        for part in completed:
            del vars(part)["get_config"]


def _complete_config(part: Any, missing: dict[str, Any]) -> dict[str, Any]:
    return {**type(part).get_config(part), **missing}


def _missing_from_config(part: Any) -> dict[str, Any]:
    """Returns the arguments of a loss's or metric's function that its config lacks and that are not the defaults."""
    given = getattr(part, "_fn_kwargs", None)
    if not given or "get_config" in vars(part):
        return {}
    config, parameters = part.get_config(), inspect.signature(type(part).__init__).parameters
    return {
        name: value
        for name, value in given.items()
        if name not in config and name in parameters and value != parameters[name].default
    }


class _VariableCollector(saving_lib.H5IOStore):
    """A weights file that remembers variables and their paths instead of writing values."""

    def __init__(self) -> None:
        self.mode = "w"
        self.archive = None
        self.found: list[tuple[str, Any]] = []
        self._path = ""

    def __bool__(self) -> bool:
        return True

    def make(self, path: str, metadata: Any = None) -> "_VariableCollector":
        self._path = path
        return self

    def __setitem__(self, key: str, value: Any) -> None:
        prefix = f"{self._path}/" if self._path else ""
        self.found.append((f"{prefix}vars/{key}", value))

    def close(self) -> None:
        pass


def saved_variables(model: Any) -> list[tuple[str, Any]]:
    """Lists what Keras would save in `model.weights.h5`, by path, without optimizers.

    Values are `Variable`s, or arrays where a layer computes what it saves.
    """
    store = _VariableCollector()
    models = [model, *flatten_layers(model)]
    skipped = {id(part.optimizer) for part in models if getattr(part, "optimizer", None) is not None}
    saving_lib._save_state(model, weights_store=store, assets_store=None, inner_path="", visited_saveables=skipped)
    return store.found


def saved_assets(model: Any) -> dict[str, bytes]:
    """Returns the files that Keras would save beside the weights, such as vocabularies, by path."""
    if not any(hasattr(layer, "save_assets") for layer in flatten_layers(model)):
        return {}
    store = saving_lib.DiskIOStore("assets", mode="w")
    try:
        skipped: set[int] = set()
        saving_lib._save_state(model, weights_store=None, assets_store=store, inner_path="", visited_saveables=skipped)
        root = pathlib.Path(store.working_dir)
        files = [path for path in root.rglob("*") if path.is_file()]
        return {f"assets/{path.relative_to(root).as_posix()}": path.read_bytes() for path in files}
    finally:
        store.close()


def random_seed() -> int | None:
    """Returns the seed of `keras.utils.set_random_seed`, if it was called."""
    return rng_utils.get_random_seed()


def distribution() -> Any:
    """Returns the global `keras.distribution`, if any."""
    return distribution_lib.distribution()


def is_built_for(optimizer: Any, variables: list[Any]) -> bool:
    """Whether an optimizer has the slots of these variables."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return [id(variable) for variable in inner._trainable_variables] == [id(variable) for variable in variables]


def new_optimizer(optimizer: Any, variables: list[Any]) -> Any:
    """Returns an optimizer with the same arguments and new slots, for these variables."""
    copied = type(optimizer).from_config(optimizer.get_config())
    copied.build(variables)
    return copied


def excludes_from_weight_decay(optimizer: Any) -> bool:
    """Whether some variables are excluded from an optimizer's weight decay, which its config does not tell."""
    if not getattr(optimizer, "weight_decay", None):
        return False
    pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    return pattern is not None or bool(getattr(optimizer, "_exclude_from_weight_decay", None))


def learning_rate_variable(optimizer: Any) -> Any:
    """Returns the variable that holds the learning rate; `None` with a schedule."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    rate = getattr(inner, "_learning_rate", None)
    return rate if isinstance(rate, Variable) else None


def learning_rate_source(optimizer: Any) -> Any:
    """Returns the learning rate's variable, schedule or function."""
    return getattr(getattr(optimizer, "inner_optimizer", optimizer), "_learning_rate", None)


def iterations_variable(optimizer: Any) -> Any:
    """Returns the variable that counts steps."""
    return getattr(optimizer, "_iterations", None)


# Data


class EpochIterator(KerasEpochIterator):
    """Batches of each epoch as arrays. Shuffled data counts its passes, so they begin when those of Keras begin."""

    def _get_iterator(self) -> Iterator[Any]:
        adapter = self.data_adapter
        # Elsewhere Keras begins a pass with its first batch.
        at_once = {"tensorflow": ("_large", "_dataset"), "torch": ("_dataloader",)}.get(backend_name(), ())
        for name in at_once:
            # Worker processes of a `DataLoader` start with the first batch only.
            if name in vars(adapter) and not getattr(vars(adapter)[name], "num_workers", 0):
                begun = copy.copy(adapter)
                vars(begun)[name] = iter(vars(adapter)[name])
                return begun.get_numpy_iterator()
        return adapter.get_numpy_iterator()


def get_data_adapter(**arguments: Any) -> DataAdapter:
    """Returns Keras' adapter for the data given to `fit`, `evaluate` or `predict`."""
    return data_adapters.get_data_adapter(**arguments)


def is_tf_dataset(x: Any) -> bool:
    """Whether `x` is a `tf.data.Dataset`."""
    return data_adapters.is_tf_dataset(x)


def adapter_arrays(adapter: ArrayDataAdapter) -> tuple[Any, Any, Any]:
    """Returns the inputs, targets and sample weights of an adapter of arrays."""
    return unpack(adapter._inputs)


def adapter_dataset(adapter: TFDatasetAdapter) -> Any:
    """Returns the dataset of an adapter of `tf.data`."""
    return adapter._dataset


def standardize_batch(adapter: PyDatasetAdapter, batch: Any) -> Any:
    """Checks a batch of a `PyDataset` and adds class weights."""
    return adapter._standardize_batch(batch)


def unpack(data: Any) -> tuple[Any, Any, Any]:
    """Splits data into inputs, targets and sample weights."""
    return data_adapter_utils.unpack_x_y_sample_weight(data)


def split_for_validation(arrays: tuple[Any, Any, Any], fraction: float) -> Any:
    """Splits arrays into those to train on and the last rows, to validate on."""
    return array_slicing.train_validation_split(arrays, validation_split=fraction)


def is_sparse_or_ragged(value: Any) -> bool:
    """Whether a value is a sparse or ragged tensor of any framework."""
    utils = data_adapter_utils
    checks = (utils.is_scipy_sparse, utils.is_tensorflow_sparse, utils.is_tensorflow_ragged, utils.is_jax_sparse)
    return any(check(value) for check in checks)


def is_torch_tensor(value: Any) -> bool:
    """Whether a value is a PyTorch tensor."""
    return data_adapter_utils.is_torch_tensor(value)


def warn_out_of_data() -> None:
    """Gives Keras' warning that the data ended too soon."""
    KerasEpochIterator._interrupted_warning(None)


def limits() -> tuple[int | None, int | None]:
    """Returns the largest number of epochs and of steps per epoch that `keras.config` allows."""
    config = keras.src.backend.config
    epochs = getattr(config, "max_epochs", lambda: None)()
    steps = getattr(config, "max_steps_per_epoch", lambda: None)()
    return epochs, steps


# Callbacks


def callbacks_of(callback_list: CallbackList) -> list[Any]:
    """Lists the callbacks of a list."""
    return callback_list.callbacks


def keep_to_keras(callback: Any) -> None:
    """Keeps a callback from the training function, which is not used, and from assigning past Keras' variables."""
    if isinstance(callback, keras.callbacks.TensorBoard):
        callback._should_write_train_graph = False
    if isinstance(callback, keras.callbacks.SwapEMAWeights):
        callback._tf_swap_variables = callback._backend_swap_variables
        callback._tf_finalize_ema_values = callback._backend_finalize_ema_values


def reads_past_keras() -> bool:
    """Whether code of this backend may read variables without Keras: traced functions, parameters of modules."""
    return backend_name() in ("tensorflow", "torch")


def initial_epoch(model: Any) -> int | None:
    """Returns the first epoch that a callback asked for, if any."""
    return getattr(model, "_initial_epoch", None)


def note_optimizer_steps(note: Callable[[list[Any]], contextlib.AbstractContextManager[None]]) -> None:
    """Wraps the steps of Keras' TensorFlow optimizers, which assign to `tf.Variable`s without Keras.

    `note` is entered around each step with the variables that it may change.
    """
    if backend_name() != "tensorflow":
        return
    from keras.src.backend.tensorflow.optimizer import TFOptimizer

    step = TFOptimizer._backend_update_step

    def noted(self: Any, grads: Any, trainable_variables: Any, learning_rate: Any) -> Any:
        with note([*trainable_variables, *self.variables]):
            return step(self, grads, trainable_variables, learning_rate)

    TFOptimizer._backend_update_step = noted


def own_method(model: Any, name: str) -> Callable[..., Any]:
    """Returns a method of the model's class, bound to it, regardless of the model's own attributes."""
    return types.MethodType(getattr(type(model), name), model)


def compile_metrics(model: Any) -> Iterator[Any]:
    """Yields the metrics that were given to `compile`."""
    for metric in model.metrics:
        if isinstance(metric, CompileMetrics):
            yield from metric.metrics
