"""Plan and resume a billion rows: 50,000 Parquet files, 1,000,000 units, half of them done; against an S3 server on
this machine that makes its answers up (listings of any length, the same footer for every file).

    python -m benchmarks.speed.scale [--files 50000] [--units 1000000] [--latency 0.05]
"""

import io
import json
import os
import resource
import subprocess
import sys
import time
from bisect import bisect_right
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from benchmarks.turns import finish, parser_of

GROUP_ROWS = 1000  # of a row group, and of a unit
MARKS = {"ETag": '"1"', "Last_Modified": "Sat, 21 Nov 2026 00:00:00 GMT"}  # of every object
SECONDS, MEMORY_MIB = 60, 2048  # what planning and resuming may take


def parquet(groups):
    """A file of so many row groups; the server gives it for every name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = io.BytesIO()
    table = pa.table({"text": ["a girl in a red dress plays soccer"] * GROUP_ROWS * groups})
    pq.write_table(table, sink, row_group_size=GROUP_ROWS)
    return sink.getvalue()


class Bucket:
    """What the server has: files of `groups` row groups, half of their units done, and what is put. Kept in memory."""

    def __init__(self, files, groups):
        self.files, self.groups = files, groups
        self.file = parquet(groups)
        self.kept, self.fingerprint8 = {}, None
        self.counts = {"requests": 0, "bytes": 0}

    def get(self, key):
        """The bytes of an object, or None."""
        return self.kept.get(key) or (self.file if key.startswith("in/part-") else None)

    def put(self, key, body):
        """Keep an object."""
        self.kept[key] = body
        if key == "out/job.json":
            self.fingerprint8 = json.loads(body)["fingerprint"][:8]

    def names(self, prefix):
        """How many keys there are under a prefix, and the i-th of them with its size; the units' names are those of
        `fingerprint8` in job.json."""
        if prefix == "in/":
            return self.files, lambda i: (f"in/part-{i:05d}.parquet", len(self.file))
        if prefix == "out/embeddings/" and self.fingerprint8:

            def unit(i):  # every second one is done
                file, group = divmod(2 * i, self.groups)
                return f"{prefix}{self.fingerprint8}-{file:05d}-{group * GROUP_ROWS:012d}-{GROUP_ROWS}-0.parquet", 1

            return self.files * self.groups // 2, unit
        found = sorted(k for k in self.kept if k.startswith(prefix))
        return len(found), lambda i: (found[i], len(self.kept[found[i]]))

    def listing(self, query):
        """A page of ListObjectsV2, as XML."""
        count, entry = self.names(query.get("prefix", [""])[0])
        after = query.get("start-after", [""])[0]
        start = int(query.get("continuation-token", ["0"])[0])
        start = start or bisect_right(range(count), after, key=lambda i: entry(i)[0])
        end = min(count, start + int(query.get("max-keys", ["1000"])[0]))
        item = "<Contents><Key>{}</Key><LastModified>2026-11-21T00:00:00.000Z</LastModified>"
        item += "<ETag>&quot;1&quot;</ETag><Size>{}</Size></Contents>"
        more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{end}</NextContinuationToken>"
        more = more if end < count else "<IsTruncated>false</IsTruncated>"
        items = "".join(item.format(*entry(i)) for i in range(start, end))
        page = f"<ListBucketResult><Name>corpus</Name>{more}{items}</ListBucketResult>"
        return f"<?xml version='1.0'?>{page}".encode()


class Handler(BaseHTTPRequestHandler):
    """S3 over the server's `bucket`, as far as a job asks for it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # an answer in one piece

    @property
    def key(self):
        return unquote(urlsplit(self.path).path).strip("/").removeprefix("corpus").strip("/")

    def answer(self, status, body=b"", **headers):
        counts = self.server.bucket.counts
        counts["requests"] += 1
        counts["bytes"] += len(body)
        self.send_response_only(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def do_GET(self):
        time.sleep(self.server.latency)
        bucket, query = self.server.bucket, parse_qs(urlsplit(self.path).query)
        if self.key == "counts":
            return self.answer(200, json.dumps(bucket.counts).encode())
        if "list-type" in query:
            return self.answer(200, bucket.listing(query), Content_Type="application/xml")
        body = bucket.get(self.key)
        if body is None:
            return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        if not (wanted := self.headers.get("Range")):
            return self.answer(200, body, **MARKS)
        first, last = (int(n) for n in wanted.removeprefix("bytes=").split("-"))
        part = body[first : last + 1]
        return self.answer(206, part, Content_Range=f"bytes {first}-{first + len(part) - 1}/{len(body)}", **MARKS)

    def do_HEAD(self):
        body = self.server.bucket.get(self.key)
        return self.answer(404) if body is None else self.answer(200, body, **MARKS)

    def do_PUT(self):
        self.server.bucket.put(self.key, self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(200, ETag=MARKS["ETag"])

    def handle_expect_100(self):
        goes_on = super().handle_expect_100()
        self.wfile.flush()  # botocore waits for it before it sends what it puts
        return goes_on

    def do_DELETE(self):
        self.server.bucket.kept.pop(self.key, None)
        self.answer(204)

    def log_message(self, *_):
        pass


def serve(files, groups, latency):
    """Prints the server's port, then answers for ever."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.latency = latency
    server.bucket = Bucket(files, groups)
    print(server.server_port, flush=True)
    server.serve_forever()


def measure(url):
    """Seconds, processor time of the client and counts of each step, in this process."""
    from urllib.request import urlopen

    from raycase.commands.embed import EmbedFlags, check_embed
    from raycase.job.output import write_job
    from raycase.job.plan import find_job_file, make_plan
    from raycase.job.units import spans_to_arrow

    took, busy, asked = {}, {}, {}
    before = {"requests": 0, "bytes": 0}

    def step(name, work):
        nonlocal before
        began, worked = time.perf_counter(), time.process_time()
        result = work()
        took[name] = round(time.perf_counter() - began, 1)
        busy[name] = round(time.process_time() - worked, 1)
        now = json.load(urlopen(f"{url}/counts"))
        asked[name] = {k: now[k] - before[k] for k in now}
        before = now
        spent = f"{took[name]:7.1f} s  {busy[name]:7.1f} s of processors"
        print(f"{name:>28}  {spent}  {asked[name]}  {memory():,} MiB at most", file=sys.stderr)
        return result

    places = {"input": "s3://corpus/in/", "output": "s3://corpus/out"}
    job = EmbedFlags(**places, conditions=("color",), model="minilm", unit_rows=GROUP_ROWS)
    request = step("list the input", lambda: check_embed(job))
    opened, done = find_job_file(request)
    plan = step("read the footers", lambda: make_plan(request, opened, done))
    step("save job and spans", lambda: (write_job(request.output, opened), plan.save_spans(request.output.spans)))
    first = memory()
    rows, units = sum(plan.rows), plan.units

    request = step("resume: list the input", lambda: check_embed(job))
    opened, done = step("resume: list the units", lambda: find_job_file(request))
    plan = step("resume: plan", lambda: make_plan(request, opened, done))
    left = step("resume: count what is left", lambda: (len(plan), plan.units))
    tasks = step("resume: hand all over", lambda: sum(len(spans_to_arrow(spans)) for spans in plan.spans_together()))
    assert left == (rows // 2, units // 2), (left, rows, units)
    return {
        "rows": rows, "units": units, "units_left": left[1], "tasks": tasks,
        "took": took, "processor": busy, "asked": asked,
        "memory_first_mib": first, "memory_mib": memory(),
        "resume_seconds": round(sum(s for name, s in took.items() if name.startswith("resume")), 1),
    }  # fmt: skip


def memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--units", type=int, default=1_000_000)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer to a GET")
    parser.add_argument("--serve", action="store_true", help="be the server")
    options = parser.parse_args()
    if options.serve:
        return serve(options.files, options.units // options.files, options.latency)
    command = [sys.executable, *sys.argv, "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
        os.environ |= keys | {"AWS_ENDPOINT_URL": url}
        try:
            found = measure(url)
        finally:
            server.terminate()
    ratios = {"seconds_allowed_over_resume": SECONDS / found["resume_seconds"]}
    finish(ratios | {"memory_allowed_over_used": MEMORY_MIB / found["memory_mib"]}, **found)


if __name__ == "__main__":
    main()
