"""A job of many small units, stopped at nine tenths and resumed: seconds until the first new unit and until the end,
requests to the store, memory.

    python benchmarks/resume.py --units 10000

A unit is one row, and the encoder a tiny random one, so that nothing but the job's own work is measured. Input and
output are on an S3 server on this machine (moto), behind a proxy that counts; both take processor time of the job.
"""

import argparse
import io
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
from helpers import save_tiny_model
from moto.server import ThreadedMotoServer
from s3_proxy import Proxy

from raycase.io.provenance import commit, machine

OPTIONS = "--conditions color --prompt concat-sc --pooling mean --compute float32 --unit-rows 1 --no-ray --quiet"
SHARE = 0.9  # of the units, after which the job is stopped


def run(proxy, folder, stop=None):
    """Run the job, or so much of it, and give what it took."""
    asked, new = Counter(proxy.asked), [0, None]
    places = "--input s3://corpus/in.parquet --output s3://corpus/out"
    command = [sys.executable, "-m", "raycase", "embed", *f"{places} --model {folder}/tiny {OPTIONS}".split()]
    began, ended = time.time(), threading.Event()

    def watch(child):
        while not ended.wait(0.02):
            new[0] = sum(
                n for (method, path), n in list(proxy.asked.items()) if method == "PUT" and "embeddings" in path
            )
            new[0] -= sum(n for (method, path), n in asked.items() if method == "PUT" and "embeddings" in path)
            new[1] = new[1] or (time.time() - began if new[0] else None)
            if stop and new[0] >= stop:
                child.send_signal(signal.SIGINT)
                return

    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as child:
        watcher = threading.Thread(target=watch, args=(child,))
        watcher.start()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        ended.set()
        watcher.join()
    requests = Counter(method for method, path in (proxy.asked - asked).elements())
    return {
        "exit_status": child.returncode,
        "seconds": round(time.time() - began, 1),
        "seconds_to_first_unit": round(new[1], 1),
        "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "requests": dict(requests),
        "memory_mib": usage.ru_maxrss // 1024,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=10_000)
    args = parser.parse_args()
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ |= keys | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # of the server: a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    with tempfile.TemporaryDirectory() as folder, Proxy(url) as proxy:
        save_tiny_model(Path(folder, "tiny"))
        sink = io.BytesIO()
        pq.write_table(pa.table({"text": [f"a dog {i}" for i in range(args.units)]}), sink)
        store = boto3.client("s3", endpoint_url=url)
        store.create_bucket(Bucket="corpus")
        store.put_object(Bucket="corpus", Key="in.parquet", Body=sink.getvalue())
        os.environ["AWS_ENDPOINT_URL"] = proxy.url
        first = run(proxy, folder, stop=round(SHARE * args.units))
        resumed = run(proxy, folder)
        names = [page["KeyCount"] for page in store.get_paginator("list_objects_v2").paginate(
            Bucket="corpus", Prefix="out/embeddings/")]  # fmt: skip
    server.stop()
    assert sum(names) == args.units, names
    print(
        json.dumps(
            {"units": args.units, "stopped": first, "resumed": resumed, "commit": commit(), "machine": machine()}
        )
    )


if __name__ == "__main__":
    main()
