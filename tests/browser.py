"""A headless Chromium, driven by its DevTools protocol over pipes: no port, no package."""

import json
import os
import shutil
import subprocess
import time

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-quic"),
    *("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"),  # WebGL without a GPU
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"),
)
SECONDS = 120  # that an answer may take, on a machine that does much else


class Browser:
    """A browser with one page. `requests`: the addresses that it asked for; `console`: what pages wrote or threw."""

    def __init__(self, folder, width=1280, height=800):
        read, self._commands = os.pipe()
        self._answers, write = os.pipe()
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder}", f"--window-size={width},{height}", "about:blank"]
        shell = ["bash", "-c", f'exec "$@" 3<&{read} 4>&{write}', "chromium", *command]
        self.log = open(os.path.join(folder, "log"), "wb")  # noqa: SIM115 open while the browser is
        self.process = subprocess.Popen(shell, pass_fds=(read, write), stdout=self.log, stderr=self.log)
        os.close(read)
        os.close(write)
        os.set_blocking(self._answers, False)
        self._buffer, self._number, self.requests, self.console, self._session = b"", 0, [], [], None
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method, **parameters):
        """A command of the protocol; gives its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def _next(self):
        """The next message; events are noted."""
        end = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            try:
                data = os.read(self._answers, 2**20)
            except BlockingIOError:
                assert time.monotonic() < end, "the browser does not answer"
                time.sleep(0.005)
                continue
            assert data, f"the browser ended: {self.process.wait()}"
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(line)
        what = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(what["request"]["url"])
            case "Runtime.consoleAPICalled":
                self.console.append([each.get("value", each.get("description")) for each in what["args"]])
            case "Runtime.exceptionThrown":
                self.console.append(what["exceptionDetails"])
            case "Log.entryAdded":
                self.console.append(what["entry"])
        return message

    def open(self, uri):
        self.send("Page.navigate", url=uri)
        self.wait("document.readyState === 'complete'")

    def ask(self, expression):
        """The value of an expression of JavaScript in the page; of a promise what it resolves to."""
        result = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, expression):
        """Wait until an expression is true, and give its value."""
        end = time.monotonic() + SECONDS
        while not (value := self.ask(expression)):
            assert time.monotonic() < end, f"not in {SECONDS} s: {expression}"
            time.sleep(0.02)
        return value

    def mouse(self, kind, x, y, **more):
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x, y):
        self.mouse("mouseMoved", x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def key(self, key, text=""):
        code = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39, "Tab": 9}.get(key, ord(key[0]))
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, text=text)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def type(self, text):
        self.send("Input.insertText", text=text)

    def size(self, width, height, mobile=False):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def close(self):
        self.process.terminate()
        self.process.wait()
        os.close(self._commands)
        os.close(self._answers)
        self.log.close()
