#!/usr/bin/env python3
"""How cost grows: throughput and memory over batch, replicas, depth and width, as tables and a plot.

    cargo build --release -p phalanx-cli
    python3 benches/growth.py --picture growth.svg --json growth.json

Each line is one process, `phalanx bench ... --json`. `--quick` runs fewer steps and smaller batches. The plot needs no
other packages.
"""
import argparse
import json
import math
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]


def bench(binary, *args):
    """Runs one benchmark; reports a failure and returns None."""
    command = [binary, "bench", *map(str, args), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"left out: {' '.join(command)}: {done.stderr.strip()}", file=sys.stderr)
        return None
    return json.loads(done.stdout)


def table(title, what, runs):
    """Prints a table of runs by the varied parameter."""
    print(f"\n{title}\n\n| {what} | images/s | ms/step | planned MiB | peak MiB |\n|---|---|---|---|---|")
    for value, run in runs:
        print(f"| {value} | {run['images_per_second']:,.1f} | {run['step_ms']:.3f} "
              f"| {run['planned_mib']} | {run['peak_rss_mib']} |", flush=True)


def sweep(binary, model, flag, values, *args):
    runs = [(v, bench(binary, model, flag, v, *args)) for v in values]
    return [(v, run) for v, run in runs if run]


WIDTH, HEIGHT, MARGIN = 520, 340, 56
COLOURS = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b"]


def panel(title, axis, series):
    """Lines on logarithmic axes as SVG. Each series is (name, [(x, y), ...])."""
    points = [p for _, line in series for p in line]
    if not points:
        return ""
    low = [min(math.log10(p[i]) for p in points) for i in (0, 1)]
    high = [max(math.log10(p[i]) for p in points) for i in (0, 1)]
    size = [max(h - l, 1e-9) for l, h in zip(low, high)]

    def at(x, y):
        return (MARGIN + (math.log10(x) - low[0]) / size[0] * (WIDTH - 2 * MARGIN),
                HEIGHT - MARGIN - (math.log10(y) - low[1]) / size[1] * (HEIGHT - 2 * MARGIN))

    left, bottom = MARGIN, HEIGHT - MARGIN
    parts = [f'<text x="{left}" y="20" font-weight="bold">{title}</text>',
             f'<polyline points="{left},{MARGIN} {left},{bottom} {WIDTH - MARGIN},{bottom}" fill="none" stroke="black"/>',
             f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">{axis}</text>']
    ticks = [10 ** e for e in range(math.ceil(low[1]), math.floor(high[1]) + 1)]
    for y in ticks if len(ticks) > 1 else [10 ** low[1], 10 ** high[1]]:
        parts.append(f'<text x="{left - 6}" y="{at(10 ** low[0], y)[1] + 4:.1f}" text-anchor="end">{y:,.0f}</text>')
    for x in sorted({p[0] for p in points}):
        parts.append(f'<text x="{at(x, 10 ** low[1])[0]:.1f}" y="{bottom + 18}" text-anchor="middle">{x}</text>')
    for i, (name, line) in enumerate(series):
        colour = COLOURS[i % len(COLOURS)]
        text = " ".join("{:.1f},{:.1f}".format(*at(x, y)) for x, y in line)
        parts.append(f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{left + 12}" y="{MARGIN - 18 + 15 * i}" fill="{colour}">{name}</text>')
    return "\n".join(parts)


def picture(path, panels):
    """Writes panels of (title, axis, series), two per row, as SVG."""
    rows = (len(panels) + 1) // 2
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * WIDTH}" height="{rows * HEIGHT}" '
             'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>']
    for i, found in enumerate(panels):
        parts.append(f'<g transform="translate({i % 2 * WIDTH},{i // 2 * HEIGHT})">{panel(*found)}</g>')
    pathlib.Path(path).write_text("\n".join(parts) + "\n</svg>\n")


def line(runs, key):
    return [(v, run[key]) for v, run in runs if run.get(key)]


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
            rows = [b for b in sizes if b >= replicas]
            runs = sweep(args.phalanx, model, "--global-batch-size", rows, "--replicas", replicas, *steps)
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
    speed, small = "images_per_second", found["minigooglenet, 1 replica(s)"]
    if args.picture:
        picture(args.picture, [
            ("images/s, training", "global batch", [(name, line(runs, speed)) for name, runs in series]),
            ("MiB, minigooglenet, training", "batch",
             [("planned", line(small, "planned_mib")), ("measured peak", line(small, "peak_rss_mib"))]),
            ("images/s, perceptron of two hidden layers", "width", [("batch 64", line(found["width"], speed))]),
            ("images/s, perceptron of width 256", "hidden layers", [("batch 64", line(found["depth"], speed))]),
        ])
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
