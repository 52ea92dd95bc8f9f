"""What `raycase demo` shows, embedded by `ray job submit`: python jobs/demo.py

Starts a Ray head on free ports, submits the job, stops the head, and goes on as `raycase demo` does.
"""

import contextlib
import json
import os
import re
import secrets
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, BinaryIO

from raycase.commands.demo import FOLDER, WORDS, ask
from raycase.errors import MOST_SHOWN, RequestError, WorkError, note, visible

ROOT = Path(__file__).parent.parent
LOG = FOLDER / "ray.log"
RAYS = re.compile(rb"\[?\d{4}-|\{|\s*$")  # lines that stay in the log: Ray's, and the JSON of the job
STARTS = 180  # seconds within which Ray's head and its job server listen
RAYCASE = str(Path(sys.executable).with_name("raycase"))
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
    """Exit status: 0, or 1 after a line on standard error."""
    try:
        LOG.parent.mkdir(parents=True, exist_ok=True)
        with LOG.open("wb") as log:
            embed(log)
        print(json.dumps(ask(RAYCASE)))
    except (OSError, RequestError, WorkError) as error:
        note(f"error: {error}", always=True)
        return 1
    return 0


def failed(expected: str, got: str) -> WorkError:
    """What to raise where Ray does not do its part."""
    lines = LOG.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no line of it")
    return WorkError(
        f"expected {expected}, got {got}: {last}; `{RAYCASE} demo` shows the same "
        f"without Ray; what Ray printed is in {LOG}"
    )


def embed(log: BinaryIO) -> None:
    """Submit the job to a Ray head of its own. What both print goes to the log. Raises WorkError."""
    port, dashboard, client, agent = free_ports(4)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # the job server starts `python`
        "RAY_AUTH_MODE": "token",  # whoever reaches the job server can run code
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": os.environ.get("RAY_USAGE_STATS_ENABLED", "0"),  # else Ray asks, and turns them on
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # else the head takes half a minute to stop
        "PYTHONUNBUFFERED": "1",
    }
    with tempfile.TemporaryDirectory(prefix="rc", ignore_cleanup_errors=True) as folder:
        start = [RAY, "start", "--head", "--block", "--node-ip-address=127.0.0.1", "--temp-dir", folder]
        start += ["--dashboard-host=127.0.0.1", "--dashboard-port", dashboard, "--dashboard-agent-listen-port", agent]
        start += ["--port", port, "--ray-client-server-port", client]
        print(f"a Ray head starts on this machine, about 10 s; what it prints is in {LOG}", flush=True)
        streams: Any = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "env": environment}
        head, latest = subprocess.Popen(start, stdout=log, **streams), time.monotonic() + STARTS
        try:
            while not all(map(listening, (dashboard, agent))):  # the agent starts submitted jobs
                if head.poll() is not None:
                    raise failed("Ray's head to start", f"status {head.returncode}")
                if time.monotonic() > latest:
                    raise failed(f"Ray's head to start within {STARTS} s", "none")
                time.sleep(0.1)
            address = f"http://127.0.0.1:{dashboard}"
            submit = [RAY, "job", "submit", "--address", address, "--working-dir", str(ROOT), "--log-style=record"]
            job = ["python", "jobs/embed.py", "--any-condition", "--output", WORDS, "--overwrite"]
            print(f"$ ray job submit --working-dir . -- {shlex.join(job)}", flush=True)
            print("  the job starts a Python of its own, which loads the model: half a minute; its lines:", flush=True)
            with subprocess.Popen([*submit, "--", *job], stdout=subprocess.PIPE, **streams) as submitted:
                assert submitted.stdout is not None, "a pipe"
                for line in submitted.stdout:
                    log.write(line)
                    log.flush()
                    if not RAYS.match(line):
                        print("  " + visible(line.decode(errors="replace").rstrip(), MOST_SHOWN), flush=True)
            if submitted.returncode:
                raise failed("the job to embed the sample", f"status {submitted.returncode}")
        finally:
            head.terminate()  # with --block it stops the processes that it started
            head.wait()


if __name__ == "__main__":
    sys.exit(main())
