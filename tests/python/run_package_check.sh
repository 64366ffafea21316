#!/usr/bin/env bash
# Checks the Python package: its style, its types, the wheel without Keras, and its tests with Keras on JAX.
# PYTHON_BACKENDS="jax tensorflow torch" also runs the tests on these backends; each needs an environment
# VENV_TENSORFLOW or VENV_TORCH. With `prepare` it only installs what it needs.
set -euo pipefail
cd "$(dirname "$0")/../.."
tests/python/run_cross_check.sh prepare
venv="${CARGO_TARGET_DIR:-target}/cross-check-venv"
python="$(realpath -s "${PHALANX_KERAS_PYTHON:-$venv/bin/python}")"
if ! "$python" -c 'import maturin, matplotlib, mypy, pandas, pytest, ruff, scipy' 2>/dev/null; then
    timeout 600 "$python" -m pip install -q 'maturin>=1.9,<2' matplotlib mypy pandas pytest ruff scipy
fi
[ "${1:-}" = prepare ] && exit 0

wheels="$(mktemp -d)"
trap 'rm -rf "$wheels"' EXIT
(cd python && cargo fmt --check)
"$python" -m ruff check -q python
"$python" -m ruff format --check -q python
"$python" -m maturin build -q --locked -m python/Cargo.toml --profile dev --out "$wheels"
(cd python && cargo clippy -q --locked -- -D warnings)

# Without Keras: the command works, and the scope says what to install.
python3 -m venv "$wheels/bare"
timeout 300 "$wheels/bare/bin/pip" install -q "$wheels"/phalanx-*.whl
"$wheels/bare/bin/phalanx" devices >/dev/null
(cd "$wheels" && bare/bin/python -c '
import phalanx
try:
    with phalanx.MirroredStrategy(["cpu:0"]).scope():
        raise SystemExit("expected an error without Keras")
except ImportError as error:
    assert "pip install keras" in str(error), error')

"$python" -m pip install -q --force-reinstall --no-deps "$wheels"/phalanx-*.whl
allowlist="$PWD/python/tests/stubtest_allowlist.txt"
(cd "$wheels" && "$python" -m mypy.stubtest phalanx._phalanx --allowlist "$allowlist")
(cd "$wheels" && "$python" -m mypy --no-error-summary --ignore-missing-imports -p phalanx)
for backend in ${PYTHON_BACKENDS:-jax}; do
    interpreter="$python"
    if [ "$backend" != jax ]; then
        variable="VENV_${backend^^}"
        interpreter="${!variable:?expected the virtual environment of this backend}/bin/python"
        "$interpreter" -m pip install -q --force-reinstall --no-deps "$wheels"/phalanx-*.whl
    fi
    KERAS_BACKEND=$backend PHALANX_PIN=0 timeout 1200 "$interpreter" -m pytest -q -p no:cacheprovider \
        -W "ignore::DeprecationWarning" python/tests
done
