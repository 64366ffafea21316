#!/usr/bin/env bash
# Compiles every GPU kernel with NVIDIA's runtime compiler, which needs no GPU. It takes the compiler from the Python
# environment in $PHALANX_NVRTC_VENV or creates one under the target directory. With `prepare` it only creates the
# environment.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv="${PHALANX_NVRTC_VENV:-${CARGO_TARGET_DIR:-target}/kernel-check-venv}"
if ! compgen -G "$venv/lib/python3*/site-packages/nvidia/*/lib/libnvrtc.so.*" >/dev/null; then
    python3 -m venv "$venv"
    timeout 300 "$venv/bin/pip" install -q 'nvidia-cuda-nvrtc>=13,<14'
fi
[ "${1:-}" = prepare ] && exit 0
VIRTUAL_ENV="$(cd "$venv" && pwd)" \
    cargo test --locked --workspace --test suite kernels::every_kernel_compiles -- --ignored
