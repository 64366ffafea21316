#!/usr/bin/env bash
# Checks what deploy/ has, as far as it goes without a cluster: shell syntax, the manifest's fields, and that
# the command understands the arguments in both.
set -euo pipefail
cd "$(dirname "$0")/../.."
bash -n deploy/slurm.sbatch
grep -q '^FROM ' deploy/Dockerfile
python=$(command -v python3 || true)
if [ -z "$python" ]; then
    echo "python3 is not here: the manifest is not checked"
    exit 0
fi
venv=${PHALANX_VENV:-${CARGO_TARGET_DIR:-target}/venv-deploy}
if ! "$venv/bin/python" -c "import yaml" 2>/dev/null; then
    timeout 120 sh -c "$python -m venv '$venv' && '$venv/bin/pip' -q install pyyaml" >/dev/null 2>&1 || true
fi
if ! "$venv/bin/python" -c "import yaml" 2>/dev/null; then
    echo "pyyaml is not here and cannot be installed: the manifest is not checked"
    exit 0
fi
cargo test --workspace --locked --no-run --test cli
"$venv/bin/python" tests/deploy/check_deploy.py "${CARGO_TARGET_DIR:-target}/debug/phalanx"
