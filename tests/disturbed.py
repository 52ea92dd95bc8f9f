"""A job on a cluster of its own, whose machines, processes and driver are killed; the driver is started again."""

import contextlib
import subprocess
import sys

import psutil
from counted import counted
from helpers import ROOT, wait_for

ENCODERS, TASKS = "ray::MapWorker(MapBatches(Encode", "ray::MapBatches("  # titles of Ray's processes


class Disturbed:
    """Runs the flags of a job on `machines` nodes of a head."""

    def __init__(self, head, flags, output, folder, environment=None, machines=2):
        self.head, self.flags, self.output, self.folder = head, flags, output, folder
        self.environment = head.environment | {"COUNTED": str(folder)} | (environment or {})
        while len(head.workers) < machines:
            head.add_node(cpus=2)
        wait_for(lambda: len(head.nodes()) == machines)
        self.starts = 0
        self.start()

    def start(self):
        """Run the command, as a user does again after it was killed."""
        self.starts += 1
        command = [sys.executable, str(ROOT / "tests" / "counted.py"), *map(str, self.flags)]
        with open(self.folder / "driver.log", "a") as log:
            self.driver = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, start_new_session=True
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
        """Kill one, and give how many units were in flight then: begun by an encoder and not written, at most."""
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
            doomed = chance.choice(wait_for(lambda: self.processes(title)))
            with contextlib.suppress(psutil.NoSuchProcess):
                doomed.kill()
            began = self.began()
        return began - written
