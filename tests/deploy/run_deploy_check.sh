#!/usr/bin/env bash
# Checks the files of deploy/ as far as possible without a cluster: the shell syntax, the fields of the manifest, and that
# the command accepts the arguments in both.
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
