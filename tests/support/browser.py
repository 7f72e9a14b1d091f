"""Headless Chromium, driven through its DevTools protocol over a pipe, and what it reports of a page."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
ANSWER_S = 60


def find_browser() -> str | None:
    """The path of a browser, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One browser with one page. Errors on its console are collected.

    profile: a folder that the browser may use.
    """

    def __init__(self, profile: Path) -> None:
        to_read, self._commands = os.pipe()
        self._answers, to_write = os.pipe()
        command = [
            find_browser(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--disable-background-networking", f"--user-data-dir={profile}",
            "--remote-debugging-pipe", "about:blank",
        ]  # fmt: skip
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        shell = ["bash", "-c", f'exec 3<&{to_read} 4>&{to_write}; exec "$@"', "bash"]
        self._process = subprocess.Popen(
            [*shell, *command], pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._number, self._session = b"", 0, ""
        self.errors: list[str] = []
        """What pages wrote to the console as an error or a warning, and exceptions that no code caught."""
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._commands)
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)

    def call(self, method: str, **values: Any) -> dict[str, Any]:
        """The result of one command of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": values}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_S
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._note(answer)

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(deadline - time.monotonic(), 0))
            content = os.read(self._answers, 1 << 20) if ready else b""
            assert content, "the browser does not answer"
            self._buffer += content
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, values = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(values["exceptionDetails"])[:2000])
        elif method == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(values["args"])[:2000])
        elif method == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
            self.errors.append(json.dumps(values["entry"])[:2000])

    def resize(self, width: int, height: int = 900, scale: float = 1) -> None:
        """Give the page a window of this size; below 500 pixels, that of a phone."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 500,
        )

    def darken(self, is_dark: bool) -> None:
        """Let the page know that its user prefers dark colors, or light ones."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def open(self, address: str) -> None:
        """Show another page, without waiting for it."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=address)

    def leave(self) -> None:
        """Show no page: the last one asks its server for nothing from here on."""
        self.open("about:blank")
        self.wait("location.href === 'about:blank'")

    def run(self, code: str) -> Any:
        """The value of an expression of JavaScript in the page; a promise is waited for."""
        result = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, (code, result)
        return result["result"].get("value")

    def wait(self, code: str, timeout_s: float = 20) -> None:
        """Wait until an expression is true. One that raises, as an element is not there yet, is not."""
        deadline = time.monotonic() + timeout_s
        while not self.run(f"(() => {{ try {{ return Boolean({code}) }} catch {{ return false }} }})()"):
            if time.monotonic() > deadline:
                shown = self.run("document.body?.innerText ?? ''")[:3000]
                raise AssertionError(f"not within {timeout_s} s: {code}; errors: {self.errors}; page:\n{shown}")
            time.sleep(0.02)

    def press(self, key: str) -> None:
        """Press and release a key."""
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def text(self) -> str:
        """The text of the page as it is shown."""
        return self.run("document.body.innerText")

    def picture(self, whole: bool = False) -> bytes:
        """A picture of the window as PNG, or of the whole page."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"])
