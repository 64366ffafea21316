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
# Half of the models, the other half after the next commit; all of them with PHALANX_CROSS_CHECK_ALL=1.
if [ -n "${PHALANX_CROSS_CHECK_ALL:-}" ]; then
    shares="0/2 1/2"
else
    turn=$(($(git rev-list --count HEAD 2>/dev/null || echo 0) % 2))
    shares="$turn/4 $((turn + 2))/4"
fi
cargo build -q --workspace --locked
PHALANX_SUITE=$(cargo test -q --workspace --locked --test suite --no-run --message-format json | "$python" -c '
import json, sys
built = [m for m in map(json.loads, sys.stdin) if m.get("executable") and m["target"]["name"] == "suite"]
print(next(m["executable"] for m in built if "/phalanx#" in m["package_id"]))')
export PHALANX_SUITE
# One process per share: Keras builds and compiles models on one core.
pids=()
for share in $shares; do
    timeout 1200 "$python" tests/python/cross_check.py --share "$share" "$directory/${share/\//-of-}" &
    pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid"; done
timeout 300 "$python" tests/python/check_model_parallel.py "$directory/model_parallel"
# More random models: check_command.py --random 200 --seed 1000.
timeout 600 "$python" tests/python/check_command.py "$directory/command"
