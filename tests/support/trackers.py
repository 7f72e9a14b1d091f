"""A package with trackers, as a user's own: installed in a folder, which goes onto PYTHONPATH."""

from __future__ import annotations

import json
from pathlib import Path

CODE = '''
import json, os, threading, time

class Recorder:
    """Writes each call to calls.jsonl."""
    def start(self, run_id, config):
        self._write("start", run_id, {name: config[name] for name in ("folder", "step", "ranks")}, sorted(config))
    def log(self, record):
        self._write("log", record)
    def end(self, status):
        self._write("end", status)
    def _write(self, *call):
        with open("calls.jsonl", "a") as file:
            file.write(json.dumps(call) + "\\n")

class Hanging:
    """Hangs in its first record for ever, with a thread that keeps Python from ending."""
    def start(self, run_id, config):
        threading.Thread(target=threading.Event().wait).start()
    def log(self, record):
        threading.Event().wait()
    end = log

class Raising:
    def start(self, run_id, config):
        pass
    def log(self, record):
        raise SystemExit("no \\x1b[31m record")
    end = log

class Killing(Recorder):
    """Kills its process at a step, once."""
    def log(self, record):
        if record["step"] >= 8 and not os.path.exists("killed"):
            time.sleep(0.2)  # for the other trackers
            open("killed", "w").close()
            os.kill(os.getpid(), 9)
    def start(self, run_id, config):
        pass
    def end(self, status):
        pass
'''
NAMES = ("Recorder", "Hanging", "Raising", "Killing")


def install(folder: Path) -> str:
    """Install the package in a folder; its PYTHONPATH."""
    (folder / "own_trackers.py").write_text(CODE)
    information = folder / "own_trackers-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: own-trackers\nVersion: 1.0\n")
    entries = [f"{name.lower()} = own_trackers:{name}" for name in NAMES]
    broken = ["broken = own_trackers:Missing", "tensorboard = own_trackers:Raising"]
    (information / "entry_points.txt").write_text("\n".join(["[hvdtrain.trackers]", *entries, *broken, ""]))
    return str(folder)


def calls(folder: Path) -> list[list]:
    """What the Recorder of a job in this folder was told."""
    return [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]
