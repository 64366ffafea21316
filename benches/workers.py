#!/usr/bin/env python3
"""The cost of a step on 1, 2 and 4 workers of this machine: its time, with and without gradients sent during the backward
pass, and the bytes that a worker sends.

    cargo build --release -p phalanx-cli --features mpi
    python3 benches/workers.py target/release/phalanx
    sudo python3 benches/workers.py target/release/phalanx --bytes

Bytes are counted at the network interface of a worker whose host is a network namespace. They include frames and
acknowledgements.

Each worker has one thread and 32 samples. With fewer cores than workers, the workers share cores and the step time grows
by that alone. Only an idle machine gives meaningful numbers.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "tests/mpi"))
from hosts import Network

RUNS = [("mnist-mlp", 300), ("mnist-cnn", 100), ("minigooglenet", 6)]


def bench(phalanx, model, steps, workers, overlap):
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-x", "PHALANX_OVERLAP", "-n", str(workers), phalanx]
    command += ["bench", model, "--threads", "1", "--batch-size", "32", "--steps", str(steps), "--json"]
    env = dict(os.environ, PHALANX_OVERLAP=overlap, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout)


def sent(net, phalanx, model, steps):
    """Runs a benchmark; returns the bytes that the second worker sends."""
    counter = pathlib.Path("/sys/class/net/vphx1/statistics/rx_bytes")
    before = int(counter.read_text())
    command = f"{phalanx} bench {model} --threads 1 --batch-size 4 --steps {steps} --json"
    done = net.start(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output, _ = done.communicate()
    if done.returncode != 0:
        sys.exit(f"{command}: {output}")
    return int(counter.read_text()) - before


def bytes_per_step(phalanx):
    print("| network | workers | bytes sent per step and worker |\n|---|---|---|")
    for workers in (2, 4):
        net = Network(tempfile.mkdtemp(prefix="phalanx-workers-"), workers)
        try:
            for model, _ in RUNS:
                few, many = 2, 8
                # A bench runs its steps three times.
                more = sent(net, phalanx, model, many) - sent(net, phalanx, model, few)
                print(f"| {model} | {workers} | {more / (3 * (many - few)):,.0f} |", flush=True)
        finally:
            net.down()


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("phalanx", help="the command, built with --features mpi")
    arguments.add_argument("--bytes", action="store_true", help="count bytes instead of time (needs root)")
    args = arguments.parse_args()
    phalanx = os.path.abspath(args.phalanx)
    if args.bytes:
        return bytes_per_step(phalanx)
    print("| network | workers | ms/step | fastest tenth | … all gradients sent after backward | fastest tenth |")
    print("|---|---|---|---|---|---|")
    for model, steps in RUNS:
        for workers in (1, 2, 4):
            cells = []
            for overlap in "10":
                run = bench(phalanx, model, steps, workers, overlap)
                cells += [f"{run['step_ms']:.2f}", f"{run['fastest_tenth_ms']:.2f}"]
            print(f"| {model} | {workers} | " + " | ".join(cells) + " |", flush=True)


main()
