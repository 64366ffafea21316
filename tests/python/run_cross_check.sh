#!/usr/bin/env bash
# Checks model files and the command against Python Keras. It uses the Python in $PHALANX_KERAS_PYTHON or creates an
# environment under the target directory. With `prepare` it only creates the environment.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv="${CARGO_TARGET_DIR:-target}/cross-check-venv"
python="${PHALANX_KERAS_PYTHON:-$venv/bin/python}"
if ! "$python" -c 'import h5py, jax, keras' 2>/dev/null; then
    python3 -m venv "$venv"
    timeout 600 "$venv/bin/pip" install -q keras==3.15.1 jax==0.10.2 h5py
    python="$venv/bin/python"
fi
[ "${1:-}" = prepare ] && exit 0
directory="$(mktemp -d)"
trap 'rm -rf "$directory"' EXIT
timeout 1200 "$python" tests/python/cross_check.py "$directory"
# More random models: check_command.py --random 200 --seed 1000.
cargo build -q --workspace --locked
timeout 600 "$python" tests/python/check_command.py "$directory/command"
