"""Checks deploy/mpijob.yaml against the fields of an MPIJob, and the arguments of both launch files against the command."""

import re
import subprocess
import sys

import yaml

# The fields of kubeflow.org/v2beta1 that the manifest may use, with their types.
CONTAINER = {
    "name": str,
    "image": str,
    "command": [str],
    "args": [str],
    "env": [{"name": str, "value": str}],
    "securityContext": {"runAsUser": int},
    "resources": {"limits": {"cpu": str, "memory": str}},
    "volumeMounts": [{"name": str, "mountPath": str}],
    "lifecycle": {"preStop": {"exec": {"command": [str]}}},
}
CLAIM = {"claimName": str, "readOnly": bool}
VOLUME = {"name": str, "persistentVolumeClaim": CLAIM}
POD = {"spec": {"terminationGracePeriodSeconds": int, "containers": [CONTAINER], "volumes": [VOLUME]}}
REPLICA = {"replicas": int, "restartPolicy": str, "template": POD}
JOB = {
    "apiVersion": str,
    "kind": str,
    "metadata": {"name": str},
    "spec": {
        "slotsPerWorker": int,
        "sshAuthMountPath": str,
        "runPolicy": {"cleanPodPolicy": str, "backoffLimit": int},
        "mpiReplicaSpecs": {"Launcher": REPLICA, "Worker": REPLICA},
    },
}


def check(value, schema, path):
    if isinstance(schema, dict):
        assert isinstance(value, dict), f"{path}: expected fields, received {value!r}"
        for key, inner in value.items():
            assert key in schema, f"{path}: unknown field {key}"
            check(inner, schema[key], f"{path}.{key}")
    elif isinstance(schema, list):
        assert isinstance(value, list) and value, f"{path}: expected a list, received {value!r}"
        for i, inner in enumerate(value):
            check(inner, schema[0], f"{path}[{i}]")
    else:
        assert type(value) is schema, f"{path}: expected {schema.__name__}, received {value!r}"


def check_flags(phalanx, arguments):
    """Checks that the command accepts every flag. It rejects the missing dataset only after it has parsed them."""
    arguments = ["no-such-data" if a == "cifar-10" else a for a in arguments]
    out = subprocess.run([phalanx, *arguments], capture_output=True, text=True)
    assert out.returncode == 1 and "unknown dataset 'no-such-data'" in out.stderr, out.stderr


def main(phalanx):
    job = yaml.safe_load(open("deploy/mpijob.yaml"))
    check(job, JOB, "mpijob")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    launcher, worker = (job["spec"]["mpiReplicaSpecs"][k] for k in ("Launcher", "Worker"))
    args = launcher["template"]["spec"]["containers"][0]["args"]
    assert int(args[args.index("-n") + 1]) == worker["replicas"], "-n must equal the number of workers"
    pod = worker["template"]["spec"]
    mounted = {m["name"] for m in pod["containers"][0]["volumeMounts"]}
    assert mounted == {v["name"] for v in pod["volumes"]}, "every volume must be mounted"
    folder = "/tmp/phalanx-deploy-check"
    args = [folder if a.startswith("/checkpoints") else a for a in args]
    check_flags(phalanx, args[args.index("phalanx") + 1 :])
    script = open("deploy/slurm.sbatch").read().replace("\\\n", " ")
    words = re.search(r'srun .*"\$phalanx" (train .*)', script).group(1).split()
    check_flags(phalanx, [folder if "$checkpoints" in w else w for w in words])
    assert re.search(r"SLURM_RESTART_COUNT:-0.*-lt", script), "requeues must be limited"
    print("deploy: the manifest and the commands are valid")


main(sys.argv[1])
