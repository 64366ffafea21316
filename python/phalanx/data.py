"""Data for the engine: arrays without a copy; everything else batch by batch through Keras' adapters."""

import contextlib
import math
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from phalanx import _keras, _phalanx
from phalanx._keras import KerasTensor, tree
from phalanx.arrays import (
    as_buffer,
    flatten_inputs,
    flatten_targets,
    shape_of,
    target_weights,
    type_of,
    unsupported_data,
)
from phalanx.loaders import LoaderAdapter
from phalanx.rebatch import batch_size_of, is_fixed, rebatched

Batch = tuple[list[Any], list[Any], Any]

BATCHES_AHEAD = 2
"""Batches that a thread reads before the step."""
MAX_BATCHES_AHEAD = 8
"""The same for small batches of `tf.data` and `DataLoader`. So many are also taken at once."""
MAX_BYTES_AHEAD = 4 << 20


class Source:
    """Data of a run: what the engine reads, and what the model is built from."""

    num_batches: int | None
    """The number of batches of an epoch, if known."""

    resets_first = False
    """Whether the data is reset before the first pass, as Keras does in `fit` and `evaluate`, but not in `predict`."""
    restarts = False
    """Whether the data is reset before every pass, as Keras does when it validates."""
    ends_epochs = False
    """Whether `end_epoch` is called; otherwise an epoch ends when its last batch is read."""

    def example(self, discard: bool = False) -> tuple[Any, Any, Any]:
        """Returns `KerasTensor`s like the inputs, targets and sample weights, with an open batch size.

        With `discard` they come from a pass that is given up, as in Keras before the run of a model that is not built.
        """
        raise NotImplementedError

    def data(self, model: Any, outputs: list[int] | None) -> Any:
        """Returns the data as the engine takes it, for a model that is built.

        `outputs` are the numbers of the model's outputs with a loss or metrics; only they need targets.
        """
        raise NotImplementedError

    def skip_epochs(self, count: int) -> None:
        """Replays epochs that a resumed run has done."""

    def end_epoch(self) -> None:
        """Called on the thread of `fit` after the last step of an epoch."""

    def close(self) -> None:
        """Ends the reading of batches, for instance by worker threads."""


def open_source(**arguments: Any) -> Source:
    """Opens the data given to `fit`, `evaluate` or `predict`.

    Takes Keras' arguments: `x`, `y`, `sample_weight`, `batch_size`, `steps_per_epoch`, `shuffle` and `class_weight`.
    """
    _check_supported(arguments.get("x"), arguments.get("y"), arguments.get("sample_weight"))
    class_weight = arguments.get("class_weight")
    if (
        class_weight is not None
        and isinstance(arguments.get("y"), np.ndarray)
        and arguments.get("sample_weight") is None
    ):
        arguments["sample_weight"] = class_weights(arguments["y"], class_weight)
        arguments["class_weight"] = None
    steps = arguments["steps_per_epoch"]
    adapter = _keras.get_data_adapter(**arguments)
    if isinstance(adapter, _keras.ArrayDataAdapter):
        epoch = adapter.num_batches
        if (steps is None or steps == epoch) and arguments["shuffle"] in (True, False):
            return ArraySource(adapter)
    elif isinstance(adapter, _keras.PyDatasetAdapter) and adapter.enqueuer is None and steps is None:
        if adapter.num_batches is not None:
            return IndexedSource(adapter)
    elif isinstance(adapter, _keras.TFDatasetAdapter) and class_weight is None:
        adapter = rebatched(adapter) or adapter
    elif isinstance(adapter, _keras.TorchDataLoaderAdapter):
        adapter = LoaderAdapter(adapter.get_torch_dataloader())
    return IteratorSource(adapter, steps)


class ArraySource(Source):
    """Arrays in memory. The engine gathers the rows of each batch; nothing is copied as a whole."""

    def __init__(self, adapter: _keras.ArrayDataAdapter) -> None:
        self.x, self.y, self.sample_weight = _keras.adapter_arrays(adapter)
        self.batch_size = int(adapter.batch_size)
        self.num_batches = adapter.num_batches

    def example(self, discard: bool = False) -> tuple[Any, Any, Any]:
        return tuple(tree.map_structure(open_batch, part) for part in (self.x, self.y, self.sample_weight))  # type: ignore[return-value]

    def data(self, model: Any, outputs: list[int] | None) -> Any:
        x = [as_buffer(value) for value in flatten_inputs(model, self.x)]
        y = [as_buffer(value) for value in flatten_targets(model, self.y, outputs)]
        return _phalanx.ArrayData(x, y, target_weights(model, self.sample_weight, outputs), self.batch_size)


class BatchSource(Source):
    """Data that arrives in batches. Also the object that the engine asks for them."""

    batch_size: int | None = None
    reads_ahead = False
    """Whether several batches may be taken at once, and more than two be read before the step."""
    _example: tuple[Any, Any, Any] | None = None
    _peeked: Any = None
    _model: Any = None
    _outputs: list[int] | None = None
    _skipped_epochs = 0
    _was_reset = False
    _at_once = 1
    _ended = False
    _error: BaseException | None = None
    """The exception that ended the reading, raised after the batches before it."""
    _plain: tuple[Any, ...] | None = None
    """The types and sizes of arrays that the engine takes as they are."""

    def example(self, discard: bool = False) -> tuple[Any, Any, Any]:
        if self._example is None and not discard:
            self._example = self.declared()
        if self._example is None:
            if not discard:
                self._reset_first()
            self._peeked = self.peek(discard)
            parts = _keras.unpack(self._peeked)
            _check_supported(*parts)
            first = tree.flatten(parts[0])[0]
            self.batch_size = self.batch_size or int(shape_of(first)[0])
            self._example = tuple(tree.map_structure(open_batch, part) for part in parts)  # type: ignore[assignment]
        return self._example

    def data(self, model: Any, outputs: list[int] | None) -> Any:
        self.example()
        assert self.batch_size is not None
        self._model = model
        self._outputs = outputs
        self._reset_first()
        # What is not supported is found here if possible, before the run.
        if self._peeked is not None:
            self.flatten(self._peeked)
            self._peeked = None
        if self.reads_ahead:
            self._at_once = _batches_of(MAX_BYTES_AHEAD, self.example(), self.batch_size)
        return _phalanx.BatchData(self, self.num_batches, self.batch_size, max(self._at_once, BATCHES_AHEAD))

    def declared(self) -> tuple[Any, Any, Any] | None:
        """Returns what the data declares its batches to be, if it does."""
        return None

    def _reset_first(self) -> None:
        if self.resets_first and not self._was_reset:
            self.reset()
        self._was_reset = True

    def reset(self) -> None:
        """Gives up the current pass, as Keras does before a run."""
        raise NotImplementedError

    def skip_epochs(self, count: int) -> None:
        self._skipped_epochs = count

    def start(self, epoch: int, batch: int) -> None:
        """Called by the engine to begin a new pass over the data at a batch."""
        self._ended, self._error = False, None
        self.begin(epoch, batch)

    def take(self) -> list[Batch]:
        """Called by the engine for the next batches. Returns none after the last."""
        batches: list[Batch] = []
        while len(batches) < self._at_once and not self._ended:
            try:
                batch = self.next()
            except BaseException as error:
                self._error, self._ended = error, True
            else:
                if batch is None:
                    self._ended = True
                else:
                    batches.append(batch)
        raised = self._error
        if raised is not None and not batches:
            self._error = None
            raise raised
        return batches

    def begin(self, epoch: int, start: int) -> None:
        """Begins a new pass over the data at batch `start`."""
        raise NotImplementedError

    def next(self) -> Batch | None:
        """Returns the next batch; `None` after the last."""
        raise NotImplementedError

    def peek(self, discard: bool) -> Any:
        """Returns the first batch. With `discard` the pass that yields it is given up, else it becomes the next one."""
        raise NotImplementedError

    def flatten(self, batch: Any) -> Batch:
        """Returns a batch in the order of the model's inputs and outputs."""
        layout = _layout(batch)
        if layout is not None and layout == self._plain:
            return [batch[0]], [batch[1]], None
        x, y, sample_weight = _keras.unpack(batch)
        model, outputs = self._model, self._outputs
        inputs = [as_buffer(value) for value in flatten_inputs(model, x)]
        targets = [as_buffer(value) for value in flatten_targets(model, y, outputs)]
        arrays = [*inputs, *targets]
        if layout is not None and len(arrays) == 2 and all(map(operator.is_, arrays, batch)):
            self._plain = layout
        return inputs, targets, target_weights(model, sample_weight, outputs)


class IteratorSource(BatchSource):
    """Data that Keras' `EpochIterator` yields: `tf.data`, `DataLoader`, generators, and arrays with `steps_per_epoch`.

    Datasets start again in each epoch, generators go on; both as in Keras.
    """

    def __init__(self, adapter: _keras.DataAdapter, steps: int | None) -> None:
        self._adapter = adapter
        self.reads_ahead = isinstance(adapter, (_keras.TFDatasetAdapter, _keras.TorchDataLoaderAdapter))
        self._iterator = _keras.EpochIterator(x=adapter, steps_per_epoch=steps)
        self.num_batches = self._iterator.num_batches
        with contextlib.suppress(Exception):
            self.batch_size = adapter.batch_size
        self._batches: Iterator[Any] | None = None
        self._begun: Iterator[Any] | None = None

    @property
    def x_for_keras(self) -> Any:
        """The data as Keras may read it after this source was opened; `None` if it can read what it was given."""
        if isinstance(self._adapter, _keras.GeneratorDataAdapter):
            return (batch for batch in self._adapter.generator())
        return None

    def declared(self) -> tuple[Any, Any, Any] | None:
        if not isinstance(self._adapter, _keras.TFDatasetAdapter):
            return None
        self.batch_size = self.batch_size or batch_size_of(_keras.adapter_dataset(self._adapter))
        specs = _keras.unpack(_keras.adapter_dataset(self._adapter).element_spec)
        flat = tree.flatten(specs)
        if self.batch_size is None or not all(map(is_fixed, flat)):
            return None
        return tuple(tree.map_structure(_open_spec, part) for part in specs)  # type: ignore[return-value]

    def reset(self) -> None:
        self._iterator.reset()

    def peek(self, discard: bool) -> Any:
        if isinstance(self._adapter, _keras.PyDatasetAdapter):
            # Its worker threads would go on after the first batch.
            return _keras.standardize_batch(self._adapter, self._adapter.py_dataset[0])
        batches = iter(self._iterator)
        first = next(batches, None)
        if first is None:
            raise ValueError("fit, evaluate or predict received data without a batch")
        if discard:
            self._iterator.reset()
        else:
            self._begun = _chain(first, batches)
        return first[2][0]

    def begin(self, epoch: int, start: int) -> None:
        batches, self._begun = self._begun, None
        if batches is None:
            if self.restarts:
                self._iterator.reset()
            batches = iter(self._iterator)
        for _ in range(self._skipped_epochs):
            while next(batches, None) is not None:
                pass
            batches = iter(self._iterator)
        self._skipped_epochs = 0
        self._batches = batches
        for _ in range(start):
            next(self._batches, None)

    def next(self) -> Batch | None:
        assert self._batches is not None
        # A `for` loop would begin the epoch again.
        step = next(self._batches, None)
        return None if step is None else self.flatten(step[2][0])

    def close(self) -> None:
        self._batches = self._begun = None


class IndexedSource(BatchSource):
    """A `PyDataset`: batches by number, so a resumed run goes on without reading the batches before.

    As in Keras, an epoch has the number of batches that the dataset had at first, or fewer if it shrinks.
    """

    def __init__(self, adapter: _keras.PyDatasetAdapter) -> None:
        self._adapter = adapter
        self._dataset = adapter.py_dataset
        self.num_batches = adapter.num_batches
        self._seed = _keras.random_seed() or 0
        self._order: Iterator[int] | None = None
        self._first: Any = None
        self._within_pass = False
        size = getattr(self._dataset, "batch_size", None)
        self.batch_size = size if isinstance(size, int) else None

    def reset(self) -> None:
        # In this order, as in Keras.
        self.num_batches = self._adapter.num_batches
        self._within_pass = False
        self._adapter.on_epoch_end()

    def peek(self, discard: bool) -> Any:
        if not self.num_batches:
            raise ValueError("The PyDataset has length 0")
        if self.restarts:
            # The first validation begins with a reset.
            return self._batch(0)
        self._begin_pass()
        batch = self._batch(0)
        if discard:
            self.reset()
            self._was_reset = True
        else:
            self._first = batch
        return batch

    def begin(self, epoch: int, start: int) -> None:
        if self._order is not None:
            self._end_pass()
        elif self.restarts and not self._within_pass:
            self.reset()
        for _ in range(self._skipped_epochs):
            self._begin_pass()
            self._end_pass()
        self._skipped_epochs = 0
        self._begin_pass()
        count = self._adapter.num_batches or 0
        order = np.arange(count)
        if self._adapter.shuffle:
            order = np.random.default_rng([self._seed, epoch]).permutation(count)
        self._order = iter(order[: self.num_batches][start:].tolist())

    def next(self) -> Batch | None:
        if self._order is None:
            return None
        for index in self._order:
            return self.flatten(self._batch(index))
        if (self._adapter.num_batches or 0) < (self.num_batches or 0):
            _keras.warn_out_of_data()
        if not self.ends_epochs:
            self._end_pass()
        return None

    def end_epoch(self) -> None:
        # As in Keras: the dataset may assign variables here.
        if self._within_pass:
            self._end_pass()

    def close(self) -> None:
        self._order = self._first = None

    def _begin_pass(self) -> None:
        if not self._within_pass:
            self._within_pass = True
            self._adapter.on_epoch_begin()

    def _end_pass(self) -> None:
        self._order = self._first = None
        self._within_pass = False
        self._adapter.on_epoch_end()

    def _batch(self, index: int) -> Any:
        if index == 0 and self._first is not None:
            first, self._first = self._first, None
            return first
        return _keras.standardize_batch(self._adapter, self._dataset[index])


def _layout(batch: Any) -> tuple[Any, ...] | None:
    """Returns the types and sizes of a batch of two arrays; `None` for any other."""
    if type(batch) is not tuple or len(batch) != 2:
        return None
    x, y = batch
    if type(x) is not np.ndarray or type(y) is not np.ndarray or not x.flags.c_contiguous or not y.flags.c_contiguous:
        return None
    return x.dtype, x.shape[1:], y.dtype, y.shape[1:]


def _batches_of(size: int, example: tuple[Any, Any, Any], rows: int) -> int:
    """Returns how many batches have `size` bytes, from 1 to the most that are read ahead."""
    tensors = [tensor for tensor in tree.flatten(example) if tensor is not None]
    if any(None in tensor.shape[1:] for tensor in tensors):
        return 1
    # As the engine holds them.
    per_row = sum(4 * math.prod(tensor.shape[1:]) for tensor in tensors)
    return max(1, min(MAX_BATCHES_AHEAD, size // max(rows * per_row, 1)))


def _chain(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    """Yields the first step of a pass that has begun, and those after it."""
    yield first
    # A `for` loop would begin the epoch again.
    while (step := next(rest, None)) is not None:
        yield step


def class_weights(y: np.ndarray, class_weight: dict[int, float]) -> np.ndarray:
    """Returns the sample weights that class weights mean for targets."""
    if y.ndim > 1:
        y = np.argmax(y, axis=-1) if y.shape[-1] != 1 else np.squeeze(y, axis=-1)
    if y.ndim > 1:
        raise ValueError(f"class_weight: expected one class for each sample, received {y.shape[1:]} for each")
    classes, index = np.unique(np.round(y).astype(np.int32), return_inverse=True)
    weights = np.array([class_weight.get(int(number), 1.0) for number in classes], np.float32)
    return weights[index.reshape(y.shape)]


def open_batch(value: Any) -> KerasTensor | None:
    """Returns a `KerasTensor` like a value with an open batch size."""
    if value is None:
        return None
    return KerasTensor((None, *shape_of(value)[1:]), type_of(value))


def _open_spec(spec: Any) -> KerasTensor:
    """Returns a `KerasTensor` like the elements of a `tf.TensorSpec` with an open batch size."""
    return KerasTensor((None, *spec.shape.as_list()[1:]), type_of(spec))


def _check_supported(*parts: Any) -> None:
    for value in tree.flatten(parts):
        if value is not None and _keras.is_sparse_or_ragged(value):
            raise unsupported_data(f"sparse or ragged data is not supported: {type(value).__name__}")
