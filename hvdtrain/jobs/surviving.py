"""Supervises a job that survives lost ranks: the others go on in memory, while a lost one is started again.

Each rank has a process of its own, as horovodrun and srun would end all ranks with one. The supervisor decides which
ranks train together (`memberships.py`) and where they run (`places.py`), and tells the ranks through their agents. A
rank that is lost is reported at once: training stands still until the others know it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from hvdtrain.errors import Stopped, UserError
from hvdtrain.jobs import gloo, host_changes
from hvdtrain.jobs.background import call_after, start_task
from hvdtrain.jobs.cause import signature
from hvdtrain.jobs.hosts import Host
from hvdtrain.jobs.job import Job
from hvdtrain.jobs.job_processes import LauncherProcess
from hvdtrain.jobs.launchers.single_rank import build_rank
from hvdtrain.jobs.memberships import MembershipLedger
from hvdtrain.jobs.places import Place, Places
from hvdtrain.jobs.protocol import Message
from hvdtrain.jobs.rank_connection import RankConnection, conflict_of
from hvdtrain.jobs.signals import interrupted_status
from hvdtrain.jobs.supervisor import Supervisor
from hvdtrain.system import rank_info
from hvdtrain.system.agent_pipe import Excluded, NotRunning, OpenedRun, Ready, Said
from hvdtrain.system.membership import Member, Membership
from hvdtrain.system.processes import describe_status, shell_status, signal_name
from hvdtrain.system.run_end import Failure

MAX_STARTS = 4
"""How often a rank is started, until the job has begun."""
LATECOMERS_S = 5.0
"""How long members may run after another one has ended well."""


class SurvivingSupervisor(Supervisor):
    """Supervises one job whose ranks may be lost and join. variables: of the process that launches."""

    def __init__(self, launcher: str, job: Job, variables: Mapping[str, str], *arguments: Any) -> None:
        super().__init__(launcher, job, [], *arguments)
        assert job.survival
        self._variables, self._survival = variables, job.survival
        self._memberships = MembershipLedger(job.ranks, job.survival.min_ranks)
        self._places = Places.of_job(job)
        self._started: dict[int, LauncherProcess] = {}
        """The process of each rank."""
        self._losses: dict[int, Failure] = {}
        """Why ranks were lost that have not joined again."""
        self._store: gloo.Store | None = None
        """The rendezvous server of the newest membership."""
        self._published: tuple[int, ...] = ()
        """The ranks of that membership."""
        self._said_last: dict[int, str] = {}

    # Starting ranks.

    async def _start_processes(self, address: str) -> None:
        self._processes.prepare(address)
        if self._survival.hostfile:
            changes = host_changes.watch(self._survival.hostfile, self._on_hosts, self._console.say)
            self._limits.append(start_task(changes))
        self._start_due()

    @property
    def _takes_new_ranks(self) -> bool:
        return not (self._failure or self._requested or self._stops or self._memberships.finished)

    def _start_due(self) -> None:
        """Start the ranks for which there is a place, and later those that wait."""
        if not self._takes_new_ranks:
            return
        now = asyncio.get_running_loop().time()
        for place in self._places.take(now):
            start_task(self._start(place))
        due_s = self._places.next_due(now)
        if due_s is not None:
            asyncio.get_running_loop().call_later(due_s, self._start_due)

    async def _start(self, place: Place) -> None:
        again = self._places.starts(place.rank) > 1
        spec = build_rank(self._launcher, self._job, self._variables, place)
        try:
            process = await self._processes.start_one(spec, quiet=again)
        except UserError as error:
            self._lose(place.rank, Failure.of_exception(error))
            return
        if self._places.of(place.rank) is not place:  # it is not wanted any more
            await self._processes.retire(process)
            return
        self._started[place.rank] = process
        if self._running:
            self._limits.append(call_after(self._job.start_timeout_s, lambda: self._on_late(process)))

    def _on_late(self, process: LauncherProcess) -> None:
        """A rank that was started again had time to register."""
        rank = process.rank
        if rank is not None and self._started.get(rank) is process and rank not in self._ranks:
            self._lose(rank, Failure(f"did not register within {self._job.start_timeout_s:g} s"), answers=False)

    def _on_process_end(self, process: LauncherProcess, status: int) -> None:
        """The process that started a rank has ended: the connection says how the rank did, if there was one."""
        rank = process.rank
        if self._failure or rank is None or self._started.get(rank) is not process or rank in self._ranks:
            return
        printed = f" ({process.last_lines[-1].strip()})" if process.last_lines else ""
        failure = Failure(f"its agent {describe_status(status)} before it registered{printed}")
        self._lose(rank, failure._replace(status=shell_status(status) or 1), answers=False)

    def _register_rank(self, rank: RankConnection) -> None:
        place = self._places.of(rank.number)
        if not place or rank.number in self._ranks or not (self._takes_new_ranks or self._failure):
            rank.kill()
            return
        self._places.answers(place.host)
        if not self._running:
            self._admit(rank)
            return
        self._ranks[rank.number] = rank
        conflict = conflict_of(self._ranks)
        if conflict:
            self._places.exclude(place.host)
            self._lose(rank.number, conflict)
        else:
            rank.send(**self._environment_of(rank))

    def _environment_of(self, rank: RankConnection) -> Message:
        """Without the address of a rendezvous server: each membership has its own."""
        layout, message = self._places.layout(rank.number), super()._environment_of(rank)
        if self._memberships.number:
            message["environment"][rank_info.REPLACES] = "1"
        return {**message, "store": ["", 0], "layout": layout}

    def _on_start_timeout(self) -> None:
        if not self._running:  # later, each rank that is started again has a limit of its own
            super()._on_start_timeout()

    # What ranks say.

    def _take(self, rank: RankConnection, said: Said) -> None:
        if not self._is_current(rank):
            return
        match said:
            case Ready():
                self._on_ready(rank, said.after)
            case NotRunning() | Excluded() if said.rank in self._memberships.ranks and said.rank in self._ranks:
                place = self._places.of(said.rank)
                if isinstance(said, Excluded) and place:
                    self._places.exclude(place.host)
                self._lose(said.rank, Failure(said.reason))
            case OpenedRun():
                self._opened(said)
            case Failure():
                super()._take(rank, said)

    def _on_ready(self, rank: RankConnection, after: int) -> None:
        if not self._takes_new_ranks and rank.number not in self._memberships.ranks:
            return
        hello = rank.hello
        member = Member(rank.number, rank.host, int(hello["local_rank"]), str(hello["address"]), int(hello["port"]))
        is_first = not self._memberships.number
        is_member = rank.number in self._memberships.ranks
        membership = self._memberships.ready(member, after)
        if not membership:
            return
        self._losses.pop(rank.number, None)
        self._said_last.pop(rank.number, None)
        self._publish(membership)
        if is_first:
            self._losses.clear()
            self._places.grow(self._job.max_ranks)
            self._places.add(self._survival.allocation)
            self._start_due()
        elif is_member:
            self._console.say(f"{rank.name} lost its connections; {len(membership.members)} ranks connect again")
        else:
            self._console.say(f"{rank.name} joins; {len(membership.members)} ranks")

    def _publish(self, membership: Membership) -> None:
        """Tell all members."""
        self._published = membership.ranks
        if self._store:
            self._store.close()
        self._store = gloo.Store(self._listening, ranks=len(membership.members))
        record = membership._replace(store=("", self._store.port)).record()
        for number in membership.ranks:
            self._ranks[number].send(membership=record)

    # Losing ranks.

    def _on_message(self, rank: RankConnection, message: Message) -> None:
        if "cannot_start" in message and self._is_current(rank) and self._memberships.number:
            self._lose(rank.number, Failure.from_record(message["cannot_start"]))  # it may start on another host
            return
        if "program_ended" in message and self._is_lost(rank, int(message["program_ended"])):
            self._lose(rank.number, self._failure_of(rank, int(message["program_ended"])))
        super()._on_message(rank, message)

    def _is_lost(self, rank: RankConnection, status: int) -> bool:
        """Whether the job may go on without a rank whose program has ended; what it printed may not be read yet."""
        if not self._is_current(rank) or self._failure or not status:
            return False
        if self._memberships.number and rank.number not in self._memberships.ranks:
            return True  # it has not joined
        if status == Stopped.exit_status or shell_status(status) in {128 + number for number in self._requested}:
            return False
        said = rank.failure
        # What a program of another kind says about its end is in its last lines.
        return status < 0 or bool(said and said.retry is not False and status != UserError.exit_status)

    def _failure_of(self, rank: RankConnection, status: int) -> Failure:
        failure = rank.failure or Failure(last_lines=tuple(rank.output.tail) if status > 0 else ())
        return failure._replace(rank=rank.number, host=rank.host, status=status)

    def _on_rank_end(self, rank: RankConnection) -> None:
        if not self._is_current(rank):
            rank.output.close()
            return
        if self._memberships.number and rank.number not in self._memberships.ranks:
            self._lose(rank.number, Failure("ended before it joined", status=rank.status))
            return
        if rank.status == 0 or self._has_stopped(rank):
            self._memberships.has_finished(rank.number)
            self._end_newcomers()
            asyncio.get_running_loop().call_later(LATECOMERS_S, self._end_latecomers)
        super()._on_rank_end(rank)

    def _end_newcomers(self) -> None:
        """End the ranks that have not joined, once the job has begun: they are not needed any more."""
        if self._memberships.number:
            for number in set(self._started) - set(self._memberships.ranks):
                connection = self._ranks.get(number)
                if not connection or connection.status is None:
                    self._drop(number)

    def _end_latecomers(self) -> None:
        """End the members that still run some seconds after one has ended well, except the first.

        All is written by then. A member that has joined after the last step of the others waits for them in vain; the
        first one may have more to do, such as sending the last records to trackers. It becomes the only member: where
        a rank was lost at the very end, it waits for ranks that have ended.
        """
        first, *others = self._published or (None,)
        if first in self._ranks and not self._failure:
            for number in self._memberships.ranks:
                if number != first:
                    self._drop(number)
            if others and self._ranks[first].status is None and (membership := self._memberships.only(first)):
                self._publish(membership)
        if self._ended():
            self._over.set()

    def _on_rank_failure(self, failure: Failure) -> None:
        """The agent of a rank has disconnected, or its program has ended: it is lost, if it may be."""
        rank, status = failure.rank, failure.status
        at_fault = status is not None and (failure.retry is False or status == UserError.exit_status)
        asked = status is not None and shell_status(status) in {128 + number for number in self._requested}
        if self._failure or at_fault or asked or rank not in self._ranks:
            super()._on_rank_failure(failure)
        else:
            self._lose(rank, failure, answers=self._ranks[rank].host_answers)

    def _lose(self, number: int, failure: Failure, answers: bool = True) -> None:
        """A rank is lost. answers: whether its host is known to be there."""
        failure = failure._replace(rank=number, host=self._host_of(number))
        why = failure.reason or failure.how
        was_member = number in self._memberships.ranks
        self._drop(number)
        if self._failure or not self._places.of(number):
            return
        if not answers:  # a rank may go where none began
            self._places.add(self._survival.allocation)
        pause_s = self._places.release(number, asyncio.get_running_loop().time(), answers)
        again = self._is_repeated(failure)
        self._losses[number] = failure
        membership = self._memberships.lost(number, why)
        if membership:
            self._publish(membership)
        if self._memberships.too_few or (not self._memberships.number and again):
            self._end_by_losses(failure)
            return
        self._say_lost(failure, pause_s, was_member)
        self._start_due()
        if self._ended():
            self._over.set()

    def _is_repeated(self, failure: Failure) -> bool:
        """Whether another start of ranks would end in the same way, before the job has begun."""
        assert failure.rank is not None
        same = [other for other in self._losses.values() if signature(other)[1:] == signature(failure)[1:]]
        return bool(signature(failure) and same) or self._places.starts(failure.rank) >= MAX_STARTS

    def _say_lost(self, failure: Failure, pause_s: float, was_member: bool) -> None:
        count = len(self._memberships.ranks)
        if was_member:
            text = f"{failure.text}; {count} rank{'s continue' if count != 1 else ' continues'}"
        else:
            text = f"{failure.text}; it is started again{f' in {pause_s:g} s' if pause_s else ''}"
        assert failure.rank is not None
        if self._said_last.get(failure.rank) != failure.text:
            self._said_last[failure.rank] = failure.text
            self._console.say(text)

    def _end_by_losses(self, last: Failure) -> None:
        """Too few ranks are left: the job ends as one that does not survive, by the failure that came first."""
        for failure in [*(other for other in self._losses.values() if other is not last), last]:
            super()._on_rank_failure(failure)
        self._decide_if_all_ended()

    def _drop(self, number: int) -> None:
        """End a rank; from now on its process is not the job's."""
        connection, process = self._ranks.pop(number, None), self._started.pop(number, None)
        if connection:
            connection.kill()
        if process:
            start_task(self._processes.retire(process))

    def _host_of(self, number: int) -> str:
        """The host of a rank, as its agent names it if it has registered."""
        place = self._places.of(number)
        connection = self._ranks.get(number)
        return connection.host if connection else place.host if place else ""

    # Changes of the hosts, and the end.

    def _on_hosts(self, hosts: tuple[Host, ...]) -> None:
        """These hosts have slots now."""
        for place in self._places.update(hosts):
            self._lose(place.rank, Failure(f"{place.host} has no slot for it any more"))
        self._start_due()

    def _request_stop(self, number: int) -> None:
        super()._request_stop(number)
        self._end_newcomers()
        if self._memberships.awaited:  # nothing has begun, and ranks that wait for others do not answer
            self._fail(Failure(f"ended by {signal_name(number)}"), interrupted_status(number))

    def _ended(self) -> bool:
        """Whether all ranks have ended that are to end by themselves."""
        if not (self._failure or self._memberships.finished):
            return False
        return all(rank.disconnected for rank in self._ranks.values())
