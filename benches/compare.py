#!/usr/bin/env python3
"""Compares the throughput of Phalanx and its peers on the same networks, one after the other.

    cargo build --release -p phalanx-cli
    python3 benches/compare.py --torch VENV --jax VENV --tf VENV --scripts DIR

DIR holds the peers' scripts (bench_torch.py, bench_jax.py, bench_keras.py), each of which prints one JSON line.
Peers without a virtual environment are skipped. Each of these flags has an environment variable:
PHALANX_BENCH_SCRIPTS, PHALANX_VENV_TORCH, PHALANX_VENV_JAX, PHALANX_VENV_TF. The script prints a table and one JSON
object, the latter at the end or to --json FILE. Run it on an otherwise idle machine.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# The workloads: name, Phalanx's arguments, the peers' arguments, and each peer's best configurations. Configurations that
# are much slower on a workload are omitted: JAX and Keras on JAX on the larger networks (a half to a third of PyTorch), two
# processes of PyTorch (as fast as one with two threads).
TORCH, JAX, KERAS = "torch", "jax", "keras-tf"
WORKLOADS = [
    ("mnist-mlp, batch 32", ["mnist-mlp"], ["--workload", "mnist_mlp"],
     {TORCH: [["--opt-impl", "fused"]], JAX: [["--mode", "scan"]], KERAS: [[], ["--steps-per-execution", "32"]]}),
    ("mnist-cnn, batch 64", ["mnist-cnn"], ["--workload", "mnist_cnn"],
     {TORCH: [["--opt-impl", "fused"]], JAX: [["--mode", "scan"]], KERAS: [[], ["--steps-per-execution", "32"]]}),
    ("minigooglenet, batch 64, training", ["minigooglenet"], ["--workload", "minigooglenet"],
     {TORCH: [["--channels-last"]], KERAS: [[]]}),
    ("minigooglenet, batch 64, inference", ["minigooglenet", "--inference"],
     ["--workload", "minigooglenet", "--task", "infer", "--batch", "64", "--samples", "1280"],
     {TORCH: [["--channels-last"], ["--channels-last", "--compile"]], KERAS: [[]]}),
    ("minigooglenet, batch 1, inference", ["minigooglenet", "--inference", "--batch-size", "1"],
     ["--workload", "minigooglenet", "--task", "infer", "--batch", "1", "--samples", "256"],
     {TORCH: [[], ["--channels-last"]], KERAS: [[]]}),
    ("resnet50, batch 8, training", ["resnet50"], ["--workload", "resnet50"],
     {TORCH: [["--channels-last"]], KERAS: [[]]}),
]
QUICK = [name for name, *_ in WORKLOADS if name.startswith("mnist")]
REPLICAS = "minigooglenet, two 1-core replicas against one"
SCRIPT = {TORCH: ["bench_torch.py"], JAX: ["bench_jax.py"],
          KERAS: ["bench_keras.py", "--backend", "tensorflow"]}


def arguments():
    env = os.environ.get
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--phalanx", default=env("PHALANX_BIN"), help="the binary (default: target/release/phalanx)")
    ap.add_argument("--scripts", default=env("PHALANX_BENCH_SCRIPTS"), metavar="DIR",
                    help="the peers' scripts (required unless PHALANX_BENCH_SCRIPTS is set)")
    ap.add_argument("--torch", default=env("PHALANX_VENV_TORCH"), metavar="VENV")
    ap.add_argument("--jax", default=env("PHALANX_VENV_JAX"), metavar="VENV")
    ap.add_argument("--tf", default=env("PHALANX_VENV_TF"), metavar="VENV")
    ap.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    ap.add_argument("--rounds", type=int, help="runs of each, interleaved; the best counts (default: 3 for the "
                    "quick workloads, whose speed depends on core placement, 1 for the others)")
    ap.add_argument("--only", help="workloads whose name contains this")
    ap.add_argument("--json", metavar="FILE", help="write the JSON object here instead of printing it")
    args = ap.parse_args()
    if not args.scripts:
        ap.error("--scripts: expected the directory of the peers' scripts; give --scripts DIR or set "
                 "PHALANX_BENCH_SCRIPTS")
    return args


# By default the C library returns freed memory to the system and requests it again at every step, which costs PyTorch up
# to half its speed. These settings make it keep the memory, so that peers run at their best.
KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}


def lines(command, timeout=1800, settings=None):
    """The JSON objects that a command prints; none if it fails, with its last error line on standard error."""
    env = dict(os.environ, PYTHONDONTWRITEBYTECODE="1", **(settings or {}))
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=timeout)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"  left out: {command[0]}: {error}", file=sys.stderr)
        return []
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"  left out: {' '.join(command)}: {why}", file=sys.stderr)
        return []
    return [json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")]


def phalanx(binary, args, threads):
    """Runs Phalanx once; the result has the keys of the peers."""
    found = lines([binary, "bench", *args, "--threads", str(threads), "--json"])
    return [dict(who="phalanx", mode="", img_s=o["images_per_second"], first_step_s=o["setup_s"],
                 peak_rss_mib=o["peak_rss_mib"]) for o in found]


def peer(who, python, scripts, args, threads):
    command = [python, str(pathlib.Path(scripts) / SCRIPT[who][0]), *SCRIPT[who][1:]]
    found = lines([*command, *args, "--threads", str(threads)], settings=KEEP_FREED_MEMORY)
    keys = ("mode", "img_s", "first_step_s", "peak_rss_mib", "other_cores")
    return [dict(who=who, **{k: o.get(k) for k in keys}) for o in found]


def best(runs):
    """The fastest run of each contestant."""
    fastest = {}
    for run in runs:
        if run["who"] not in fastest or run["img_s"] > fastest[run["who"]]["img_s"]:
            fastest[run["who"]] = run
    return fastest


def show(name, fastest):
    ours = fastest.get("phalanx")
    rivals = sorted((r for w, r in fastest.items() if w != "phalanx"), key=lambda r: -r["img_s"])
    ratio = f"{ours['img_s'] / rivals[0]['img_s']:.2f}" if ours and rivals else ""
    def speed(r):
        return f"{r['img_s']:,.{1 if r['img_s'] < 100 else 0}f}"
    def cell(r):
        return f"{speed(r)} ({r['who']}{' ' + r['mode'] if r['mode'] else ''})"
    ours_text = speed(ours) if ours else "failed"
    first = [f"{r['first_step_s']:.2f} s" for r in [ours, *rivals[:1]] if r and r.get("first_step_s")]
    memory = [f"{r['peak_rss_mib']:,.0f}" for r in [ours, *rivals[:1]] if r]
    row = [name, ours_text, "; ".join(map(cell, rivals)), ratio, " / ".join(first), " / ".join(memory)]
    print("| " + " | ".join(row) + " |", flush=True)


def replicas(binary, rounds=3):
    """Two replicas of one core each against one, interleaved; the medians count."""
    command = [binary, "bench", "minigooglenet", "--threads", "1", "--json", "--steps", "16", "--replicas"]
    speeds = {"1": [], "2": []}
    for _ in range(rounds):
        for count, found in speeds.items():
            runs = lines([*command, count, "--batch-size", "64"])
            found.extend(o["images_per_second"] for o in runs)
    if all(speeds.values()):
        one, two = (statistics.median(found) for found in speeds.values())
        print(f"| {REPLICAS} | {two:,.0f} | {one:,.0f} (one replica) | {two / one:.2f} | | |", flush=True)
    return speeds


def main():
    args = arguments()
    binary = args.phalanx or str(ROOT / "target/release/phalanx")
    if not pathlib.Path(binary).is_file():
        sys.exit(f"expected the binary at {binary}: cargo build --release -p phalanx-cli, or --phalanx FILE")
    venvs = {TORCH: args.torch, JAX: args.jax, KERAS: args.tf}
    pythons = {who: f"{venv}/bin/python" for who, venv in venvs.items() if venv}
    if pythons and not pathlib.Path(args.scripts).is_dir():
        sys.exit(f"expected the peers' scripts in {args.scripts}: --scripts DIR")
    wanted = lambda name: not args.only or args.only in name
    chosen = [w for w in WORKLOADS if wanted(w[0])]
    if not chosen and not wanted(REPLICAS):
        names = [*(w[0] for w in WORKLOADS), REPLICAS]
        sys.exit(f"--only: expected a part of one of {names}, received {args.only!r}")
    print("| workload | Phalanx, images/s | peers | ratio to the best | first step, ours / theirs | peak MiB |")
    print("|---|---|---|---|---|---|", flush=True)
    results = {}
    for name, ours, theirs, modes in chosen:
        runs = []
        for _ in range(args.rounds or (3 if name in QUICK else 1)):
            runs += phalanx(binary, ours, args.threads)
            for who, python in pythons.items():
                for mode in modes.get(who, []):
                    runs += peer(who, python, args.scripts, [*theirs, *mode], args.threads)
        results[name] = runs
        show(name, best(runs))
    if wanted(REPLICAS):
        results[REPLICAS] = replicas(binary)
    text = json.dumps({"threads": args.threads, "results": results})
    if args.json:
        pathlib.Path(args.json).write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
