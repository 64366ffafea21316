#!/usr/bin/env python3
"""How well 2 to 256 hosts would train, from a step's time on one host and the bytes between them.

    python3 benches/scaling.py --picture docs/pictures/scaling.svg

A model, not a measurement: docs/scaling.md says what was measured and what is assumed. The picture needs nothing
but this script.
"""
import argparse

HOSTS = [2, 4, 8, 16, 32, 64, 128, 256]
LINKS = [10, 25, 100, 400]  # Gbit/s
# (name, seconds of a step on one host of two cores, megabytes of each bucket of gradients in the order they are
# finished). Speeds and buckets are those of docs/performance.md: 232 and 10 images/s.
MODELS = [
    ("MiniGoogLeNet, batch 64 per host", 64 / 232, [4.2, 2.4]),
    ("ResNet50, batch 8 per host", 8 / 10, [100.9 / 17] * 17 + [1.6]),
    ("100M parameters", 2.0, [400 / 95] * 95),
]
LATENCY = 20e-6  # seconds of a message between hosts, both ends' software included
UNDER_WAY = 8  # messages at once
ADD = 1.6e9  # bytes of gradients per second that a host packs, hands to MPI and adds up: measured, see docs/scaling.md
SHARE = 0.9  # of a link's rate that messages get
BACKWARD = 0.5  # of a step in which finished buckets can travel


def round_of(hosts):
    """Seconds of a round in which every host sends a message to every other, but for its bytes."""
    return LATENCY + (hosts - 1) * LATENCY / UNDER_WAY


def reduction(megabytes, hosts, gbit):
    """Seconds to add up a bucket: each host sends and receives 2 (n-1)/n of it, in two rounds."""
    nbytes, rate = megabytes * 1e6, gbit * 1e9 / 8 * SHARE
    wire = 2 * (hosts - 1) / hosts * nbytes / rate
    return wire + 2 * round_of(hosts) + nbytes / ADD


def efficiency(model, hosts, gbit, faster=1.0):
    """Speed per host beside a single one; `faster` is how many times faster than two cores a host computes."""
    _, step, buckets = model
    step /= faster
    travel = [reduction(b, hosts, gbit) for b in buckets]
    # Nothing hides what is finished last, nor what takes longer than backward, nor the meeting for losses and
    # metrics in front of every update.
    shown = max(sum(travel) - BACKWARD * step, travel[-1]) + round_of(hosts)
    return step / (step + shown)


def tables():
    for faster, words in [(1, "hosts as fast as two of our cores"), (32, "hosts that compute 32 times faster")]:
        for model in MODELS:
            print(f"\n{model[0]} ({sum(model[2]):.1f} MB of gradients in {len(model[2])} buckets), {words}\n")
            print("| Gbit/s | " + " | ".join(map(str, HOSTS)) + " |")
            print("|---|" + "---|" * len(HOSTS))
            for gbit in LINKS:
                row = [f"{100 * efficiency(model, n, gbit, faster):.0f}%" for n in HOSTS]
                print(f"| {gbit} | " + " | ".join(row) + " |")


def picture(path):
    """Three panels, one line per link, for the faster hosts."""
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
