#!/usr/bin/env bash
# Looks for undefined behaviour: Miri interprets the graph crate, whose programs executors rely on, and those
# parts of the CPU executor that are pure Rust (threads, memory that they share, checks of kernels). It knows
# neither vector instructions nor most calls of the system. Skipped where no toolchain has Miri.
set -euo pipefail
cd "$(dirname "$0")/../.."

# The first installed toolchain that has Miri, with what it needs to run.
toolchain=
for name in $(rustup toolchain list 2>/dev/null | cut -d' ' -f1); do
    if cargo "+$name" miri setup </dev/null >/dev/null 2>&1; then
        toolchain=$name
        break
    fi
done
if [ -z "$toolchain" ]; then
    echo "no toolchain here has Miri: looking for undefined behaviour is skipped"
    exit
fi

# Sizes of memory are read from files of the system.
export MIRIFLAGS=-Zmiri-disable-isolation
cargo "+$toolchain" miri test --locked -p phalanx-graph --lib
cargo "+$toolchain" miri test --locked -p phalanx-cpu --lib -- \
    async_reduce:: process_collectives:: every_worker_runs a_failing_worker sizes_that_wrap_around
