"""A Slurm cluster of two nodes on this machine, with XSched's service: for the tests of the plugin.

Everything is in a temporary directory and on free ports of the loopback interface. The real daemons run in the foreground, as
children of the test, which ends them by their process ids. The GPUs are stand-ins: Slurm sees a device file, and programs run on
the simulated device.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PROGRAMS = os.path.join(ROOT, "crates/xsched/tests/programs")
# Only a failed test takes so long.
TIMEOUT_S = 90
FREEZER = "/sys/fs/cgroup/freezer"

SLURM_CONF = """\
ClusterName=xsched{number}
SlurmUser=root
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation={directory}/controller
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
ProctrackType={proctrack}
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,sched_min_interval=1000,batch_sched_delay=0,defer_batch=0
KillWait=2
LaunchParameters=use_interactive_step
MpiDefault=none
GresTypes=gpu,shard
ReturnToService=2
SlurmdParameters=config_overrides
PlugStackConfig={directory}/etc/plugstack.conf
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[0]} CPUs=16 RealMemory=1000 Gres=gpu:1,shard:4
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=16 RealMemory=1000 Gres=gpu:1,shard:4
PartitionName=debug Nodes=ALL Default=YES OverSubscribe=FORCE:4
PartitionName=gold Nodes=ALL OverSubscribe=FORCE:4
"""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_until(what, condition, timeout_s=TIMEOUT_S):
    """Polls a condition; the result is what it returned."""
    deadline = time.monotonic() + timeout_s
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"timeout: {what}")
        time.sleep(0.05)


class Cluster:
    """Daemons, service and programs. `close` ends all of them."""

    def __init__(self, built, plugin, proctrack="proctrack/cgroup", has_accounting=False):
        number = os.getpid()
        self.directory = tempfile.mkdtemp(prefix="xsched-slurm-")
        # Jobs of other users use its programs and the device.
        os.chmod(self.directory, 0o755)
        self.nodes = [f"xs{number}a", f"xs{number}b"]
        self.children = []
        self.munged = None
        self.service = None
        self.database = None
        for name in ("xsched", "libxsched.so", "libxsim.so"):
            shutil.copy(os.path.join(built, name), self.directory)
        self.plugin = os.path.join(self.directory, "spank_xsched.so")
        shutil.copy(plugin, self.plugin)
        self.xsched = os.path.join(self.directory, "xsched")
        self.socket = os.path.join(self.directory, "run/socket")
        os.mkdir(os.path.dirname(self.socket))
        os.mkdir(self.path("out"))
        os.chmod(self.path("out"), 0o1777)
        for name in ("requests", "work"):
            subprocess.run(["cc", "-O1", "-o", self.path(name), f"-I{ROOT}/standins/xsim", os.path.join(PROGRAMS, f"{name}.c"),
                            f"-L{self.directory}", "-lxsim", f"-Wl,-rpath,{self.directory}"], check=True)
        self.environment = {key: value for key, value in os.environ.items()
                            if not key.startswith(("XSCHED_", "SLURM", "SBATCH", "SALLOC", "XSIM_", "LD_PRELOAD"))}
        self.environment.update(SLURM_CONF=self.path("etc/slurm.conf"))
        try:
            self._configure(number, proctrack)
            self._start_munge()
            self.start_service()
            if has_accounting:
                self._start_accounting(f"xsched{number}")
            self._start_daemons()
        except BaseException:
            self.close()
            raise

    def path(self, name):
        return os.path.join(self.directory, name)

    def _configure(self, number, proctrack):
        port, *ports = free_ports(3)
        os.mkdir(self.path("etc"))
        text = SLURM_CONF.format(number=number, host=socket.gethostname(), port=port, ports=ports, nodes=self.nodes,
                                 directory=self.directory, proctrack=proctrack)
        self._write("slurm.conf", text)
        gres = ""
        for node in self.nodes:
            device = self.path(f"gpu-{node}")
            # Like /dev/null: Slurm only needs a character device.
            os.mknod(device, 0o666 | 0o020000, os.makedev(1, 3))
            gres += f"NodeName={node} Name=gpu File={device}\n"
        self._write("gres.conf", gres + f"NodeName={','.join(self.nodes)} Name=shard Count=4\n")
        version = "CgroupPlugin=cgroup/v1\n" if os.path.isdir(FREEZER) else "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n"
        self._write("cgroup.conf", version)
        self.configure_plugin("max_priority=100")

    def _write(self, name, text, mode=0o644):
        # slurmd may read it at any time, for example in the epilog of the previous job.
        with open(self.path(f"etc/{name}.new"), "w") as file:
            os.chmod(file.name, mode)
            file.write(text)
        os.rename(file.name, self.path(f"etc/{name}"))

    def configure_plugin(self, arguments):
        """Sets the plugin's arguments. Slurm reads them for every step."""
        self._write("plugstack.conf", f"required {self.plugin} socket={self.socket} library={self.path('libxsched.so')} "
                                      f"state={self.path('jobs')} {arguments}\n")

    def _start_munge(self):
        if subprocess.run(["munge", "-n"], capture_output=True).returncode == 0:
            return
        subprocess.run(["install", "-d", "-o", "munge", "-g", "munge", "-m755", "/run/munge"], check=True)
        command = ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged", "--foreground"]
        with open(self.path("munged.log"), "w") as log:
            self.munged = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until("munged replies", lambda: subprocess.run(["munge", "-n"], capture_output=True).returncode == 0)

    def _start_accounting(self, name):
        """Starts a database and slurmdbd. The user root may use the QOS normal and high."""
        port, database_port = free_ports(2)
        data, socket_path = self.path("database"), self.path("database.socket")
        self.run(["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={data}", "--auth-root-authentication-method=socket"])
        command = ["mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", f"--socket={socket_path}", "--bind-address=127.0.0.1",
                   f"--port={database_port}", "--innodb-buffer-pool-size=64M"]
        with open(self.path("mariadbd.log"), "w") as log:
            self.database = subprocess.Popen(command, stdout=log, stderr=log)
        statement = "CREATE USER slurm@'127.0.0.1' IDENTIFIED BY 'slurm'; GRANT ALL ON *.* TO slurm@'127.0.0.1'"
        client = ["mariadb", "--no-defaults", "--user=root", f"--socket={socket_path}", "-e", statement]
        wait_until("the database replies", lambda: self.run(client, check=False).returncode == 0)
        self._write("slurmdbd.conf", f"AuthType=auth/munge\nDbdHost=localhost\nDbdAddr=127.0.0.1\nDbdPort={port}\nSlurmUser=root\n"
                                     f"PidFile={self.path('slurmdbd.pid')}\nStorageType=accounting_storage/mysql\nStorageHost=127.0.0.1\n"
                                     f"StoragePort={database_port}\nStorageUser=slurm\nStoragePass=slurm\nStorageLoc=slurm\n", mode=0o600)
        with open(self.path("etc/slurm.conf"), "a") as file:
            file.write(f"AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n"
                       f"AccountingStoragePort={port}\nAccountingStorageEnforce=qos\n")
        with open(self.path("slurmdbd.log"), "w") as log:
            self.children.append(subprocess.Popen(["slurmdbd", "-D"], env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL))
        wait_until("slurmdbd replies", lambda: self.run(["sacctmgr", "-n", "show", "qos"], check=False).returncode == 0)
        for command in (f"add cluster {name}", "add qos high", f"add account site Cluster={name}",
                        f"modify user root where Cluster={name} set qos=normal,high"):
            self.run(["sacctmgr", "-i", *command.split()])

    def start_service(self):
        with open(self.path("service.log"), "a") as log:
            self.service = subprocess.Popen([self.xsched, "serve", "--socket", self.socket], env=self.environment,
                                            stdout=log, stderr=log)
        wait_until("the service replies", lambda: self.run([self.xsched, "grants"], check=False).returncode == 0)

    def kill_service(self):
        self.service.kill()
        self.service.wait()

    def _start_daemons(self):
        for command in (["slurmctld", "-D", "-c"], *(["slurmd", "-D", "-N", node] for node in self.nodes)):
            with open(self.path(f"{command[-1].strip('-')}.log"), "w") as log:
                self.children.append(subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL))
        wait_until("both nodes are idle", lambda: self.node_states() == {"idle"})

    def node_states(self):
        done = self.run(["sinfo", "-h", "-N", "-o", "%t"], check=False)
        return set(done.stdout.split())

    def run(self, command, user=None, variables=None, check=True, text=None):
        """Runs a command to its end, as root or as another user."""
        done = subprocess.run(self.as_user(command, user), env=self.variables(variables), text=True, capture_output=True, input=text,
                              timeout=TIMEOUT_S, cwd=self.path("out"))
        if check and done.returncode != 0:
            raise AssertionError(f"{command}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def start(self, command, user=None, variables=None):
        """Starts a command, whose output is read line by line."""
        child = subprocess.Popen(self.as_user(command, user), env=self.variables(variables), text=True, stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.path("out"))
        self.children.append(child)
        return child

    @staticmethod
    def as_user(command, user):
        if user is None:
            return command
        return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *command]

    def variables(self, more):
        return {**self.environment, "XSCHED_SOCKET": self.socket, **(more or {})}

    def grants(self):
        """The grants in force, by name."""
        listed = json.loads(self.run([self.xsched, "grants", "--json"]).stdout)
        return {status["grant"]["name"]: status for status in listed}

    def tasks(self):
        return json.loads(self.run([self.xsched, "ps", "--json"]).stdout)["tasks"]

    def device(self, node=0):
        """The variables with which a program uses the simulated GPU of a node."""
        path = self.path(f"device-{self.nodes[node]}")
        if not os.path.exists(path):
            self.run([self.path("work"), "1", "1", "10"], variables={"XSIM_DEVICE": path})
            os.chmod(path, 0o666)
        return {"XSIM_DEVICE": path}

    def cancel_all(self):
        self.run(["scancel", "-u", "root"], check=False)
        self.run(["scancel", "-u", "nobody"], check=False)
        wait_until("no job is left", lambda: not self.run(["squeue", "-h"]).stdout.strip())

    def close(self):
        if any(child.poll() is None for child in self.children):
            try:
                self.cancel_all()
            except (AssertionError, subprocess.TimeoutExpired):
                pass
        for child in [*reversed(self.children), self.database, self.service, self.munged]:
            if child is not None and child.poll() is None:
                child.send_signal(signal.SIGTERM)
                try:
                    child.wait(10)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
            for stream in (child.stdin, child.stdout, child.stderr) if child is not None else ():
                if stream:
                    stream.close()
        for node in self.nodes:
            for parent, _, _ in os.walk(os.path.join(FREEZER, f"slurm_{node}"), topdown=False):
                os.rmdir(parent)
        shutil.rmtree(self.directory, ignore_errors=True)
