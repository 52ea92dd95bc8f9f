"""Ray clusters in processes of their own, beside the one that pytest has joined: nodes to lose, an autoscaler."""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import requests
from helpers import NO_AGENT, ROOT, wait_for

RAY = str(Path(sys.executable).with_name("ray"))
FAKE_NODE = "f" * 51 + "00000"  # what Ray's provider of fake nodes calls the head
HEAD = "ray.head.default"
LOST = {"RAY_health_check_period_ms": "500", "RAY_health_check_failure_threshold": "4"}  # seconds, not half a minute
HIDING = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"']  # a folder, then a command

EMPTY = ("setup_commands", "head_setup_commands", "worker_setup_commands", "cluster_synced_files")  # but wanted


def free_ports(count):
    """Ports that nothing listens on, held together so that they differ."""
    with contextlib.ExitStack() as stack:
        return [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(count)]


class Node:
    """`ray start --block` with its raylet and workers, in a session of its own: the machine."""

    def __init__(self, arguments, environment, log, before=()):
        self.log = log
        command = [*before, RAY, "start", "--block", "--disable-usage-stats", "--node-ip-address=127.0.0.1"]
        with log.open("wb") as out:
            options = {"stdout": out, "stderr": out, "start_new_session": True}
            self.process = subprocess.Popen([*command, *map(str, arguments)], env=environment, **options)

    def processes(self):
        """All of the session, and their descendants: a submitted driver leads a session of its own."""
        found = set()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getsid(process.pid) == self.process.pid:
                    found |= {process, *process.children(recursive=True)}
        return found

    def kill(self):
        """The machine is lost, all at once; nothing on it ends in order, and nothing of it stays."""
        while doomed := {p for p in self.processes() if p.is_running() and p.status() != psutil.STATUS_ZOMBIE}:
            for process in doomed:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(doomed, timeout=5)
        self.process.wait()


class Head(Node):
    """A head and its cluster. With `node_types` ({name: {"resources": ..., "max_workers": ...}}) it has an autoscaler
    that starts nodes when they are needed, and stops them after `idle_seconds`. environment: of its machines, too."""

    def __init__(self, node_types=None, idle_seconds=5, environment=None):
        self.folder = tempfile.TemporaryDirectory(prefix="rc", dir="/tmp", ignore_cleanup_errors=True)  # short: sockets
        port, dashboard, agent, client, metrics, autoscaler = free_ports(6)
        self.address, self.dashboard = f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}"
        self.workers = []
        base = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_worker_niceness": "0",
            "RAY_prestart_worker_first_driver": "0",  # two cores start what is needed slowly enough
        }
        self.environment = base | {"RAY_ADDRESS": self.address}  # of drivers
        self.node_environment = base | LOST | {"AUTOSCALER_METRIC_PORT": str(autoscaler)} | (environment or {})
        start = ["--head", "--num-cpus=0", "--num-gpus=0", "--temp-dir", self.folder.name, "--port", port]
        start += ["--dashboard-host=127.0.0.1", "--dashboard-port", dashboard, "--dashboard-agent-listen-port", agent]
        start += ["--ray-client-server-port", client, "--metrics-export-port", metrics]
        if node_types:
            config = Path(self.folder.name) / "autoscaler.json"
            config.write_text(json.dumps(autoscaling(self, node_types, idle_seconds)))
            start += ["--autoscaling-config", config]
            self.node_environment |= {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
            # the autoscaler of `ray up`, version 2
            self.node_environment |= {"RAY_enable_autoscaler_v2": "1", "RAY_CLOUD_INSTANCE_ID": FAKE_NODE}
        super().__init__(start, self.node_environment, Path(self.folder.name) / "head.log")

    def __enter__(self):
        try:
            wait_for(lambda: self.process.poll() is not None or self.nodes() is not None)
            assert self.process.poll() is None, self.log.read_text()[-3000:]
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def nodes(self):
        """The resources of the nodes that are alive, besides the head; None before the head answers."""
        headers = {"Authorization": f"Bearer {self.environment['RAY_AUTH_TOKEN']}"}
        with contextlib.suppress(requests.ConnectionError):
            answer = requests.get(f"{self.dashboard}/api/v0/nodes", headers=headers, timeout=20)
            if answer.ok and (found := answer.json()["data"]["result"]["result"]):
                return [n["resources_total"] for n in found if n["state"] == "ALIVE" and not n["is_head_node"]]
        return None

    def add_node(self, cpus, gpus=0, hidden=None):
        """One more machine; `nodes` says when it has joined. hidden: a folder of this machine that it does not see."""
        start = ["--address", self.address, "--num-cpus", cpus, "--num-gpus", gpus]
        start += ["--dashboard-agent-listen-port=0", "--metrics-export-port=0"]
        folder = Path(tempfile.mkdtemp(prefix="n", dir=self.folder.name))  # of its own: see `FakeNodes`
        before = [*HIDING, hidden] if hidden else ()
        self.workers.append(Node([*start, "--temp-dir", folder], self.node_environment, folder / "node.log", before))
        return self.workers[-1]

    def titled(self, title):
        """The processes on the machines, but not on the head, whose title begins so."""
        found = []
        for process in set().union(*(machine.processes() for machine in self.workers)):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.cmdline() and process.cmdline()[0].startswith(title):
                    found.append(process)
        return sorted(found, key=lambda p: p.pid)

    def stop(self):
        """Take everything down; nothing is left running."""
        for node in [self, *self.workers]:
            node.kill()
        self.folder.cleanup()


def autoscaling(head, node_types, idle_seconds):
    """What `--autoscaling-config` takes; nodes are further raylets on this machine."""
    types = {HEAD: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}}
    types |= {name: {"node_config": {}, "min_workers": 0, **kind} for name, kind in node_types.items()}
    provider = {"type": "external", "module": "fake_nodes.FakeNodes", "folder": head.folder.name}
    provider |= {"gcs_address": head.address, "launch_multiple": True}
    provider |= {"disable_node_updaters": True, "disable_launch_config_check": True}
    config = {"cluster_name": "test", "provider": provider, "available_node_types": types}
    config |= {"head_node_type": HEAD, "max_workers": sum(kind["max_workers"] for kind in node_types.values())}
    config |= {"idle_timeout_minutes": idle_seconds / 60, "upscaling_speed": 100}
    return config | {key: [] for key in EMPTY}


def submit(head, *flags):
    """`ray job submit` of the working directory, as a process."""
    wait_for(lambda: _takes_jobs(head), 240)
    command = [RAY, "job", "submit", "--address", head.dashboard, "--working-dir", str(ROOT), "--log-style=record"]
    command += ["--", "python", "jobs/embed.py", *map(str, flags)]
    return subprocess.Popen(command, env=head.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _takes_jobs(head):
    """Whether there is an agent that takes jobs: a cluster that has just started has none yet."""
    command = [RAY, "job", "submit", "--address", head.dashboard, "--", "true"]
    done = subprocess.run(command, env=head.environment, capture_output=True, text=True)
    assert not done.returncode or NO_AGENT in done.stderr + done.stdout, done.stderr
    return done.returncode == 0
