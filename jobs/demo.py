"""What `raycase demo` shows, embedded by `ray job submit`: python jobs/demo.py

Starts a Ray head on free ports, submits the job, stops the head, and goes on as `raycase demo` does.
"""

import contextlib
import json
import os
import secrets
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import BinaryIO

from raycase.demo import FOLDER, WORDS, ask

ROOT = Path(__file__).parent.parent
LOG = FOLDER / "ray.log"
RAY = str(Path(sys.executable).with_name("ray"))


def free_ports(count: int) -> list[str]:
    """Ports that nothing listens on; all are held at once, so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [str(s.getsockname()[1]) for s in sockets]
    for s in sockets:
        s.close()
    return ports


def listening(port: str) -> bool:
    """Whether a server accepts connections on the port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(port)), timeout=1):
        return True
    return False


def main() -> int:
    """Exit status of the submitted job."""
    LOG.parent.mkdir(parents=True, exist_ok=True)
    with LOG.open("wb") as log:
        status = embed(log)
    if status:
        print(LOG.read_text(errors="replace"), file=sys.stderr)
        return status
    print(json.dumps(ask()))
    return 0


def embed(log: BinaryIO) -> int:
    """Submit the job to a Ray head of its own; its exit status. What both print goes to the log."""
    port, dashboard, client, agent = free_ports(4)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # the job server starts `python`
        "RAY_AUTH_MODE": "token",  # whoever reaches the job server can run code
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    with tempfile.TemporaryDirectory(prefix="rc", ignore_cleanup_errors=True) as folder:
        start = [RAY, "start", "--head", "--block", "--node-ip-address=127.0.0.1", "--temp-dir", folder]
        start += ["--dashboard-host=127.0.0.1", "--dashboard-port", dashboard, "--dashboard-agent-listen-port", agent]
        start += ["--port", port, "--ray-client-server-port", client]
        print(f"a Ray head starts on this machine; what it prints is in {LOG}", flush=True)
        head = subprocess.Popen(start, env=environment, stdout=log, stderr=log)
        try:
            while not all(map(listening, (dashboard, agent))):  # the agent starts submitted jobs
                if head.poll() is not None:
                    return 1
                time.sleep(0.1)
            address = f"http://127.0.0.1:{dashboard}"
            submit = [RAY, "job", "submit", "--address", address, "--working-dir", str(ROOT), "--log-style=record"]
            job = ["python", "jobs/embed.py", "--any-condition", "--output", WORDS, "--overwrite"]
            print(f"$ ray job submit --working-dir . -- {shlex.join(job)}", flush=True)
            return subprocess.run([*submit, "--", *job], env=environment, stdout=log, stderr=log).returncode
        finally:
            head.terminate()  # with --block it stops the processes that it started
            head.wait()


if __name__ == "__main__":
    sys.exit(main())
