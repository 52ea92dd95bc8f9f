"""A Hugging Face hub on 127.0.0.1 with folders of this machine under ids, as much of it as loading and publishing a
model asks."""

import base64
import json
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

COMMIT = "0123456789" * 4


@contextmanager
def fake_hub(folders, home=None, refused=()):
    """Serve folders by id (`owner/name`), and take new ones into a folder `home`; gives the endpoint's URL and the
    paths that were asked for. Every state of a repository is the commit COMMIT. Files that are `refused` get 403."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(self.path)
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            parts = self.path.split("?")[0].strip("/").split("/")
            if parts == ["api", "repos", "create"]:
                made = json.loads(body)
                name = f"{made.get('organization') or 'me'}/{made['name']}"
                folders.setdefault(name, home / name.replace("/", "--")).mkdir(exist_ok=True)
                self.reply({"url": f"{self.endpoint()}/{name}", "name": name})
            elif parts == ["api", "validate-yaml"]:
                self.reply({"errors": [], "warnings": []})
            elif parts[4] == "preupload":
                files = [{"path": f["path"], "uploadMode": "regular"} for f in json.loads(body)["files"]]
                self.reply({"files": [file | {"shouldIgnore": False} for file in files]})
            else:
                for line in map(json.loads, body.splitlines()):
                    if line["key"] == "file":
                        file = folders["/".join(parts[2:4])] / line["value"]["path"]
                        file.parent.mkdir(parents=True, exist_ok=True)
                        file.write_bytes(base64.b64decode(line["value"]["content"]))
                url = f"{self.endpoint()}/{parts[2]}/{parts[3]}/commit/{COMMIT}"
                self.reply({"success": True, "commitOid": COMMIT, "commitUrl": url})

        def do_GET(self):
            asked.append(self.path)
            parts = self.path.split("?")[0].strip("/").split("/")
            name = "/".join(parts[2:4])
            if parts[:2] == ["api", "models"] and name in folders:
                files = sorted(f.relative_to(folders[name]) for f in folders[name].rglob("*") if f.is_file())
                if "tree" in parts:
                    sizes = [(file, (folders[name] / file).stat().st_size) for file in files]
                    self.reply([{"type": "file", "path": str(f), "size": n, "oid": "0" * 40} for f, n in sizes])
                else:
                    self.reply({"id": name, "sha": COMMIT, "siblings": [{"rfilename": str(file)} for file in files]})
            elif "/".join(parts[4:]) in refused:
                self.send(403, b"")
            elif parts[2:3] == ["resolve"] and (file := self.file(parts)):
                self.send(200, file.read_bytes())
            else:
                self.send(404, b"", {"X-Error-Code": "EntryNotFound"})

        def do_HEAD(self):
            self.do_GET()  # `send` leaves the body out

        def endpoint(self):
            return f"http://127.0.0.1:{self.server.server_port}"

        def file(self, parts):
            folder = folders.get("/".join(parts[:2]))
            file = folder and folder.joinpath(*parts[4:])
            return file if file and file.is_file() else None

        def reply(self, values):
            self.send(200, json.dumps(values).encode(), {"Content-Type": "application/json"})

        def send(self, status, body, headers=()):
            self.send_response(status)
            says = {"Content-Length": str(len(body)), "ETag": f'"{sha256(body).hexdigest()}"', "X-Repo-Commit": COMMIT}
            for name, value in (says | dict(headers)).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
