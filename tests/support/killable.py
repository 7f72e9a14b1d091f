"""A training program whose ranks a test can kill, at any moment from their start on, or in a phase of their step.

usage: python killable.py FRAMEWORK|numpy|SCRIPT.py [OPTIONS of training]

In the folder $HVDTRAIN_TEST_FOLDER, each rank first writes its process id into `pids/RANK`. The file `orders/PHASE`
holds a number of seconds: the first rank to begin that phase takes the order, and is killed so many seconds later;
`orders/PHASE-RANK` is for that rank only. HVDTRAIN_TEST_STEP_S: seconds by which each step is longer, in which nothing
is computed, as long as there is no file `hurry`. HVDTRAIN_TEST_PATIENCE_S: after how long a rank that joins asks
whether the others run.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

FOLDER = "HVDTRAIN_TEST_FOLDER"
STEP_S = "HVDTRAIN_TEST_STEP_S"
PATIENCE_S = "HVDTRAIN_TEST_PATIENCE_S"
folder = Path(os.environ[FOLDER])
rank = os.environ.get("HVDTRAIN_RANK", "0")


def announce() -> None:
    """Say which process is this rank, before anything slow is imported."""
    (folder / "pids").mkdir(exist_ok=True)
    draft = folder / "pids" / f"{rank}.{os.getpid()}"
    draft.write_text(str(os.getpid()))
    draft.replace(folder / "pids" / rank)


def kill_after(seconds: float) -> None:
    """Kill this process, from another thread if it is to go on for a moment."""

    def end() -> None:
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    if seconds:
        threading.Thread(target=end, daemon=True).start()
    else:
        end()


def begins(phase: str) -> None:
    """Take the order for a phase, if there is one."""
    for name in (phase, f"{phase}-{rank}"):
        order, taken = folder / "orders" / name, folder / "orders" / f"{phase}.{os.getpid()}"
        if order.exists():
            with contextlib.suppress(FileNotFoundError):  # another rank is faster
                order.rename(taken)
                kill_after(float(taken.read_text()))


def obey() -> None:
    """Look for an order wherever the training says that a phase begins, and make steps longer."""
    from hvdtrain.system.phases import GRADIENTS, Phases
    from hvdtrain.training import train

    begin, step_s = Phases.begin, float(os.environ.get(STEP_S, "0"))
    train.MIN_LIMIT_S = float(os.environ.get(PATIENCE_S, train.MIN_LIMIT_S))

    def begin_and_obey(self, phase) -> None:
        if phase is GRADIENTS and step_s and not (folder / "hurry").exists():
            time.sleep(step_s)
        begin(self, phase)
        begins(phase.name)

    Phases.begin = begin_and_obey  # type: ignore[method-assign]


def main() -> None:
    announce()
    obey()
    trained, *options = sys.argv[1:]
    if trained.endswith(".py"):
        import runpy

        sys.argv = [trained, *options]
        sys.path.insert(0, str(Path(trained).parent))
        runpy.run_path(trained, run_name="__main__")
    else:
        from hvdtrain.cli.train import main
        from hvdtrain.runs import plots

        if trained == "numpy":
            import numpy_learner

            trained = numpy_learner.install()
        # Matplotlib takes half a second for each run, and no test of these programs needs plots.
        plots.plot_metrics = lambda folder, *_: folder  # type: ignore[assignment]
        main(trained, argv=options)


main()
