#!/usr/bin/env bash
# Checks what deploy/ has, as far as it goes without a cluster: shell syntax, the manifest's fields, and that
# the command understands the arguments in both.
set -euo pipefail
cd "$(dirname "$0")/../.."
bash -n deploy/slurm.sbatch
grep -q '^FROM ' deploy/Dockerfile
venv=${PHALANX_VENV:-${CARGO_TARGET_DIR:-target}/venv-deploy}
if ! "$venv/bin/python" -c "import yaml" 2>/dev/null; then
    python3 -m venv "$venv"
    timeout 120 "$venv/bin/pip" -q install pyyaml
fi
cargo test --workspace --locked --no-run --test suite
"$venv/bin/python" tests/deploy/check_deploy.py "${CARGO_TARGET_DIR:-target}/debug/phalanx"
