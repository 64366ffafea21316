#!/usr/bin/env bash
# Checks for undefined behaviour with Miri: the graph crate, on whose programs the executors rely, and the parts of the CPU
# executor that are pure Rust (threads, shared memory, kernel checks). Miri supports neither vector instructions nor most
# system calls. Installs a nightly toolchain with Miri if no toolchain has it.
set -euo pipefail
cd "$(dirname "$0")/../.."

# The first installed toolchain on which Miri can be set up.
toolchain_with_miri() {
    local name
    for name in $(rustup toolchain list | cut -d' ' -f1); do
        if cargo "+$name" miri setup </dev/null >/dev/null 2>&1; then
            echo "$name"
            return
        fi
    done
}

toolchain=$(toolchain_with_miri)
if [ -z "$toolchain" ]; then
    timeout 600 rustup toolchain install nightly --profile minimal -c miri -c rust-src --no-self-update
    toolchain=$(toolchain_with_miri)
fi
if [ -z "$toolchain" ]; then
    echo "Miri is missing and cannot be installed" >&2
    exit 1
fi

# The tests read memory sizes from system files.
export MIRIFLAGS=-Zmiri-disable-isolation
cargo "+$toolchain" miri test --locked -p phalanx-graph --lib
cargo "+$toolchain" miri test --locked -p phalanx-cpu --lib -- \
    async_reduce:: process_collectives:: every_worker_runs a_failing_worker sizes_that_wrap_around
