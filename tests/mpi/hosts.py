"""Several hosts on one machine: network namespaces with their own addresses and names, which mpirun reaches through
`ip netns exec`. Needs root and iproute2."""

import os
import shutil
import signal
import subprocess


def sh(*words, check=True):
    return subprocess.run(words, check=check, capture_output=True, text=True).stdout


class Network:
    """Hosts phx0, phx1, … on one bridge."""

    def __init__(self, folder, hosts):
        self.folder, self.hosts = folder, range(hosts)
        self.down()
        sh("ip", "link", "add", "phxbr", "type", "bridge")
        sh("ip", "link", "set", "phxbr", "up")
        for i in self.hosts:
            ns = f"phx{i}"
            sh("ip", "netns", "add", ns)
            sh("ip", "link", "add", f"v{ns}", "type", "veth", "peer", "name", "eth0", "netns", ns)
            sh("ip", "link", "set", f"v{ns}", "master", "phxbr", "up")
            sh("ip", "-n", ns, "link", "set", "lo", "up")
            sh("ip", "-n", ns, "addr", "add", f"10.77.0.{i + 1}/24", "dev", "eth0")
            sh("ip", "-n", ns, "link", "set", "eth0", "up")
        # `ip netns exec` mounts these over /etc/hosts.
        for i in self.hosts:
            os.makedirs(f"/etc/netns/phx{i}", exist_ok=True)
            with open(f"/etc/netns/phx{i}/hosts", "w") as f:
                f.write("127.0.0.1 localhost\n")
                f.writelines(f"10.77.0.{j + 1} phx{j}\n" for j in self.hosts)
        self.agent = os.path.join(folder, "agent")
        with open(self.agent, "w") as f:
            f.write('#!/bin/sh\nh=$1; shift\nexec ip netns exec "$h" unshare --uts sh -c "hostname $h; $*"\n')
        os.chmod(self.agent, 0o755)

    def down(self):
        for i in self.hosts:
            for pid in self.pids(i):
                os.kill(pid, signal.SIGKILL)
            sh("ip", "link", "del", f"vphx{i}", check=False)
            sh("ip", "netns", "del", f"phx{i}", check=False)
            shutil.rmtree(f"/etc/netns/phx{i}", ignore_errors=True)
        sh("ip", "link", "del", "phxbr", check=False)

    def pids(self, host, name=None):
        pids = [int(p) for p in sh("ip", "netns", "pids", f"phx{host}", check=False).split()]
        if name is None:
            return pids
        def comm(pid):
            try:
                return open(f"/proc/{pid}/comm").read().strip()
            except OSError:
                return ""
        return [p for p in pids if comm(p) == name]

    def link(self, host, state):
        sh("ip", "link", "set", f"vphx{host}", state)

    def reach(self, host):
        """Whether a host can reach the first one: a connection to a closed port is refused at once."""
        connect = "echo > /dev/tcp/10.77.0.1/9"
        words = ["ip", "netns", "exec", f"phx{host}", "timeout", "1", "bash", "-c", connect]
        return "refused" in subprocess.run(words, capture_output=True, text=True).stderr

    def start(self, command, mca="", **options):
        """Starts a command under mpirun, one process on every host."""
        names = ",".join(f"phx{i}" for i in self.hosts)
        mca += f" --mca plm_rsh_agent {self.agent} --mca oob_tcp_if_include eth0 --mca btl_tcp_if_include eth0 --mca btl tcp,self"
        command = f"hostname phx0; exec mpirun {mca} -n {len(self.hosts)} --host {names} {command}"
        env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        words = ["ip", "netns", "exec", "phx0", "unshare", "--uts", "sh", "-c", command]
        return subprocess.Popen(words, env=env, text=True, **options)
