#!/usr/bin/env python3
"""Time of a step on 1, 2 and 4 workers of this machine, with and without gradients that travel during backward.

    cargo build --release -p phalanx-cli --features mpi
    python3 benches/workers.py target/release/phalanx

Workers have one thread each and 32 samples: where there are fewer cores than workers, they take turns, and the time of
a step grows by that alone. Only a quiet machine gives numbers that mean something.
"""
import argparse
import json
import os
import subprocess
import sys

RUNS = [("mnist-mlp", 300), ("mnist-cnn", 100), ("minigooglenet", 6)]


def bench(phalanx, model, steps, workers, overlap):
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-x", "PHALANX_OVERLAP", "-n", str(workers), phalanx]
    command += ["bench", model, "--threads", "1", "--batch-size", "32", "--steps", str(steps), "--json"]
    env = dict(os.environ, PHALANX_OVERLAP=overlap, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("phalanx", help="the command, built with --features mpi")
    phalanx = os.path.abspath(arguments.parse_args().phalanx)
    print("| network | workers | ms/step | fastest tenth | … all gradients behind backward | fastest tenth |")
    print("|---|---|---|---|---|---|")
    for model, steps in RUNS:
        for workers in (1, 2, 4):
            cells = []
            for overlap in "10":
                run = bench(phalanx, model, steps, workers, overlap)
                cells += [f"{run['step_ms']:.2f}", f"{run['fastest_tenth_ms']:.2f}"]
            print(f"| {model} | {workers} | " + " | ".join(cells) + " |", flush=True)


main()
