#!/usr/bin/env python3
"""Models the scaling efficiency of 2 to 256 hosts, from the step time of one host and the bytes exchanged.

    python3 benches/scaling.py --picture docs/pictures/scaling.svg

This is a model, not a measurement: docs/scaling.md lists the measurements and assumptions. The plot needs no other
packages.
"""
import argparse

HOSTS = [2, 4, 8, 16, 32, 64, 128, 256]
LINKS = [10, 25, 100, 400]  # Gbit/s
# (name, seconds per step on one host of two cores, megabytes of each gradient bucket in the order of completion). Speeds
# and buckets are from docs/performance.md: 232 and 10 images/s.
MODELS = [
    ("MiniGoogLeNet, batch 64 per host", 64 / 232, [4.2, 2.4]),
    ("ResNet50, batch 8 per host", 8 / 10, [100.9 / 17] * 17 + [1.6]),
    ("100M parameters", 2.0, [400 / 95] * 95),
]
LATENCY = 20e-6  # seconds per message between hosts, including software on both ends
IN_FLIGHT = 8  # concurrent messages
REDUCE_RATE = 1.6e9  # bytes of gradients per second that a host packs, passes to MPI and sums: measured, see docs/scaling.md
LINK_UTILIZATION = 0.9  # fraction of a link's rate that messages achieve
BACKWARD = 0.5  # fraction of a step during which finished buckets can be sent


def round_latency(hosts):
    """Latency in seconds of a round in which every host sends a message to every other, without its bytes."""
    return LATENCY + (hosts - 1) * LATENCY / IN_FLIGHT


def reduction(megabytes, hosts, gbit):
    """Seconds to reduce a bucket: each host sends and receives 2 (n-1)/n of it, in two rounds."""
    nbytes, rate = megabytes * 1e6, gbit * 1e9 / 8 * LINK_UTILIZATION
    wire = 2 * (hosts - 1) / hosts * nbytes / rate
    return wire + 2 * round_latency(hosts) + nbytes / REDUCE_RATE


def efficiency(model, hosts, gbit, faster=1.0):
    """Throughput per host relative to a single host. `faster` is the speed of a host relative to two cores."""
    _, step, buckets = model
    step /= faster
    transfer = [reduction(b, hosts, gbit) for b in buckets]
    # Not overlapped: the last bucket, transfers that outlast the backward pass, and the exchange of losses and metrics
    # before every update.
    exposed = max(sum(transfer) - BACKWARD * step, transfer[-1]) + round_latency(hosts)
    return step / (step + exposed)


def tables():
    for faster, description in [(1, "hosts as fast as two of our cores"), (32, "hosts that compute 32 times faster")]:
        for model in MODELS:
            print(f"\n{model[0]} ({sum(model[2]):.1f} MB of gradients in {len(model[2])} buckets), {description}\n")
            print("| Gbit/s | " + " | ".join(map(str, HOSTS)) + " |")
            print("|---|" + "---|" * len(HOSTS))
            for gbit in LINKS:
                row = [f"{100 * efficiency(model, n, gbit, faster):.0f}%" for n in HOSTS]
                print(f"| {gbit} | " + " | ".join(row) + " |")


def picture(path):
    """Plots three panels, one line per link, for the faster hosts."""
    wide, high, left, top = 300, 220, 50, 40
    colours = ["#c0392b", "#e67e22", "#2980b9", "#27ae60"]
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{3 * (wide + left) + 90}" height="{high + 100}" '
           'font-family="sans-serif" font-size="11">', '<rect width="100%" height="100%" fill="white"/>']
    for p, model in enumerate(MODELS):
        x0 = left + p * (wide + left)
        at = lambda i, e: (x0 + i * wide / (len(HOSTS) - 1), top + high * (1 - e))
        out.append(f'<text x="{x0}" y="{top - 14}" font-weight="bold">{model[0]}</text>')
        for tick in (0, 0.25, 0.5, 0.75, 1):
            y = at(0, tick)[1]
            out.append(f'<line x1="{x0}" x2="{x0 + wide}" y1="{y}" y2="{y}" stroke="#ddd"/>')
            out.append(f'<text x="{x0 - 6}" y="{y + 4}" text-anchor="end">{tick:.0%}</text>')
        for i, n in enumerate(HOSTS):
            out.append(f'<text x="{at(i, 0)[0]}" y="{top + high + 16}" text-anchor="middle">{n}</text>')
        for gbit, colour in zip(LINKS, colours):
            points = " ".join("%.1f,%.1f" % at(i, efficiency(model, n, gbit, 32)) for i, n in enumerate(HOSTS))
            out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
    x = 3 * (wide + left) + 10
    for i, (gbit, colour) in enumerate(zip(LINKS, colours)):
        y = top + 20 + 18 * i
        out.append(f'<line x1="{x}" x2="{x + 18}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>')
        out.append(f'<text x="{x + 22}" y="{y + 4}">{gbit} Gbit/s</text>')
    out.append(f'<text x="{left}" y="{high + 80}">Efficiency over hosts, for hosts that compute 32 times faster '
               'than the two cores measured; modelled.</text></svg>')
    with open(path, "w") as f:
        f.write("\n".join(out) + "\n")


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--picture", help="write an SVG here")
    args = arguments.parse_args()
    tables()
    if args.picture:
        picture(args.picture)


main()
