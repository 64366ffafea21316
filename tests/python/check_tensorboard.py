"""Reads the event files of `cargo test -p phalanx --test suite tensorboard::` with TensorBoard's own code.

    python3 -m venv venv && venv/bin/pip install tensorboard
    rm -rf /tmp/tb && PHALANX_TENSORBOARD_LOGS=/tmp/tb cargo test -p phalanx --test suite tensorboard::
    venv/bin/python tests/python/check_tensorboard.py /tmp/tb

The directory holds the logs of `full` (validation, batches, histograms, graph), `plain` (defaults)
and `bare` (no graph). Exits with an error if they are not what that test wrote.
"""

import sys
import time
from pathlib import Path

import tensorboard
from tensorboard.backend.event_processing import data_provider, event_accumulator
from tensorboard.backend.event_processing import plugin_event_multiplexer
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.context import RequestContext
from tensorboard.plugins import base_plugin
from tensorboard.plugins.graph import graphs_plugin
from tensorboard.plugins.histogram import histograms_plugin
from tensorboard.plugins.scalar import scalars_plugin

EPOCHS = [0, 1, 2]


def accumulate(directory):
    accumulator = event_accumulator.EventAccumulator(str(directory), size_guidance={"scalars": 0, "histograms": 0})
    accumulator.Reload()
    return accumulator


def scalars(accumulator):
    for tag in sorted(accumulator.Tags()["scalars"]):
        events = accumulator.Scalars(tag)
        print(f"  {tag}: " + ", ".join(f"{e.step}:{e.value:.6g}" for e in events))
        times = [e.wall_time for e in events]
        assert times == sorted(times) and time.time() - 86400 < times[0] <= time.time(), (tag, times)
    return {tag: accumulator.Scalars(tag) for tag in accumulator.Tags()["scalars"]}


def steps(events):
    return [e.step for e in events]


def check_full(root):
    train, validation = accumulate(root / "full/train"), accumulate(root / "full/validation")
    print("full/train")
    series = scalars(train)
    per_epoch = ["epoch_accuracy", "epoch_images_per_second", "epoch_learning_rate", "epoch_loss"]
    per_epoch.append("epoch_steps_per_second")
    per_batch = ["batch_accuracy", "batch_loss", "batch_steps_per_second"]
    assert sorted(series) == per_batch + per_epoch, sorted(series)
    assert all(steps(series[tag]) == EPOCHS for tag in per_epoch)
    assert all(steps(series[tag]) == [2, 4, 6, 8, 10, 12] for tag in per_batch)
    rates = [e.value for e in series["epoch_learning_rate"]]
    assert all(abs(r - 0.1 / (1 + i)) < 1e-7 for i, r in enumerate(rates)), rates

    tags = sorted(train.Tags()["histograms"])
    weights = ["dense/bias", "dense/kernel", "encoder/dense/bias", "encoder/dense/kernel", "head/bias", "head/kernel"]
    assert tags == [f"{w}/histogram" for w in weights], tags
    for tag in tags:
        events = train.Histograms(tag)
        assert steps(events) == [0, 2], tag
        h = events[-1].histogram_value
        print(f"  {tag}: num {h.num:g} min {h.min:.4f} max {h.max:.4f} sum {h.sum:.4f} in {len(h.bucket)} buckets")
        assert sum(h.bucket) == h.num and len(h.bucket) == len(h.bucket_limit) and h.bucket_limit[-1] == h.max
        assert h.min <= h.max and h.sum_squares >= 0

    graph = train.Graph()
    for node in graph.node:
        sizes = [d.size for d in node.attr["_output_shapes"].list.shape[0].dim]
        print(f"  node {node.name} ({node.op}) <- {list(node.input)} {sizes}, {node.attr['params'].i} weights")
    names = [node.name for node in graph.node]
    assert names == ["pixels", "dense", "dense_1", "encoder/dense", "add", "head"], names
    assert [list(n.input) for n in graph.node][-2:] == [["dense_1", "encoder/dense"], ["add"]]
    assert graph.node[0].attr["_output_shapes"].list.shape[0].dim[1].size == 4

    print("full/validation")
    series = scalars(validation)
    by_step = ["evaluation_accuracy_vs_iterations", "evaluation_loss_vs_iterations"]
    assert sorted(series) == ["epoch_accuracy", "epoch_loss", *by_step], sorted(series)
    assert all(steps(series[tag]) == [4, 8, 12] for tag in by_step)
    assert not validation.Tags()["graph"]


def check_plain(root):
    print("plain/train")
    plain = accumulate(root / "plain/train")
    series = scalars(plain)
    expected = ["epoch_accuracy", "epoch_images_per_second", "epoch_learning_rate", "epoch_loss"]
    assert sorted(series) == expected and all(steps(s) == EPOCHS for s in series.values())
    assert plain.Tags()["graph"] and not plain.Tags()["histograms"]
    assert not accumulate(root / "bare/train").Tags()["graph"]


def check_dashboards(root):
    """Makes the requests of the tabs of TensorBoard's page to their plugins."""
    multiplexer = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(str(root))
    multiplexer.Reload()
    context = base_plugin.TBContext(data_provider=data_provider.MultiplexerDataProvider(multiplexer, str(root)))
    request = RequestContext()
    graphs = graphs_plugin.GraphsPlugin(context)
    info = graphs.info_impl(request, experiment="")
    runs = sorted(run for run, item in info.items() if item["run_graph"])
    print(f"graph tab: {runs}")
    assert runs == ["full/train", "plain/train"], info
    text, _ = graphs.graph_impl(request, "full/train", None, False, experiment="")
    assert 'name: "encoder/dense"' in text and 'op: "Dense"' in text
    found = scalars_plugin.ScalarsPlugin(context).index_impl(request, experiment="")
    print(f"scalars tab: { {run: len(tags) for run, tags in sorted(found.items())} }")
    assert {run: len(tags) for run, tags in found.items()} == {
        "full/train": 8, "full/validation": 4, "plain/train": 4, "bare/train": 4
    }
    histograms = histograms_plugin.HistogramsPlugin(context)
    found = histograms.index_impl(request, experiment="")
    print(f"histograms tab: { {run: len(tags) for run, tags in found.items()} }")
    assert {run: len(tags) for run, tags in found.items()} == {"full/train": 6}
    events, _ = histograms.histograms_impl(request, "head/kernel/histogram", "full/train", experiment="")
    buckets = events[-1][2]
    assert sum(count for _, _, count in buckets) == 8, buckets


def main():
    root = Path(sys.argv[1])
    print(f"tensorboard {tensorboard.__version__}")
    for path in sorted(root.rglob("events.out.tfevents.*")):
        records = list(RawEventFileLoader(str(path)).Load())
        print(f"{path.relative_to(root)}: {len(records)} records")
        assert len(records) > 1
    check_full(root)
    check_plain(root)
    check_dashboards(root)
    print("all as expected")


if __name__ == "__main__":
    main()
