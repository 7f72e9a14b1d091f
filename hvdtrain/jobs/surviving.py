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
from hvdtrain.jobs.supervisor import Supervisor
from hvdtrain.system import rank_info
from hvdtrain.system.agent_pipe import FINISHED, READY, WAITS, Excluded, NotRunning, OpenedRun, Reached, Said
from hvdtrain.system.membership import Member, Membership
from hvdtrain.system.processes import describe_status, shell_status
from hvdtrain.system.run_end import Failure

MAX_STARTS = 4
"""How often a rank is started, until the job has begun."""
READY_LIMITS = 5  # times --start-timeout: ranks may prepare their work for so much longer than the first


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
        self._record: dict[str, Any] = {}
        """That membership, as its members get it."""
        self._said_last: dict[int, str] = {}

    async def _start_processes(self, address: str) -> None:
        self._processes.prepare(address)
        if self._survival.hostfile:
            watched = self._survival.hostfile, self._job.hosts, self._on_hosts, self._console.say
            self._limits.append(start_task(host_changes.watch(*watched)))
        self._start_due()

    @property
    def _takes_new_ranks(self) -> bool:
        ends = self._memberships.begun and (self._stops or self._memberships.finished)
        return not (self._failure or self._requested or ends)

    @property
    def _may_lose(self) -> bool:
        """Whether the job goes on when a rank is lost: others train, or it is started again."""
        goes_on = self._memberships.begun or self._takes_new_ranks
        return goes_on and not (self._failure or self._memberships.finished)

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
        if self._places.of(place.rank) is not place or not self._takes_new_ranks:  # it is not wanted any more
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

    def _take(self, rank: RankConnection, said: Said) -> None:
        if not self._is_current(rank):
            return
        match said:
            case Reached():
                self._on_reached(rank, said)
            case NotRunning() if said.rank in self._memberships.ranks and said.rank in self._ranks:
                place = self._places.of(said.rank)
                if isinstance(said, Excluded) and place:
                    self._places.exclude(place.host)
                self._lose(said.rank, Failure(said.reason))
            case OpenedRun():
                self._opened(said)
            case Failure():
                super()._take(rank, said)

    def _on_ready(self, rank: RankConnection, after: int) -> None:
        begun, is_first = self._memberships.begun, not self._memberships.number
        is_member = rank.number in self._memberships.ranks
        if self._requested and not begun:
            self._end_by_request(max(self._requested))
        if self._failure or (begun and not is_member and not self._takes_new_ranks):
            return
        local_rank, address, port = (rank.hello[name] for name in ("local_rank", "address", "port"))
        member = Member(rank.number, rank.host, int(local_rank), str(address), int(port))
        membership = self._memberships.ready(member, after)
        if not membership:
            self._fail_if_incomplete()
            self._await_others(rank)
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

    def _await_others(self, first: RankConnection, waited_s: float = 0.0) -> None:
        """Before the first membership, start ranks again that are not ready long after this one; each time anew."""
        if self._is_current(first) and not self._memberships.number:
            for number in self._memberships.awaited_by(first.number) if waited_s else ():
                self._lose(number, Failure(f"was not ready within {waited_s:g} s after rank {first.number}"))
            limit_s = READY_LIMITS * self._job.start_timeout_s
            self._limits.append(call_after(limit_s, lambda: self._await_others(first, limit_s)))

    def _on_reached(self, rank: RankConnection, said: Reached) -> None:
        self._memberships.reached(rank.number, said)
        if said.stage == READY:
            self._on_ready(rank, said.number)
        elif said.stage == FINISHED:
            self._on_finish(rank.number)
        elif said.stage == WAITS and said.number == self._memberships.number:
            for number in self._memberships.silent(rank.number):
                self._lose(number, Failure("does not run: it is stopped, or its host is down"))
            self._tell()

    def _publish(self, membership: Membership) -> None:
        """Tell all members."""
        if self._store:
            self._store.close()
        self._store = gloo.Store(self._listening, ranks=len(membership.members))
        self._record = membership._replace(store=("", self._store.port)).record()
        self._tell()

    def _tell(self) -> None:
        for number in self._memberships.ranks:
            self._ranks[number].send(membership=self._record)

    def _on_message(self, rank: RankConnection, message: Message) -> None:
        if "cannot_start" in message and self._is_current(rank) and self._memberships.number:
            self._lose(rank.number, Failure.from_record(message["cannot_start"]))  # it may start on another host
            return
        if "program_ended" in message and self._is_lost(rank, status := int(message["program_ended"])):
            failure = rank.failure or Failure(last_lines=tuple(rank.output.tail) if status > 0 else ())
            self._lose(rank.number, failure._replace(status=status))
        super()._on_message(rank, message)

    def _is_lost(self, rank: RankConnection, status: int) -> bool:
        """Whether the job may go on without a rank whose program has ended; what it printed may not be read yet."""
        if not self._is_current(rank) or not self._may_lose or not status:
            return False
        if not self._memberships.may_train(rank.number):
            return True
        if status == Stopped.exit_status:
            return False
        said = rank.failure
        # What a program of another kind says about its end is in its last lines.
        return status < 0 or bool(said and said.retry is not False and status != UserError.exit_status)

    def _on_rank_end(self, rank: RankConnection) -> None:
        if not self._is_current(rank):
            rank.output.close()
            return
        if not self._memberships.may_train(rank.number):
            self._lose(rank.number, Failure("ended before it joined", status=rank.status))
            return
        if rank.status == 0 or self._has_stopped(rank):
            self._on_finish(rank.number)
        super()._on_rank_end(rank)

    def _on_finish(self, number: int) -> None:
        """A rank has completed its training, or has ended well. It is awaited, and from now on so are all others."""
        self._memberships.has_finished(number)
        self._fail_if_incomplete()
        self._end_newcomers()

    def _fail_if_incomplete(self) -> None:
        """End the job where ranks wait before training begins, and another one has ended."""
        if self._memberships.finished and self._memberships.awaited:
            ended = next(rank for rank in self._ranks.values() if rank.status == 0 or self._has_stopped(rank))
            reason = "ended before training began, for which other ranks wait"
            self._fail(Failure(reason, rank=ended.number, host=ended.host), ended.status or 1)

    def _end_newcomers(self) -> None:
        """End the ranks that have not joined, once the job has begun: they are not needed any more.

        Those that train may wait for one of them, or where a rank was lost at the very end, for ranks that have ended.
        """
        for number in self._started.keys() | self._ranks.keys():
            if not self._memberships.may_train(number):
                self._drop(number)
        if not self._failure and (membership := self._memberships.left()):
            self._publish(membership)

    def _on_rank_failure(self, failure: Failure) -> None:
        """The agent of a rank has disconnected, or its program has ended: it is lost, if it may be."""
        rank, at_fault = failure.rank, failure.retry is False or failure.status == UserError.exit_status
        if (at_fault and failure.status is not None) or rank not in self._ranks:
            super()._on_rank_failure(failure)
        else:
            self._lose(rank, failure, answers=self._ranks[rank].host_answers)

    def _lose(self, number: int, failure: Failure, answers: bool = True) -> None:
        """A rank is lost. answers: whether its host is known to be there."""
        connection, place = self._ranks.get(number), self._places.of(number)
        failure = failure._replace(rank=number, host=connection.host if connection else place.host if place else "")
        was_member = number in self._memberships.ranks
        if not self._may_lose:
            super()._on_rank_failure(failure)
            return
        self._drop(number)
        if not place:
            return
        if not answers:  # a rank may go where none began
            self._places.add(self._survival.allocation)
        pause_s = self._places.release(number, asyncio.get_running_loop().time(), answers)
        again = self._is_repeated(number, failure)
        self._losses[number] = failure
        if membership := self._memberships.lost(number, failure.reason or failure.how):
            self._publish(membership)
        if self._memberships.too_few or (not self._memberships.number and again):
            for each in [*self._losses.values()]:  # the job ends as one that does not survive, by the first failure
                super()._on_rank_failure(each)
            self._decide_if_all_ended()
            return
        self._start_due()
        self._say_lost(number, failure, pause_s, was_member)
        if self._ended():
            self._over.set()

    def _is_repeated(self, number: int, failure: Failure) -> bool:
        """Whether another start of ranks would end in the same way, before the job has begun."""
        same = [other for other in self._losses.values() if signature(other)[1:] == signature(failure)[1:]]
        return bool(signature(failure) and same) or self._places.starts(number) >= MAX_STARTS

    def _say_lost(self, number: int, failure: Failure, pause_s: float, was_member: bool) -> None:
        count, text = len(self._memberships.ranks), failure.text
        if was_member:
            text += f"; {count} rank{'s continue' if count != 1 else ' continues'}"
        elif self._places.of(number) or pause_s:
            text += f"; it is started again{f' in {pause_s:g} s' if pause_s else ''}"
        if self._said_last.get(number) != failure.text and not self._asked(failure):
            self._said_last[number] = failure.text
            self._console.say(text)

    def _drop(self, number: int) -> None:
        """End a rank; from now on its process is not the job's."""
        connection, process = self._ranks.pop(number, None), self._started.pop(number, None)
        if connection:
            connection.kill()
        if process:
            start_task(self._processes.retire(process))

    def _on_hosts(self, hosts: tuple[Host, ...]) -> None:
        """These hosts have slots now."""
        if not self._takes_new_ranks:
            return
        if not self._memberships.number and (slots := sum(host.slots for host in hosts)) < self._job.ranks:
            self._fail_at_start(f"{self._job.ranks} ranks, but {slots} slot(s) are left", "name more slots or hosts")
        for place in self._places.update(hosts):
            self._lose(place.rank, Failure(f"{place.host} has no slot for it any more"))
        self._start_due()

    def _request_stop(self, number: int) -> None:
        super()._request_stop(number)
        self._end_newcomers()
        # Nothing has begun: ranks that wait for others do not answer, and none is started any more.
        if self._memberships.awaited or not (self._memberships.number or len(self._ranks) == self._job.ranks):
            self._end_by_request(number)

    def _ended(self) -> bool:
        """Whether all ranks have ended, and none is to be started."""
        if self._takes_new_ranks:
            return not self._memberships.begun and super()._ended()
        return all(rank.disconnected for rank in self._ranks.values())
