#!/usr/bin/env bash
# Checks for undefined behaviour with Miri: the graph crate, on whose programs the executors rely, and the parts of the CPU
# executor that are pure Rust (threads, shared memory, kernel checks). Miri supports neither vector instructions nor most
# system calls. Skipped if no toolchain has Miri.
set -euo pipefail
cd "$(dirname "$0")/../.."

# The first installed toolchain on which Miri can be set up.
toolchain=
for name in $(rustup toolchain list 2>/dev/null | cut -d' ' -f1); do
    if cargo "+$name" miri setup </dev/null >/dev/null 2>&1; then
        toolchain=$name
        break
    fi
done
if [ -z "$toolchain" ]; then
    echo "not checked: undefined behaviour, because no installed toolchain has Miri"
    exit
fi

# The tests read memory sizes from system files.
export MIRIFLAGS=-Zmiri-disable-isolation
# This test does not end within minutes.
cargo "+$toolchain" miri test --locked -p phalanx-graph --lib -- --skip attributes_that_overflow_are_rejected
cargo "+$toolchain" miri test --locked -p phalanx-cpu --lib -- \
    async_reduce:: process_collectives:: every_worker_runs a_failing_worker sizes_that_wrap_around
