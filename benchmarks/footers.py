"""How long planning takes to read the footers of many Parquet files on S3: python benchmarks/footers.py [--files 2000]

The store is moto in a process of its own: made for tests, it answers more slowly than S3 and has no network's latency.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.error import URLError
from urllib.request import urlopen

import boto3
import pyarrow as pa

from raycase.io.formats import Parquet
from raycase.io.inputs import list_input
from raycase.io.schema import parquet_bytes
from raycase.job.plan import READERS

PORT = 5999
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=2000)
    files = parser.parse_args().files
    os.environ |= KEYS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{PORT}"}
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(PORT)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            wait()
            measure(files)
        finally:
            server.terminate()


def wait():
    """Until the server answers."""
    while True:
        try:
            urlopen(f"http://127.0.0.1:{PORT}/moto-api/").close()
            return
        except URLError:
            time.sleep(0.1)


def measure(count):
    client = boto3.client("s3")
    client.create_bucket(Bucket="bucket")
    body = parquet_bytes(pa.table({"id": range(1000), "text": [f"a dog {i}" for i in range(1000)]}))
    for i in range(count):
        client.put_object(Bucket="bucket", Key=f"in/{i:05d}.parquet", Body=body)
    began = time.perf_counter()
    files = list_input("s3://bucket/in").files
    listed = time.perf_counter() - began
    result = {"files": len(files), "list_s": round(listed, 2)}
    for threads in (1, READERS):
        some = files if threads > 1 else files[: max(1, count // 10)]
        began, cpu = time.perf_counter(), time.process_time()
        with ThreadPoolExecutor(threads) as pool:
            assert all(pool.map(lambda file: Parquet(file).footer.num_rows == 1000, some))
        wall = 1000 * (time.perf_counter() - began) / len(some)
        own = 1000 * (time.process_time() - cpu) / len(some)
        result |= {f"ms_a_footer_{threads}_threads": round(wall, 2), f"cpu_ms_{threads}_threads": round(own, 2)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
