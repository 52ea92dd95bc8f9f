"""A Hugging Face hub on 127.0.0.1 with folders of this machine under ids, as much of it as loading a model asks."""

import json
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

COMMIT = "0123456789" * 4


@contextmanager
def fake_hub(folders):
    """Serve folders by id (`owner/name`); gives the endpoint's URL and the paths that were asked for."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.answer()

        def do_GET(self):
            self.answer()

        def answer(self):
            asked.append(self.path)
            parts = self.path.split("?")[0].strip("/").split("/")
            if parts[:2] == ["api", "models"] and "tree" not in parts and "/".join(parts[2:4]) in folders:
                self.send(200, json.dumps({"id": "/".join(parts[2:4]), "sha": COMMIT, "siblings": []}).encode())
            elif parts[2:3] == ["resolve"] and (file := self.file(parts)):
                self.send(200, file.read_bytes())
            else:
                self.send(404, b"", {"X-Error-Code": "EntryNotFound"})

        def file(self, parts):
            folder = folders.get("/".join(parts[:2]))
            file = folder and folder.joinpath(*parts[4:])
            return file if file and file.is_file() else None

        def send(self, status, body, headers=()):
            self.send_response(status)
            for name, value in {
                "Content-Length": str(len(body)),
                "ETag": f'"{sha256(body).hexdigest()}"',
                "X-Repo-Commit": COMMIT,
                **dict(headers),
            }.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
