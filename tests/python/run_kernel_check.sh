#!/usr/bin/env bash
# Compiles every GPU kernel with NVIDIA's runtime compiler, which needs no GPU; with
# `prepare`, only gets ready for it. Takes it from the Python environment in $PHALANX_NVRTC_VENV or makes one under the
# target directory; says so and ends well where neither is possible.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv="${PHALANX_NVRTC_VENV:-${CARGO_TARGET_DIR:-target}/kernel-check-venv}"
if ! compgen -G "$venv/lib/python3*/site-packages/nvidia/*/lib/libnvrtc.so.*" >/dev/null; then
    if ! { python3 -m venv "$venv" && timeout 300 "$venv/bin/pip" install -q 'nvidia-cuda-nvrtc>=13,<14'; } >/dev/null 2>&1; then
        echo "kernel check skipped: no nvidia-cuda-nvrtc, and pip cannot install it here"
        exit 0
    fi
fi
[ "${1:-}" = prepare ] && exit 0
VIRTUAL_ENV="$(cd "$venv" && pwd)" PHALANX_NVRTC=required \
    cargo test --locked --workspace --lib compiled::every_kernel_compiles -- --exact
