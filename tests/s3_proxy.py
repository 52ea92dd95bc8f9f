"""The S3 server of the tests, and a proxy before it: counts what is asked, and fails some of it on purpose."""

import contextlib
import html
import http.client
import os
import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, unquote, urlsplit

ERROR = '<?xml version="1.0"?><Error><Code>{}</Code><Message>{}</Message></Error>'
FAULTS = ((500, "InternalError"), (503, "SlowDown"), "reset", "cut", "stall")
HOPS = {"connection", "transfer-encoding", "keep-alive", "content-length"}


@contextlib.contextmanager
def serving():
    """A real HTTP S3 server with the bucket `corpus`, of which this process asks from now on; gives its URL."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    os.environ["AWS_ENDPOINT_URL"] = url
    boto3.client("s3").create_bucket(Bucket="corpus")
    yield url
    server.stop()


class Proxy:
    """Listens on 127.0.0.1; of all requests the share `failing` meets one of `faults`, drawn with a seed.

    A fault is an error of S3 (status, code), "reset" (the connection is torn down), "cut" (half of the answer comes)
    or "stall" (no answer comes at all). Deletions are shown `late` seconds later, as are new names in listings.
    """

    def __init__(self, server, *, failing=0.0, faults=(), seed=0, late=0.0):
        self.target = urlsplit(server).netloc
        self.late, self.going, self.new = late, {}, {}  # what is deleted later, and when what was put, by path
        self.failing, self.faults, self.random = failing, faults, random.Random(seed)
        self.asked, self.failed = Counter(), Counter()  # (method, path), fault
        self.lock, self.ended = threading.Lock(), threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.server.shutdown()
        self.server.server_close()

    def draw(self, method, path):
        """The fault that a request meets, if any."""
        with self.lock:
            self.asked[method, path] += 1
            fault = self.random.choice(self.faults) if self.random.random() < self.failing else None
            if fault:
                self.failed[fault] += 1
            return fault

    def delete_late(self, path, headers):
        """Delete an object a little later, unless it is put again until then."""
        moment = self.going[path] = time.monotonic()

        def delete():
            if self.going.get(path) == moment:
                with contextlib.closing(http.client.HTTPConnection(self.target, timeout=60)) as connection:
                    connection.request("DELETE", quote(path), headers=headers)
                    connection.getresponse().read()

        threading.Timer(self.late, delete).start()

    def listed_late(self, bucket, listing):
        """A listing without the objects that were put a moment ago."""

        def shown(entry):
            path = f"{bucket}/{unquote(html.unescape(re.search('<Key>(.*?)</Key>', entry[0])[1]))}"
            return "" if self.new.get(path, -self.late) + self.late > time.monotonic() else entry[0]

        return re.sub("<Contents>.*?</Contents>", shown, listing.decode(), flags=re.DOTALL).encode()

    def _handler(self):
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                fault = proxy.draw(self.command, unquote(urlsplit(self.path).path))
                if fault == "stall":
                    proxy.ended.wait()
                    self.close_connection = True
                elif fault == "reset":
                    self.reset()
                elif isinstance(fault, tuple):
                    status, code = fault
                    self.answer(status, {"Content-Type": "application/xml"}, ERROR.format(code, "on purpose").encode())
                elif proxy.late and self.command in ("DELETE", "POST") and self.deletes(body):
                    answer = b"<DeleteResult></DeleteResult>" if self.command == "POST" else b""
                    self.answer(200 if answer else 204, {"Content-Type": "application/xml"}, answer)
                else:
                    self.forward(body, cut=fault == "cut")

            def deletes(self, body):
                """Whether the request deletes objects, which are then deleted later."""
                at = urlsplit(self.path)
                path, keys = unquote(at.path).rstrip("/"), re.findall("<Key>(.*?)</Key>", body.decode())
                if self.command == "POST" and not at.query.startswith("delete"):
                    return False
                signed = {"Authorization": self.headers["Authorization"]}
                for each in [f"{path}/{html.unescape(key)}" for key in keys] or [path]:
                    proxy.delete_late(each, signed)
                return True

            do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_one  # noqa: N815 (names of http.server)

            def forward(self, body, cut):
                connection = http.client.HTTPConnection(proxy.target, timeout=60)
                headers = {k: v for k, v in self.headers.items() if k.lower() not in HOPS}
                try:
                    connection.request(self.command, self.path, body, headers)
                    found = connection.getresponse()
                    data = found.read()
                except OSError:  # the server behind is down: so is this one
                    self.reset()
                    return
                finally:
                    connection.close()
                kept = {k: v for k, v in found.getheaders() if k.lower() not in HOPS}
                path = unquote(urlsplit(self.path).path)
                if self.command == "PUT":
                    proxy.going.pop(path, None)
                    proxy.new[path] = time.monotonic()
                elif self.command == "GET" and proxy.late and b"<ListBucketResult" in data[:200]:
                    data = proxy.listed_late(path.rstrip("/"), data)
                size = found.getheader("Content-Length") if self.command == "HEAD" else None
                self.answer(found.status, kept, data, size=size, cut=cut)

            def answer(self, status, headers, data, *, size=None, cut=False):
                self.send_response_only(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", size or str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data[: len(data) // 2] if cut else data)
                if cut:
                    self.wfile.flush()
                    self.reset()

            def reset(self):
                """RST instead of FIN: "connection reset by peer"."""
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True
                self.connection.close()

            def finish(self):
                with contextlib.suppress(OSError, ValueError):  # torn down on purpose
                    super().finish()

            def log_message(self, *_):
                pass

        return Handler
