"""Fault injection with several hosts on one machine.

Network namespaces act as hosts (`hosts.py`). Each trial injects a fault into a run of three workers at a random moment
of a phase: it kills or pauses a worker, or disconnects a host. The job must end in time, name the faulty worker, leave no
process behind, and end bit-identically after it is resumed.

    sudo python3 tests/mpi/faults.py target/debug/phalanx --trials 60
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from hosts import Network

HOSTS = 3
TIMEOUT = 4
# Seconds beyond the collective timeout: the alarm's grace period, mpirun's shutdown, and a busy machine.
SLACK = 8
# The message of workers if one of them did not get a core in time. No fault was injected yet, and the run is retried.
LATE, ATTEMPTS = "not all workers have joined", 3
KINDS = ["kill", "pause", "cut"]
PHASES = ["rendezvous", "backward", "save", "evaluation"]
STEPS, EPOCHS = 10, 2


def start(net, phalanx, folder):
    train = f"train mnist-mlp --threads 1 --steps-per-epoch {STEPS} --epochs {EPOCHS} --no-scaling --verbose 0 "
    train += f"--checkpoint-dir {folder}/run --checkpoint-every 1 --keep 50 --resume --collective-timeout {TIMEOUT} "
    train += f"--json {folder}/out.json"
    # Without keepalive, mpirun would wait for an unreachable daemon.
    mca = "--mca oob_tcp_keepalive_time 1 --mca oob_tcp_keepalive_intvl 1 --mca oob_tcp_keepalive_probes 2"
    log = open(os.path.join(folder, "log"), "w")
    return net.start(f"{phalanx} {train}", mca, stdout=log, stderr=log, cwd=folder)


def wait_for(test, seconds, process=None):
    end = time.time() + seconds
    while time.time() < end:
        if test():
            return True
        if process is not None and process.poll() is not None:
            return test()
        time.sleep(0.005)
    return False


def sha(folder):
    try:
        return json.loads(open(f"{folder}/out.json").read().splitlines()[-1]).get("weights_sha256")
    except (OSError, IndexError, ValueError):
        return None


def finish(net, phalanx, folder):
    for _ in range(ATTEMPTS):
        code = start(net, phalanx, folder).wait(timeout=180)
        log = open(f"{folder}/log").read()
        if LATE not in log:
            break
    assert code == 0, f"a run that should succeed: {code}\n{log}"
    return sha(folder), log


def is_named(log, kind, victim):
    """Whether a worker or mpirun names the victim as missing: the killed process or the disconnected host."""
    lines = [rf": rank {victim} \(phx{victim}\): (no answer|MPI)"]
    if kind == "kill":
        lines.append(rf"noticed that process rank {victim} with PID \d+ on node phx{victim} exited on signal 9")
    if kind == "cut":
        lines.append(rf"Remote daemon: .* on node phx{victim}$")
    return any(re.search(line, log, re.MULTILINE) for line in lines)


def trial(net, phalanx, kind, phase, draw, reference):
    folder = tempfile.mkdtemp(dir=net.folder)
    victim = draw.randrange(HOSTS) if kind != "cut" else draw.randrange(1, HOSTS)
    step = {"rendezvous": None, "evaluation": STEPS}.get(phase, draw.randrange(2, STEPS - 1))
    if step is None:
        there = lambda: net.pids(victim, "phalanx")
        delay = draw.uniform(0, 0.25)
    else:
        there = lambda: os.path.exists(f"{folder}/run/step-{step:010}.safetensors")
        delay = {"save": 0.0, "backward": draw.uniform(0, 0.05), "evaluation": draw.uniform(0, 0.05)}[phase]
    for _ in range(ATTEMPTS):
        process = start(net, phalanx, folder)
        if wait_for(there, 90, process) or LATE not in open(f"{folder}/log").read():
            break
    assert there(), open(f"{folder}/log").read()
    time.sleep(delay)
    begin = time.time()
    for pid in net.pids(victim, "phalanx") if kind != "cut" else []:
        os.kill(pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
    if kind == "cut":
        net.link(victim, "down")
    ended = True
    try:
        code = process.wait(timeout=TIMEOUT + SLACK + 20)
    except subprocess.TimeoutExpired:
        code, ended = None, False
    left = not wait_for(lambda: not any(net.pids(i, "phalanx") for i in range(HOSTS)), SLACK)
    seconds = time.time() - begin
    log = open(f"{folder}/log").read()
    late = code == 0
    named = is_named(log, kind, victim)
    net.link(victim, "up")
    assert wait_for(lambda: net.reach(victim), 30), "the link does not come up again"
    for i in range(HOSTS):
        for pid in net.pids(i):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    again, resumed = finish(net, phalanx, folder)
    damaged = "damaged" in resumed or "damaged" in log
    problems = [
        word
        for word, bad in [
            ("did not end", not ended),
            (f"took {seconds:.1f} s", seconds > TIMEOUT + SLACK and not late),
            # Until MPI has connected the workers, the others cannot know which one is missing.
            ("culprit not named", not named and not late and (kind, phase) != ("pause", "rendezvous")),
            ("processes left", left),
            ("damaged checkpoint", damaged),
            ("other bits", again != reference),
        ]
        if bad
    ]
    line = f"{kind:6} {phase:11} rank {victim}: {seconds:5.1f} s, exit {code}{', over before' if late else ''}"
    print(line, "; ".join(problems) or "ok", flush=True)
    if problems:
        print(log, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    return kind, phase, seconds, problems, late


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("phalanx")
    arguments.add_argument("--trials", type=int, default=60)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--phase", choices=PHASES, help="inject faults only in this phase")
    args = arguments.parse_args()
    phalanx = os.path.abspath(args.phalanx)
    folder = tempfile.mkdtemp(prefix="phalanx-faults-")
    # Workers are found by this process name.
    shutil.copy(phalanx, f"{folder}/phalanx")
    net = Network(folder, HOSTS)
    try:
        first = tempfile.mkdtemp(dir=folder)
        reference, _ = finish(net, f"{folder}/phalanx", first)
        assert reference, "the reference run wrote no weights"
        results = []
        for i in range(args.trials):
            draw = random.Random(args.seed * 1000 + i)
            kind, phase = KINDS[i % len(KINDS)], args.phase or PHASES[(i // len(KINDS)) % len(PHASES)]
            results.append(trial(net, f"{folder}/phalanx", kind, phase, draw, reference))
        print("\n| fault | " + " | ".join(PHASES) + " |\n|---|" + "---|" * len(PHASES))
        for kind in KINDS:
            cells = []
            for phase in PHASES:
                some = [r for r in results if r[0] == kind and r[1] == phase]
                bad, hit = sum(1 for r in some if r[3]), [r for r in some if not r[4]]
                worst = max((r[2] for r in hit), default=0)
                over = f", {len(some) - len(hit)} over before" if len(hit) < len(some) else ""
                cells.append(f"{len(hit)} trials, {bad} failed, {worst:.1f} s{over}")
            print(f"| {kind} | " + " | ".join(cells) + " |")
        failed = [r for r in results if r[3]]
        over = sum(1 for r in results if r[4])
        print(f"{len(results) - over} faults, {len(failed)} failures; {over} runs were over before the fault")
        sys.exit(1 if failed else 0)
    finally:
        net.down()
        shutil.rmtree(folder, ignore_errors=True)


main()
