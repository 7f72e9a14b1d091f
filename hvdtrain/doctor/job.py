"""The job as a whole: do the ranks meet, are they as many as promised, are they alike.

The ranks gather over hvdtrain's own ring, which trusts neither Horovod nor MPI. Where rank 0 listens they learn from
the launcher's variables, from the store of horovodrun --gloo, or, under mpirun, by MPI in a process beside each rank.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import select
import socket
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdtrain.doctor import subprocesses
from hvdtrain.doctor.checks import allreduce, horovod, software
from hvdtrain.doctor.checks.machine import standing
from hvdtrain.doctor.findings import FRAMEWORKS, Finding, Setting, fail, ok, probe_words, warn
from hvdtrain.errors import HvdtrainError, UserError
from hvdtrain.system import rank_info, slurm, versions
from hvdtrain.system.processes import end_with_parent, free_port

if TYPE_CHECKING:  # it imports NumPy, which may be what is broken
    from hvdtrain.collectives.ring import RingGroup

MEET_S = 30
DAEMON = "OMPI_MCA_orte_hnp_uri"
CLOCK_ROUNDS = 10
CLOCKS_APART_S = 1.0
"""Beyond this, logs and file times of the ranks no longer tell what came first."""
OPTIONS = (
    "OMP_NUM_THREADS",
    "HVDTRAIN_DATA",
    "TF_ENABLE_ONEDNN_OPTS",
    "MKL_NUM_THREADS",
    "NCCL_DEBUG",
    "LD_LIBRARY_PATH",
)
TOGETHER = {
    "alike": "the same versions and options on all ranks",
    "clocks": "clocks of all ranks against rank 0's",
    "bound": "ranks are not all bound to the same core",
    "shared-folder": "all ranks see the folder of runs",
    "horovod-size": "Horovod sees as many ranks as the launcher promised, and adds up over them",
}
"""Checks that all ranks make together, in this order: name, what it looks at."""
OF_ONE_RANK = ("RANK", "LOCAL_RANK", "CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE", "HOSTNAME")
"""HOROVOD_* that differ from rank to rank because they must."""


class Beside:
    """Under mpirun, the process beside this rank that speaks MPI: Open MPI lets a rank start it once only."""

    def __init__(self, address: str, limit_s: float) -> None:
        words = probe_words("mpi", address, limit_s=limit_s)
        self._err = os.memfd_create("err")
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._err, preexec_fn=end_with_parent
        )
        self._text = b""

    def wait(self, key: str, deadline: float) -> dict[str, Any]:
        """What it said that has this key; what it said at its end, or empty, where it ended or is silent."""
        assert self._process.stdout
        while time.monotonic() < deadline:
            for told in subprocesses.said(self._text.decode(errors="replace")):
                if key in told:
                    return told
            if not select.select([self._process.stdout], [], [], 0.2)[0]:
                continue
            arrived = os.read(self._process.stdout.fileno(), 1 << 16)
            if not arrived:
                break
            self._text += arrived
        return {}

    def said(self) -> list[dict[str, Any]]:
        return subprocesses.said(self._text.decode(errors="replace"))

    def order(self, name: str) -> None:
        """Have it try Horovod through a framework, or end where the name is empty."""
        assert self._process.stdin
        with suppress(OSError, ValueError):  # it is gone, or was told before
            self._process.stdin.write(f"{name}\n".encode())
            self._process.stdin.close()

    def reason(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        error = os.pread(self._err, 1 << 20, 0).decode(errors="replace")
        return subprocesses.Done(self._process.poll(), "", error, MEET_S).reason()

    def close(self) -> None:
        self.order("")
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
            return
        subprocesses.end(self._process)


class Job:
    """The ranks of this job, met; `ring` is None where they could not."""

    def __init__(self, setting: Setting, timeout_s: float) -> None:
        self._setting, self._timeout_s = setting, timeout_s
        self.ring: RingGroup | None = None
        self._beside: Beside | None = None
        self.findings: list[Finding] = []
        """On the meeting."""
        self.hosts = [setting.host]
        try:
            self._meet()
        except Exception as error:  # whatever it is, rank 0 must be able to tell
            self.findings.append(apart(error))

    def _meet(self) -> None:
        place = self._setting.place
        if place.launcher == "horovodrun":
            address, token = _by_store(place)
        elif place.launcher in ("mpirun", "mpiexec"):
            address, token = self._by_mpi()
        else:
            address, token = rank_info.rendezvous(), rank_info.token()
        from hvdtrain.collectives.ring import RingGroup

        began = time.monotonic()
        self.ring = RingGroup(place, address, token, start_timeout_s=MEET_S, timeout_s=self._timeout_s)
        self.hosts = self.ring.gather(self._setting.host)
        seconds = time.monotonic() - began
        count = len(set(self.hosts))
        ranks = f"{place.size} ranks on {count} host(s), started by {place.launcher}"
        self.findings.append(ok(f"{ranks}, reach each other over TCP (met in {seconds:.1f} s)"))

    def _by_mpi(self) -> tuple[tuple[str, int], str]:
        """Rank 0's address and the job's word, by MPI."""
        place = self._setting.place
        # The address by which Open MPI's own daemons reach the host of mpirun.
        daemon = re.search(r"tcp://([0-9.]+)", os.environ.get(DAEMON, ""))
        host, port, token = _own_address(daemon.group(1) if daemon else ""), free_port(""), secrets.token_hex(16)
        self._beside = Beside(json.dumps([host, port, token]), self._setting.limit(120))
        deadline = time.monotonic() + MEET_S
        told = self._beside.wait("mpi_size", deadline)
        if told and told["mpi_size"] != place.size:
            name = f"{place.launcher} (mpi4py)"
            self.findings.append(allreduce.alone(name, place.size, told["mpi_size"], gloo=False))
            raise OSError(f"MPI sees {told['mpi_size']} of {place.size} processes")
        told = self._beside.wait("address", deadline)
        if not told:
            raise OSError(f"mpi4py does not start MPI: {self._beside.reason()}")
        host, port, token = json.loads(told["address"])
        return (host, port), token

    @property
    def local_ranks(self) -> int:
        """Ranks on this host."""
        return self.hosts.count(self._setting.host) if self.ring else local_size()

    def close(self) -> None:
        if self._beside:
            self._beside.close()
        if self.ring:
            with suppress(HvdtrainError, OSError):
                self.ring.close()

    # What all ranks do together.

    def together(self, wanted: Callable[[str], bool]) -> list[tuple[str, Finding]]:
        """Checks of the job as a whole: names and findings, whole on rank 0; all ranks must call it."""
        found: list[tuple[str, Finding]] = []
        for name in filter(wanted, TOGETHER):
            try:
                found += [(name, finding) for finding in getattr(self, f"_{name.replace('-', '_')}")()]
            except Exception as error:  # ranks are no longer at the same place: nothing more can be gathered
                self.ring = None  # which closes the connections, so that the neighbours hear of it
                found.append((name, apart(error)))
                break
        return found

    def _gather(self, value: Any) -> list[Any]:
        assert self.ring
        return self.ring.gather(value)

    def _alike(self) -> Iterator[Finding]:
        """the same versions and options on all ranks"""
        here = versions.here()
        code = {versions.CODE: here.pop(versions.CODE)}
        mine = {"versions": here, "options": _options(), "program": code}
        gathered = self._gather(mine)
        for what, told, remedy in (
            (
                "versions",
                fail,
                "make setup on all hosts, from the same checkout; look at PYTHONPATH and PATH of the ranks",
            ),
            ("options", warn, "give all ranks the same: horovodrun passes the environment on, mpirun needs -x NAME"),
            ("program", fail, "have the same checkout on all hosts: git rev-parse HEAD"),
        ):
            differing = differences([one[what] for one in gathered])
            for name, values in differing.items():
                yield told(f"{name} differs between ranks: {values}", remedy)
            if not differing:
                yield ok(f"the same {what} on all ranks")

    def _clocks(self) -> Iterator[Finding]:
        """clocks of all ranks against rank 0's"""
        before, after = [], []
        for _round in range(CLOCK_ROUNDS):
            before.append(time.time())
            self._gather(None)
            after.append(time.time())
        offsets = [offset(other, stamps[0]) for stamps in [self._gather((before, after))] for other in stamps]
        apart = [(rank, o, u) for rank, (o, u) in enumerate(offsets) if abs(o) - u > CLOCKS_APART_S]
        for rank, seconds, uncertain in apart:
            text = (
                f"the clock of rank {rank} ({self.hosts[rank]}) is {seconds:+.1f} s off rank 0's (± {uncertain:.3f} s)"
            )
            yield warn(text, "set the clocks by NTP on all hosts: timedatectl set-ntp true, or systemctl start chrony")
        if not apart:
            most, uncertain = max(abs(o) for o, _ in offsets), max(u for _, u in offsets)
            yield ok(f"clocks agree within {(most + uncertain) * 1e3:.1f} ms")

    def _bound(self) -> Iterator[Finding]:
        """ranks are not all bound to the same core"""
        gathered = self._gather((self._setting.host, sorted(os.sched_getaffinity(0)), os.cpu_count() or 1))
        cores: dict[str, list[list[int]]] = defaultdict(list)
        for host, mine, _all in gathered:
            cores[host].append(mine)
        have = {host: count for host, _, count in gathered}
        for host, lists in cores.items():
            together = {core for one in lists for core in one}
            if len(lists) > 1 and len(together) < min(len(lists), have[host]):
                which = f"core {min(together)}" if len(together) == 1 else f"{len(together)} cores"
                text = f"all {len(lists)} ranks on {host} are bound to {which} of {have[host]}"
                remedy = "mpirun --bind-to none, srun --cpu-bind=none or more --cpus-per-task; start without taskset"
                yield fail(text, remedy)
            elif len(lists) > have[host]:
                text = f"{len(lists)} ranks on the {have[host]} core(s) of {host} oversubscribe it"
                yield warn(text, f"start at most {have[host]} ranks there, or add hosts")
            else:
                yield ok(f"{len(lists)} ranks on {host} share {len(together)} of {have[host]} cores")

    def _shared_folder(self) -> Iterator[Finding]:
        """all ranks see the folder of runs"""
        folder = standing(self._setting.runs)
        marker = f".hvdtrain-doctor-{secrets.token_hex(8)}"
        if self._setting.place.rank == 0:
            with suppress(OSError):
                (folder / marker).write_text(marker)
        try:
            name, host = self._gather((str(folder / marker), self._setting.host))[0]
            seen = self._gather(self._seen(Path(name), patient=host != self._setting.host))
        finally:
            if self._setting.place.rank == 0:
                with suppress(OSError):
                    (folder / marker).unlink()
        blind = [rank for rank, one in enumerate(seen) if not one]
        if not seen[0]:
            return  # said by the check `folder`
        if blind:
            where = ", ".join(f"{rank} ({self.hosts[rank]})" for rank in blind)
            text = f"rank {where} does not see {folder}, where rank 0 writes runs and checkpoints"
            yield fail(text, "give by --runs a folder that all hosts share, such as one of NFS")
        else:
            yield ok(f"all ranks see {folder}")

    def _seen(self, marker: Path, patient: bool) -> bool:
        """Whether the file is there; a network file system shows it a little later."""
        return "seen" in self._setting.probe("seen", str(marker), "3" if patient else "0", limit_s=10)[0]

    def _horovod_size(self) -> Iterator[Finding]:
        """Horovod sees as many ranks as the launcher promised, and adds up over them"""
        place = self._setting.place
        if place.launcher in ("torchrun", rank_info.TF_CONFIG):
            yield ok(f"{place.launcher} is for strategies without Horovod, which was not tried")
            return
        mine = [name for name in FRAMEWORKS if software.there(f"horovod.{name}")] if software.there("horovod") else []
        blocked = os.environ.get("HOROVOD_CONTROLLER", "").lower() == "gloo" and not allreduce.over_gloo()
        gathered = self._gather((mine, blocked))
        if any(blocked for _, blocked in gathered):
            return  # said by the check `variables`; Horovod would crash, and mpirun end the job with it
        names = [name for name in FRAMEWORKS if all(name in mine for mine, _ in gathered)]
        name = next(filter(self._load_everywhere, names), "")
        if not name:
            yield warn("Horovod was not tried: no framework on all ranks loads it", software.SETUP)
            return
        yield from self._judge(self._gather(self._collective(name)))

    def _load_everywhere(self, name: str) -> bool:
        """Whether Horovod loads for a framework on every host, of which one rank asks; all ranks must call it."""
        return all(self._gather(self._setting.place.local_rank > 0 or horovod.loads(self._setting, name)))

    def _collective(self, name: str) -> tuple[list[dict[str, Any]], str]:
        """What the probe beside this rank said, and why it failed."""
        if self._beside:
            self._beside.order(name)
            ended = self._beside.wait("end", time.monotonic() + self._setting.limit(60))
            return self._beside.said(), "" if ended else self._beside.reason()
        limit_s = self._setting.limit(45)
        done = self._setting.run(probe_words("collective", name, limit_s=limit_s), limit_s + 1)
        return subprocesses.said(done.out), "" if done.status == 0 else done.reason()

    def _judge(self, gathered: list[tuple[list[dict[str, Any]], str]]) -> Iterator[Finding]:
        """The finding, from what all ranks' probes said."""
        place = self._setting.place
        sizes = {one["size"] for told, _ in gathered for one in told if "local_rank" in one}
        results = [one for told, _ in gathered for one in told if "seconds" in one]
        if sizes and sizes != {place.size}:
            yield allreduce.alone(allreduce.controlled(place.launcher), place.size, max(sizes), allreduce.over_gloo())
        elif len(results) == place.size:
            yield allreduce.measured(f"Horovod by {place.launcher}", results, place.size)
        else:
            rank, reason = next(((rank, why) for rank, (_, why) in enumerate(gathered) if why), (0, "no result"))
            text = f"an allreduce by Horovod over {place.size} ranks failed; rank {rank} ({self.hosts[rank]}): {reason}"
            yield fail(text, "look at interfaces and host-name above; HOROVOD_LOG_LEVEL=debug says more")


def apart(error: BaseException) -> Finding:
    reason, _, remedy = str(error).partition("; ")
    text = f"the ranks cannot gather their findings, and these are rank 0's alone ({reason})"
    usual = "open the hosts' firewalls between the ranks for TCP, and look at interfaces and host-name"
    return fail(text, f"{remedy}; {usual}" if remedy else usual)


def offset(one: tuple[list[float], list[float]], zero: tuple[list[float], list[float]]) -> tuple[float, float]:
    """Seconds that a rank's clock is ahead of rank 0's, and their uncertainty.

    one, zero: times before and after each of some gathers, by the own clock. Nobody leaves a gather before all have
    come, so in truth each rank's `after` is later than every rank's `before`: two bounds a round, of which the tightest
    count.
    """
    least = max(before - after for before, after in zip(one[0], zero[1], strict=True))
    most = min(after - before for after, before in zip(one[1], zero[0], strict=True))
    return (least + most) / 2, max(most - least, 0.0) / 2


def differences(gathered: list[dict[str, str]]) -> dict[str, str]:
    """For each name whose value is not the same on all ranks, the values and who has them."""
    found = {}
    for name in sorted({name for one in gathered for name in one}):
        ranks: dict[str, list[int]] = defaultdict(list)
        for rank, one in enumerate(gathered):
            ranks[one.get(name, "none")].append(rank)
        if len(ranks) > 1:
            found[name] = ", ".join(f"{value[:60]} (rank {spans(of)})" for value, of in ranks.items())
    return found


def spans(ranks: list[int]) -> str:
    """Rank numbers, shortly: 0-3, 7."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _options() -> dict[str, str]:
    own = {f"HOROVOD_{name}" for name in OF_ONE_RANK}
    return {
        # mpirun joins its own folders to the path, here and there once more.
        name: ":".join(dict.fromkeys(filter(None, value.split(":")))) if name == "LD_LIBRARY_PATH" else value
        for name, value in os.environ.items()
        if name in OPTIONS or (name.startswith("HOROVOD_") and name not in own and "SECRET" not in name)
    }


def local_size(environment: dict[str, str] | None = None) -> int:
    """Ranks on this host by the launcher's word; all of the job's where it does not tell."""
    environment = dict(os.environ) if environment is None else environment
    for name in ("HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS"):
        if environment.get(name, "").isdecimal():
            return max(int(environment[name]), 1)
    with suppress(KeyError, ValueError, IndexError, UserError):
        return slurm.tasks_per_node(environment["SLURM_STEP_TASKS_PER_NODE"])[int(environment["SLURM_NODEID"])]
    return rank_info.detect(environment).size if environment.get("HVDTRAIN_SIZE") else 1


# Where rank 0 listens.


def _own_address(towards: str) -> str:
    """This host's address on the way to another, or that other hosts most likely reach; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked, suppress(OSError):
        asked.connect((towards or "192.0.2.1", 9))
        return str(asked.getsockname()[0])
    return "127.0.0.1"


def _by_store(place: rank_info.RankInfo) -> tuple[tuple[str, int], str]:
    """Rank 0's address and the job's word, from the store of horovodrun --gloo. Raises OSError."""
    import urllib.error
    import urllib.request

    host, port = (os.environ.get(f"HOROVOD_GLOO_RENDEZVOUS_{what}", "") for what in ("ADDR", "PORT"))
    if not host:
        raise OSError(f"{place.launcher} gave no HOROVOD_GLOO_RENDEZVOUS_ADDR, where its store is")
    url = f"http://{host}:{port}/hvdtrain-doctor/address"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the store is no web site
    if place.rank == 0:
        address, number, token = _own_address(host), free_port(""), secrets.token_hex(16)
        request = urllib.request.Request(url, json.dumps([address, number, token]).encode(), method="PUT")
        opener.open(request, timeout=10).close()
        return (address, number), token
    deadline = time.monotonic() + MEET_S
    while True:
        try:
            with opener.open(url, timeout=10) as answer:
                address, number, token = json.loads(answer.read())
                return (address, number), token
        except urllib.error.HTTPError as error:
            if error.code != 404 or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def merge(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Findings of all ranks in order, equal ones once, with the ranks and hosts that have them.

    A finding that all ranks have which looked names none.
    """
    looked = Counter(name for report in reports for name in {one["check"] for one in report["findings"]})
    merged: dict[tuple[str, ...], dict[str, Any]] = {}
    for report in reports:
        for one in report["findings"]:
            key = (one["check"], one["status"], one["text"], one["remedy"])
            entry = merged.setdefault(key, {**one, "ranks": [], "hosts": []})
            if report["rank"] not in entry["ranks"]:
                entry["ranks"].append(report["rank"])
            if report["host"] not in entry["hosts"]:
                entry["hosts"].append(report["host"])
    order = list(dict.fromkeys(one["check"] for report in reports for one in report["findings"]))
    listed = sorted(merged.values(), key=lambda one: order.index(one["check"]))
    for one in listed:
        one["everywhere"] = len(one["ranks"]) == looked[one["check"]]
    return listed
