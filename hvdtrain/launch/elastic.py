"""launch horovodrun --elastic: Horovod's own elastic jobs, whose ranks come and go while the others train on.

horovodrun alone carries them: it asks a script which hosts there are, starts ranks on new ones and leaves out those on
which a rank died. Its rendezvous unpickles, and so executes, whatever it is sent (CVE-2024-10190). So it is off unless
asked for, listens on one interface only, and not on one that the internet reaches.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from hvdtrain.errors import UserError
from hvdtrain.launch.command_lines import LaunchSpec, listed, passed, settings
from hvdtrain.launch.job import Job
from hvdtrain.launch.program import is_own
from hvdtrain.system.network import address_of


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--elastic", action="store_true", help="ranks come and go (PyTorch, TensorFlow; see docs)")
    command.add_argument("--max-np", type=int, default=0, metavar="N", help="with --elastic: most ranks")
    command.add_argument(
        "--host-discovery-script", type=Path, metavar="FILE", help="with --elastic: prints the hosts, as name:slots"
    )
    command.add_argument(
        "--elastic-on-public-address", action="store_true", help="where anyone who reaches it can run code as you"
    )


def check(options: argparse.Namespace, job: Job) -> None:
    """Raise UserError for what Horovod's elastic jobs cannot do, or should not."""
    script, least, most = options.host_discovery_script, options.min_ranks or job.ranks, options.max_np or job.ranks
    if job.controller != "gloo" or options.restarts or job.time_limit_s:
        raise UserError("--elastic: it is Gloo's alone, and knows no --restarts and no --time-limit; leave these out")
    if not 1 <= least <= job.ranks <= most:
        raise UserError(f"--min-np {least} --max-np {most}: give numbers around -n {job.ranks}")
    if script and not os.access(script, os.X_OK):
        raise UserError(f"--host-discovery-script {script}: it cannot be executed; chmod +x it")
    if not script and len(job.hosts) < 2:
        raise UserError("--elastic: give --host-discovery-script FILE, or two or more hosts by -H")
    if not job.interface:
        raise UserError("--elastic: give --interface NAME, on which alone its rendezvous listens (see docs/faults.md)")
    address = address_of(job.interface)
    if ipaddress.ip_address(address).is_global and not options.elastic_on_public_address:
        raise UserError(
            f"--interface {job.interface}: {address} is a public address, and Horovod's elastic rendezvous executes "
            "what it is sent; take an inner interface, or --elastic-on-public-address behind a firewall"
        )


def start(options: argparse.Namespace, job: Job, environment: Mapping[str, str]) -> LaunchSpec:
    """horovodrun and its options, and the program, which is told that it is elastic if it is hvdtrain's own."""
    assert job.interface
    words = ["horovodrun", "--disable-cache", "--gloo", "-np", str(job.ranks)]
    words += ["--min-np", str(options.min_ranks or job.ranks)]
    words += ["--max-np", str(options.max_np)] if options.max_np else []
    words += ["--start-timeout", f"{job.start_timeout_s:.0f}", "--network-interfaces", job.interface]
    if options.host_discovery_script:
        words += ["--host-discovery-script", str(options.host_discovery_script.absolute())]
    else:
        words += ["-H", listed(job.hosts)]
    words += ["--output-filename", str(job.output_dir)] if job.output_dir else []
    program = [*job.program, *(["--elastic"] if is_own(job.program) and "--elastic" not in job.program else [])]
    return LaunchSpec([*words, *program], {**settings(job, environment), "HOROVOD_GLOO_IFACE": job.interface})


def become(one: LaunchSpec, environment: Mapping[str, str]) -> NoReturn:
    """Become horovodrun: there is nothing that a supervisor of a fixed number of ranks could do."""
    try:
        os.execvpe(one.words[0], one.words, {**passed(environment), **one.set})
    except OSError as error:
        raise UserError(f"horovodrun cannot be started ({error.strerror}): make setup builds it") from None
