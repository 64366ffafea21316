#!/usr/bin/env python3
"""How cost grows: images/s and memory over batch, replicas, depth and width, as tables and a picture.

    cargo build --release -p phalanx-cli
    python3 benches/growth.py --picture growth.svg --json growth.json

Every line is one process, `phalanx bench ... --json`; `--quick` takes fewer steps and smaller batches. The
picture needs nothing but this script.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]


def bench(binary, *args):
    """One run; None where it fails, which is said."""
    command = [binary, "bench", *map(str, args), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"left out: {' '.join(command)}: {done.stderr.strip()}", file=sys.stderr)
        return None
    return json.loads(done.stdout)


def table(title, what, runs):
    """A table of runs, by what was varied."""
    print(f"\n{title}\n\n| {what} | images/s | ms/step | planned MiB a device | peak MiB |\n|---|---|---|---|---|")
    for value, run in runs:
        print(f"| {value} | {run['images_per_second']:,.1f} | {run['step_ms']:.3f} "
              f"| {run['planned_mib']} | {run['peak_rss_mib']} |", flush=True)


def sweep(binary, model, flag, values, *args):
    runs = [(v, bench(binary, model, flag, v, *args)) for v in values]
    return [(v, run) for v, run in runs if run]


def picture(path, series):
    """Images/s over batch on logarithmic axes, one line a series, as SVG."""
    import math
    points = [(v, r["images_per_second"]) for _, runs in series for v, r in runs]
    if not points:
        return
    width, height, margin = 640, 420, 60
    low = [min(math.log10(max(p[i], 1e-9)) for p in points) for i in (0, 1)]
    high = [max(math.log10(max(p[i], 1e-9)) for p in points) for i in (0, 1)]
    size = [max(h - l, 1e-9) for l, h in zip(low, high)]

    def at(v, r):
        x = margin + (math.log10(v) - low[0]) / size[0] * (width - 2 * margin)
        y = height - margin - (math.log10(max(r, 1e-9)) - low[1]) / size[1] * (height - 2 * margin)
        return f"{x:.1f},{y:.1f}"

    colours = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd"]
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
             f'font-size="12"><rect width="100%" height="100%" fill="white"/>']
    frame = f'{margin},{margin} {margin},{height - margin} {width - margin},{height - margin}'
    parts.append(f'<polyline points="{frame}" fill="none" stroke="black"/>')
    for e in range(math.ceil(low[1]), math.floor(high[1]) + 1):
        x, y = at(10 ** low[0], 10 ** e).split(",")
        parts.append(f'<text x="{float(x) - 6}" y="{float(y) + 4}" text-anchor="end">{10 ** e:,.0f}</text>')
    for v in sorted({v for v, _ in points}):
        x, _ = at(v, 1).split(",")
        parts.append(f'<text x="{x}" y="{height - margin + 18}" text-anchor="middle">{v}</text>')
    parts.append(f'<text x="{width / 2}" y="{height - 15}" text-anchor="middle">global batch</text>')
    parts.append(f'<text x="{margin}" y="{margin - 20}">images/s</text>')
    for i, (name, runs) in enumerate(series):
        colour = colours[i % len(colours)]
        line = " ".join(at(v, r["images_per_second"]) for v, r in runs)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{margin + 12}" y="{margin + 16 * i}" fill="{colour}">{name}</text>')
    pathlib.Path(path).write_text("\n".join(parts) + "\n</svg>\n")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--phalanx", default=os.environ.get("PHALANX_BIN", str(ROOT / "target/release/phalanx")))
    ap.add_argument("--quick", action="store_true")
    ap.add_argument("--picture", metavar="FILE.svg")
    ap.add_argument("--json", metavar="FILE")
    args = ap.parse_args()
    if not pathlib.Path(args.phalanx).is_file():
        sys.exit(f"expected the binary at {args.phalanx}: cargo build --release -p phalanx-cli")
    steps = ["--steps", 2] if args.quick else []
    batches = [1, 8, 64] if args.quick else BATCHES
    found, series = {}, []
    for model, large in (("mnist-mlp", 1024), ("minigooglenet", 256)):
        sizes = [b for b in batches if b <= large]
        for replicas in (1, 2):
            name = f"{model}, {replicas} replica(s)"
            runs = sweep(args.phalanx, model, "--batch-size", sizes, "--replicas", replicas, *steps)
            table(f"{name}, training", "global batch", runs)
            found[name] = runs
            series.append((name, runs))
        name = f"{model}, inference"
        found[name] = sweep(args.phalanx, model, "--batch-size", sizes, "--inference", *steps)
        table(name, "batch", found[name])
    cores = len(os.sched_getaffinity(0))
    threads = [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= cores]
    batch = [] if args.quick else ["--batch-size", 256]
    found["threads"] = sweep(args.phalanx, "minigooglenet", "--threads", threads, *batch, *steps)
    table("minigooglenet, training, by workers of one device", "workers", found["threads"])
    sizes = [64, 256] if args.quick else [64, 128, 256, 512, 1024, 2048]
    found["width"] = sweep(args.phalanx, "mnist-mlp", "--width", sizes, "--batch-size", 64, *steps)
    table("mlp of two hidden layers, batch 64, by width", "width", found["width"])
    depths = [1, 4] if args.quick else [1, 2, 4, 8, 16, 32]
    found["depth"] = sweep(args.phalanx, "mnist-mlp", "--depth", depths, "--batch-size", 64, *steps)
    table("mlp of width 256, batch 64, by depth", "hidden layers", found["depth"])
    if args.picture:
        picture(args.picture, series)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
