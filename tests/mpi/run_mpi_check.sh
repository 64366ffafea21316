#!/usr/bin/env bash
# Checks training on several workers: builds the command with MPI and runs it under mpirun on this machine. Installs Open
# MPI from Debian's packages if it is missing.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD

ready() { command -v mpirun >/dev/null && command -v mpicc >/dev/null && command -v ip >/dev/null && ls /usr/lib/llvm-*/lib/libclang* >/dev/null 2>&1; }
if ! ready; then
    timeout 600 sh -c "apt-get -q update && apt-get -qy install openmpi-bin libopenmpi-dev libclang-dev iproute2" >/dev/null
fi
ready || { echo "Open MPI is missing and cannot be installed" >&2; exit 1; }

features=phalanx-cli/mpi,phalanx-distributed/mpi
cargo clippy -p phalanx-distributed --features mpi --locked -- -D warnings
cargo build --workspace --features $features --locked --bin phalanx --example faults
target=${CARGO_TARGET_DIR:-target}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Copies the binary, which later builds without the feature replace.
cp "$target/debug/phalanx" "$work/phalanx-mpi"
cp "$target/debug/examples/faults" "$work/faults"
phalanx=$work/phalanx-mpi
cd "$work"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

workers() { local n=$1; shift; timeout 120 mpirun --oversubscribe -n "$n" "$phalanx" "$@"; }
fail() { echo "failed: $*" >&2; exit 1; }
# A field of the last line of a --json log.
field() { tail -n 1 "$1" | grep -o "\"$2\": [^,}]*" | cut -d' ' -f2 | tr -d '"'; }
same() { [ -n "$1" ] && [ "$1" = "$2" ] || fail "$3: $1 is not $2"; }
orphans() { pgrep -f "^$phalanx" >/dev/null && fail "$1: processes are left over" || true; }

# With 800 images per class and batches of 90, workers have unequal rows and the last batch is short.
train="train mnist-mlp --global-batch-size 90 --verbose 0 --no-scaling"
exact="$train --deterministic"

echo "the same losses as one process with as many replicas"
for n in 2 4; do
    $phalanx $train --epochs 2 --replicas $n --threads 1 --json one.json
    workers $n $train --epochs 2 --threads 1 --json several.json
    for name in test_loss test_accuracy; do
        a=$(field one.json $name) b=$(field several.json $name)
        awk -v a="$a" -v b="$b" 'BEGIN { exit !(a != "" && (a - b)^2 < 1e-10) }' || fail "$n workers: $name $a, $b"
    done
done

echo "the same bits in deterministic mode, including loss scaling, augmentation and dropout"
for arguments in "$exact --epochs 2" "$exact --epochs 1 --precision mixed_float16" "train mnist-cnn --global-batch-size 50 --steps-per-epoch 12 --epochs 1 --augment shift,flip --verbose 0 --no-scaling --deterministic"; do
    $phalanx $arguments --json one.json
    for n in 2 4; do
        workers $n $arguments --json several.json
        same "$(field several.json weights_sha256)" "$(field one.json weights_sha256)" "$n workers: $arguments"
        same "$(field several.json test_loss)" "$(field one.json test_loss)" "$n workers: loss"
    done
done

echo "evaluation and prediction, in order and without padding rows"
$phalanx $train --epochs 1 --save model.keras
python3 - <<'PY' 2>/dev/null || head -c 0 /dev/null
import struct
rows = 101
head = "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 784), }" % rows
head += " " * (-(len(head) + 11) % 64) + "\n"
data = [((i * 37) % 256) / 255 for i in range(rows * 784)]
open("x.npy", "wb").write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack("<%df" % len(data), *data))
PY
$phalanx evaluate model.keras --data glyphs > one.txt
for n in 2 4; do
    workers $n evaluate model.keras --data glyphs > several.txt
    cmp one.txt several.txt || fail "$n workers: evaluation differs"
done
if [ -s x.npy ]; then
    $phalanx predict model.keras --input x.npy --output one.npy
    for n in 2 4; do
        workers $n predict model.keras --input x.npy --output several.npy
        cmp one.npy several.npy || fail "$n workers: prediction differs"
    done
fi

echo "a run moves from 1 to 2 to 4 to 1 workers"
$phalanx $exact --epochs 4 --json whole.json
whole=$(field whole.json weights_sha256)
$phalanx $exact --epochs 1 --checkpoint-dir moved
workers 2 $exact --epochs 2 --checkpoint-dir moved --resume
workers 4 $exact --epochs 3 --checkpoint-dir moved --resume
$phalanx $exact --epochs 4 --checkpoint-dir moved --resume --json moved.json
same "$(field moved.json weights_sha256)" "$whole" "a run that moved"

# Starts a long run of three workers in the background, and waits for the first checkpoint. On a busy machine a worker may
# join too late; the run is then started again.
begin() {
    for _ in 1 2 3; do
        rm -rf run rc
        (rc=0; workers 3 $long --checkpoint-dir run --checkpoint-every 5 --collective-timeout 3 2>log >/dev/null || rc=$?; echo $rc > rc) &
        for _ in $(seq 300); do
            # Any checkpoint counts: later ones soon replace the first.
            { compgen -G 'run/step-*.safetensors' || [ -e rc ]; } >/dev/null && break
            sleep 0.1
        done
        mapfile -t pids < <(pgrep -f "^$phalanx train")
        [ ${#pids[@]} = 3 ] && return
        wait
    done
    cat log
    fail "workers did not start, or ended before they were found: $(ls run), exit code $(cat rc)"
}
long="train mnist-mlp --global-batch-size 90 --epochs 20 --steps-per-epoch 60 --threads 1 --verbose 0 --no-scaling"
finish() {
    workers 3 $long --checkpoint-dir run --resume --json run.json
    same "$(field run.json weights_sha256)" "$reference" "$1, then resumed"
}
workers 3 $long --json run.json
reference=$(field run.json weights_sha256)

echo "SIGTERM to any worker saves the same step on all"
begin
kill -TERM "${pids[2]}"; wait
same "$(cat rc)" 75 "exit code after SIGTERM"
grep -q "interrupted after step .* saved run/step-" log || { cat log; fail "SIGTERM is not reported"; }
orphans SIGTERM
finish SIGTERM

echo "SIGUSR1 to mpirun does the same"
begin
pkill -USR1 -f "^mpirun .* $phalanx train"; wait
same "$(cat rc)" 75 "exit code after SIGUSR1"
orphans SIGUSR1
finish SIGUSR1

echo "a run whose batch grew with its workers says how to resume it"
rm -rf run
workers 2 train mnist-mlp --steps-per-epoch 5 --epochs 1 --threads 1 --verbose 0 --no-scaling --checkpoint-dir run --resume
rc=0
workers 3 train mnist-mlp --steps-per-epoch 5 --epochs 2 --threads 1 --verbose 0 --no-scaling --checkpoint-dir run --resume 2>log || rc=$?
same "$rc" 1 "exit code of another batch"
grep -q "saved run (--global-batch-size 64)" log || { cat log; fail "the batch is not reported"; }
workers 3 train mnist-mlp --steps-per-epoch 5 --epochs 2 --threads 1 --verbose 0 --no-scaling --checkpoint-dir run --resume --global-batch-size 64

echo "a worker that is killed ends the job"
begin
kill -KILL "${pids[1]}"; start=$SECONDS; wait
[ $((SECONDS - start)) -le 5 ] || fail "a killed worker: $((SECONDS - start)) s"
[ "$(cat rc)" != 0 ] || fail "a killed worker: exit code 0"
orphans SIGKILL
finish SIGKILL

echo "a worker that hangs ends the job after the collective timeout"
begin
rank=$(tr '\0' '\n' < "/proc/${pids[1]}/environ" | sed -n 's/^OMPI_COMM_WORLD_RANK=//p')
kill -STOP "${pids[1]}"; start=$SECONDS; wait
[ $((SECONDS - start)) -le 9 ] || fail "a stopped worker: $((SECONDS - start)) s"
same "$(cat rc)" 76 "exit code after SIGSTOP"
grep -q "error: rank . (.*): step .*: rank $rank (.*): no answer" log || { cat log; fail "the hanging rank is not reported"; }
orphans SIGSTOP
finish SIGSTOP

echo "workers that differ are rejected before the first step"
rc=0
timeout 60 mpirun --oversubscribe -n 1 "$phalanx" $train --epochs 1 : -n 1 "$phalanx" $train --epochs 1 --seed 1 2>log || rc=$?
same "$rc" 1 "exit code of workers that differ"
grep -q "workers: seed: expected 0 on rank 0 (.*), received 1 on rank 1" log || { cat log; fail "a mismatch is not reported"; }
rc=0
RANK=0 WORLD_SIZE=3 timeout 60 mpirun --oversubscribe -n 2 "$phalanx" $train 2>log || rc=$?
grep -q "launcher: RANK: expected rank . of 2 as OMPI_COMM_WORLD_RANK says" log || { cat log; fail "a conflict is not reported"; }

echo "each worker reads its own rows of an image folder, and its errors carry rank and host"
if python3 - <<'PY' 2>/dev/null
# Four classes of ten images, the last two of each for testing. In zero/ and one/, the files that the worker of that rank does
# not need are broken: of every batch of eight, the first worker has rows 0 to 3 and the second 4 to 7.
import os, struct, zlib
chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
for c in range(4):
    for i in range(10):
        rows = b"".join(b"\0" + bytes((c * 60 + i * 7 + x * y) % 256 for x in range(28)) for y in range(28))
        head = struct.pack(">IIBBBBB", 28, 28, 8, 0, 0, 0, 0)
        png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
        first = c < 2 if i >= 8 else i < 4
        for folder, whole in [("all", True), ("zero", first), ("one", not first)]:
            os.makedirs(f"{folder}/images/class{c}", exist_ok=True)
            open(f"{folder}/images/class{c}/{i}.png", "wb").write(png if whole else b"of no use here")
PY
then
    images="train mnist-cnn --grayscale --test-split 0.2 --global-batch-size 8 --epochs 1 --no-shuffle --verbose 0 --no-scaling --deterministic"
    $phalanx $images --data all/images --json one.json
    apart() {
        local each="$phalanx $images --data images"
        timeout 60 mpirun --oversubscribe -n 1 --wdir "$work/zero" $each --json "$work/several.json" : -n 1 --wdir "$work/one" $each
    }
    apart
    same "$(field several.json weights_sha256)" "$(field one.json weights_sha256)" "workers with their own files"
    for n in 2 4; do
        shuffled="${images/ --no-shuffle/} --augment shift,flip --data all/images"
        $phalanx $shuffled --json one.json
        workers $n $shuffled --json several.json
        same "$(field several.json weights_sha256)" "$(field one.json weights_sha256)" "$n workers: an image folder"
    done
    echo "no image" > one/images/class3/8.png
    ! apart 2>log || fail "a broken image is not noticed"
    grep -q "^error: rank 1 (.*): images/class3/8.png: expected a JPEG or PNG image" log || { cat log; fail "the rank with the broken image is not reported"; }
fi

echo "warnings carry rank and host, and only the chief prints results"
workers 2 $train --epochs 1 --checkpoint-dir warned >/dev/null
workers 2 $train --epochs 2 --checkpoint-dir warned --resume --schedule steps 2>log >/dev/null
grep -q "^warning: rank 0 (.*): resume: " log || { cat log; fail "a warning without rank and host"; }
workers 2 ${train/--verbose 0/--verbose 2} --epochs 1 2>/dev/null >out
same "$(grep -c "^test - " out)" 1 "results"

echo "processes that violate the protocol are named, and nothing is exchanged after that"
fault() {
    local rc=0
    timeout 60 mpirun --oversubscribe -n 2 ./faults "$1" >out 2>log || rc=$?
    same "$rc" "$2" "exit code of $1"
    [ -z "$3" ] || grep -q "^first: rank 1 (.*): $3" out || { cat out log; fail "$1 is not reported"; }
}
fault short 76 "expected 8 bytes, received 3"
fault long 76 "expected 8 bytes, received \(16\|more\)"
fault panic 76 "it exited before the other processes finished"
fault late 9 ""
# With root and iproute2, also on several hosts. PHALANX_FAULTS sets the number of faults (60 take a quarter of an hour).
if [ "$(id -u)" = 0 ] && command -v python3 >/dev/null && ip netns add phx-try 2>/dev/null; then
    ip netns del phx-try
    echo "a worker on its own host that is killed, paused or disconnected"
    python3 "$root/tests/mpi/faults.py" "$phalanx" --trials "${PHALANX_FAULTS:-3}" --phase backward
elif [ -n "${CI:-}" ]; then
    fail "network namespaces cannot be created"
else
    echo "network namespaces cannot be created: faults on several hosts are skipped"
fi
echo "several workers: all checks passed"
