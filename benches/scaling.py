#!/usr/bin/env python3
"""How well 2 to 256 hosts would train, from a step's time on one host and the bytes between them.

    python3 benches/scaling.py --picture docs/pictures/scaling.svg

A model, not a measurement: docs/scaling.md says what was measured and what is assumed. The picture needs nothing
but this script.
"""
import argparse

HOSTS = [2, 4, 8, 16, 32, 64, 128, 256]
LINKS = [10, 25, 100, 400]  # Gbit/s
# (name, parameters, seconds of a step on one host of two cores, bytes of the bucket that is finished last)
MODELS = [
    ("MiniGoogLeNet, batch 64 per host", 1_652_826, 0.251, 2.6e6),
    ("ResNet50, batch 8 per host", 25_636_712, 0.84, 4e6),
    ("100M parameters", 100_000_000, 2.0, 4e6),
]
LATENCY = 20e-6  # seconds of a message between hosts, both ends' software included
ADD = 4e9  # bytes per second that a host adds up of what came in
SHARE = 0.9  # of a link's rate that messages get
BACKWARD = 0.5  # of a step in which finished buckets can travel


def reduction(nbytes, hosts, gbit):
    """Seconds to add up so many bytes: each host sends and receives 2 (n-1)/n of them, in two rounds."""
    rate = gbit * 1e9 / 8 * SHARE
    wire = 2 * (hosts - 1) / hosts * nbytes / rate
    return wire + 2 * (hosts - 1) * LATENCY / 8 + 2 * LATENCY + nbytes / ADD


def efficiency(model, hosts, gbit, faster=1.0):
    """Speed per host beside a single one; `faster` is how many times faster than two cores a host computes."""
    _, params, step, last = model
    step /= faster
    whole = reduction(4 * params, hosts, gbit)
    # Nothing hides what is finished last, nor what takes longer than backward.
    shown = max(whole - BACKWARD * step, reduction(min(last, 4 * params), hosts, gbit))
    return step / (step + shown)


def tables():
    for faster, words in [(1, "hosts of two cores, as measured"), (32, "hosts that compute 32 times faster")]:
        for model in MODELS:
            print(f"\n{model[0]} ({4 * model[1] / 1e6:.1f} MB of gradients), {words}\n")
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
