"""A job on a cluster of its own, whose machines, processes and driver are killed; the driver is started again."""

import contextlib
import subprocess
import sys

import psutil
from counted import counted
from helpers import ROOT, wait_for

COUNTED = (str(ROOT / "tests" / "counted.py"),)  # embeds, and counts
ENCODERS, TASKS = "ray::MapWorker(MapBatches(Encode", "ray::MapBatches("  # titles of Ray's processes


class Disturbed:
    """Runs the flags of a job on `machines` nodes of a head; `program`: what Python runs with them."""

    def __init__(self, head, flags, output, folder, environment=None, machines=2, program=COUNTED):
        self.head, self.output, self.folder = head, output, folder
        self.command = [sys.executable, *program, *map(str, flags)]
        self.environment = head.environment | {"COUNTED": str(folder)} | (environment or {})
        while len(head.workers) < machines:
            head.add_node(cpus=2)
        wait_for(lambda: len(head.nodes()) == machines)
        self.starts = 0
        self.start()

    def start(self):
        """Run the command, as a user does again after it was killed."""
        self.starts += 1
        with open(self.folder / "driver.log", "a") as log:
            self.driver = subprocess.Popen(
                self.command, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )

    def said(self):
        """The end of what the drivers printed."""
        return (self.folder / "driver.log").read_text()[-3000:]

    def written(self):
        return len(self.output.embeddings.list())

    def began(self):
        return len(set(counted(self.folder)))

    def processes(self, title):
        """The processes on the machines with this title."""
        found = []
        for process in set().union(*(machine.processes() for machine in self.head.workers)):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.cmdline() and process.cmdline()[0].startswith(title):
                    found.append(process)
        return sorted(found, key=lambda p: p.pid)

    def kill(self, kind, chance):
        """Kill one, and give how many units were in flight then: begun by an encoder and not written, at most.

        None where the job was done before there was one to kill.
        """
        written = self.written()
        if kind == "machine":
            machine = self.head.workers.pop(chance.randrange(len(self.head.workers)))
            machine.kill()
            began = self.began()
            self.head.add_node(cpus=2)
        elif kind == "driver":
            self.driver.kill()
            self.driver.wait()
            began = self.began()
            self.start()
        else:
            title = ENCODERS if kind == "actor" else TASKS
            if (found := wait_for(lambda: self.processes(title) or self.driver.poll() is not None)) is True:
                return None
            with contextlib.suppress(psutil.NoSuchProcess):
                chance.choice(found).kill()
            began = self.began()
        return began - written
