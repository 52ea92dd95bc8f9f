"""Embed the sample through a real local Ray, index it and search it: python jobs/demo.py

Starts a Ray head on free ports, submits two jobs by `ray job submit`, under conditions and without, stops the head,
builds an index of all vectors and searches it for one sentence: by the plain vectors, then under three conditions.
"""

import contextlib
import os
import secrets
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
VECTORS, PLAIN, INDEX = (str(Path.home() / "raycase" / "demo" / name) for name in ("vectors", "plain", "index.lance"))
SENTENCE = "Three women in green jackets ride bicycles along the beach."
CONDITIONS = ("number of people", "color of the clothes", "type of activity")
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
    """Exit status of the first command that fails, or 0."""
    search = ("search", "--index", INDEX, "-k", "3", "--query", SENTENCE)
    return (
        embed()
        or run("index", "--embeddings", VECTORS, PLAIN, "--output", INDEX, "--overwrite")
        or run(*search, "--unconditional")
        or run(*search, "--condition", *CONDITIONS)
    )


def run(*arguments: str) -> int:
    """Print a `raycase` command and run it; its exit status."""
    print(f"\n$ {shlex.join(['raycase', *arguments])}", flush=True)
    return subprocess.run([sys.executable, "-m", "raycase", *arguments], cwd=ROOT).returncode


def embed() -> int:
    """Exit status of the first submitted job that fails, or 0."""
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
        log = Path(folder) / "start.log"
        with log.open("wb") as handle:
            head = subprocess.Popen(start, env=environment, stdout=handle, stderr=handle)
        try:
            while not all(map(listening, (dashboard, agent))):  # the agent starts submitted jobs
                if head.poll() is not None:
                    print(log.read_text(), file=sys.stderr)
                    return 1
                time.sleep(0.1)
            address = f"http://127.0.0.1:{dashboard}"
            submit = [RAY, "job", "submit", "--address", address, "--working-dir", str(ROOT), "--log-style=record"]
            for flags in (["--output", VECTORS], ["--output", PLAIN, "--unconditional"]):
                job = ["python", "jobs/embed.py", *flags, "--overwrite"]
                if status := subprocess.run([*submit, "--", *job], env=environment).returncode:
                    return status
            return 0
        finally:
            head.terminate()  # with --block it stops the processes that it started
            head.wait()


if __name__ == "__main__":
    sys.exit(main())
