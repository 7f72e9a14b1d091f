"""The ranks of a job that runs: where each is started, which of them train together, and which the job may lose.

An ordinary job loses none. Of one that survives, each rank has a process of its own, as horovodrun and srun would end
all ranks with one. A rank that is lost is reported at once: training stands still until the others know it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from hvdtrain.errors import Stopped, UserError
from hvdtrain.jobs import gloo, host_changes
from hvdtrain.jobs.agents import RankConnection, conflict_of
from hvdtrain.jobs.cause import signature
from hvdtrain.jobs.console import Console
from hvdtrain.jobs.event_loop import call_after, start_task
from hvdtrain.jobs.hosts import Host
from hvdtrain.jobs.job import Job
from hvdtrain.jobs.job_end import JobEnd
from hvdtrain.jobs.job_processes import JobProcesses, LauncherProcess
from hvdtrain.jobs.launchers import build_rank
from hvdtrain.jobs.memberships import MembershipLedger, Place, Places
from hvdtrain.jobs.protocol import NewMembership
from hvdtrain.system.agent_pipe import FINISHED, READY, WAITS, Excluded, NotRunning, Reached
from hvdtrain.system.membership import Member, Membership
from hvdtrain.system.processes import describe_status, shell_status
from hvdtrain.system.run_end import Failure

MAX_STARTS = 4
"""How often a rank is started, until the job has begun."""
READY_LIMITS = 5  # times --start-timeout: ranks may prepare their work for so much longer than the first


class RunningRanks:
    """The ranks of one job.

    address: on which the rendezvous servers of memberships listen. variables: of the process that launches.
    """

    def __init__(
        self,
        job: Job,
        address: str,
        variables: Mapping[str, str],
        processes: JobProcesses,
        ends: JobEnd,
        console: Console,
    ) -> None:
        self._job, self._address, self._variables = job, address, variables
        self._processes, self._ends, self._console = processes, ends, console
        self._ranks = ends.ranks
        self.ledger = MembershipLedger(job.ranks, job.needed_ranks)
        self.places = Places.of_job(job)
        self._started: dict[int, LauncherProcess] = {}
        self._losses: dict[int, Failure] = {}
        """Why ranks were lost that have not joined again."""
        self._store: gloo.Store | None = None
        self._membership: Membership | None = None
        """The newest, as its members get it."""

    @property
    def ended(self) -> bool:
        """Whether all ranks have ended, and none is to be started."""
        is_complete = len(self._ranks) == self._job.ranks or (self._job.survives and not self._takes_new_ranks)
        awaits_more = self._takes_new_ranks and self.ledger.begun
        return bool(is_complete and not awaits_more) and all(rank.disconnected for rank in self._ranks.values())

    @property
    def _takes_new_ranks(self) -> bool:
        ends = self.ledger.begun and (self._ends.stops or self.ledger.finished)
        return self._job.survives and not (self._ends.failure or self._ends.requested or ends)

    @property
    def _may_lose(self) -> bool:
        """Whether the job goes on when a rank is lost: others train, or it is started again."""
        goes_on = self.ledger.begun or self._takes_new_ranks
        return goes_on and not (self._ends.failure or self.ledger.finished)

    def is_current(self, rank: RankConnection) -> bool:
        """Whether the job has this process as its rank."""
        return self._ranks.get(rank.number) is rank

    def watch_hosts(self) -> None:
        """Start and end ranks as the hostfile changes, if the job may do so."""
        if self._job.hostfile:
            watched = self._job.hostfile, self._job.hosts, self._on_hosts, self._console.say
            self._ends.limits.append(start_task(host_changes.watch(*watched)))

    def start_due(self) -> None:
        """Start the ranks for which there is a place, and later those that wait."""
        if not self._takes_new_ranks:
            return
        now = asyncio.get_running_loop().time()
        for place in self.places.take(now):
            start_task(self._start(place))
        due_s = self.places.next_due(now)
        if due_s is not None:
            asyncio.get_running_loop().call_later(due_s, self.start_due)

    async def _start(self, place: Place) -> None:
        again = self.places.starts(place.rank) > 1
        spec = build_rank(self._job, self._variables, place)
        try:
            process = await self._processes.start_one(spec, quiet=again)
        except UserError as error:
            self.lose(place.rank, Failure.of_exception(error))
            return
        if self.places.of(place.rank) is not place or not self._takes_new_ranks:  # it is not wanted any more
            await self._processes.retire(process)
            return
        self._started[place.rank] = process
        if self._ends.running:
            self._ends.limits.append(call_after(self._job.start_timeout_s, lambda: self._on_late(process)))

    def _on_late(self, process: LauncherProcess) -> None:
        """A rank that was started again had time to register."""
        rank = process.rank
        if rank is not None and self._started.get(rank) is process and rank not in self._ranks:
            self.lose(rank, Failure(f"did not register within {self._job.start_timeout_s:g} s"), answers=False)

    def on_process_end(self, process: LauncherProcess, status: int) -> None:
        """The process that started a rank has ended before the rank registered."""
        rank = process.rank
        if rank is None or self._started.get(rank) is not process:
            return
        printed = f" ({process.last_lines[-1].strip()})" if process.last_lines else ""
        failure = Failure(f"its agent {describe_status(status)} before it registered{printed}")
        self.lose(rank, replace(failure, status=shell_status(status) or 1), answers=False)

    def takes(self, rank: RankConnection) -> bool:
        """Whether a rank that registers is one of the job; if not, it is ended."""
        place = self.places.of(rank.number)
        if not place or rank.number in self._ranks or not (self._takes_new_ranks or self._ends.failure):
            rank.end(at_once=True)
            return False
        self.places.answers(place.host)
        return True

    def fits(self, rank: RankConnection) -> bool:
        """Whether a rank that is started again can run with the others; else it is lost, and its host is not used."""
        self._ranks[rank.number] = rank
        conflict, place = conflict_of(self._ranks), self.places.of(rank.number)
        if conflict and place:
            self.places.exclude(place.host)
            self.lose(rank.number, conflict)
        return not conflict

    def on_not_running(self, said: NotRunning) -> None:
        """A member says that another one does not run."""
        if said.rank in self.ledger.ranks and said.rank in self._ranks:
            place = self.places.of(said.rank)
            if isinstance(said, Excluded) and place:
                self.places.exclude(place.host)
            self.lose(said.rank, Failure(said.reason))

    def _on_ready(self, rank: RankConnection, after: int) -> None:
        begun, is_first = self.ledger.begun, not self.ledger.number
        is_member = rank.number in self.ledger.ranks
        if self._ends.requested and not begun:
            self._ends.end_by_request(max(self._ends.requested))
        if self._ends.failure or (begun and not is_member and not self._takes_new_ranks):
            return
        hello = rank.hello
        member = Member(hello.rank, hello.host, hello.local_rank, hello.address, hello.port)
        membership = self.ledger.ready(member, after)
        if not membership:
            self._fail_if_incomplete()
            self._await_others(rank)
            return
        self._losses.pop(rank.number, None)
        self._publish(membership)
        if is_first:
            self._losses.clear()
            self.places.grow(self._job.max_ranks)
            self.places.add(self._job.spare)
            self.start_due()
        elif is_member:
            self._console.say(f"{rank.name} lost its connections; {len(membership.members)} ranks connect again")
        else:
            self._console.say(f"{rank.name} joins; {len(membership.members)} ranks")

    def _await_others(self, first: RankConnection, waited_s: float = 0.0) -> None:
        """Before the first membership, start ranks again that are not ready long after this one; each time anew."""
        if self.is_current(first) and not self.ledger.number:
            for number in self.ledger.awaited_by(first.number) if waited_s else ():
                self.lose(number, Failure(f"was not ready within {waited_s:g} s after rank {first.number}"))
            limit_s = READY_LIMITS * self._job.start_timeout_s
            self._ends.limits.append(call_after(limit_s, lambda: self._await_others(first, limit_s)))

    def on_reached(self, rank: RankConnection, said: Reached) -> None:
        self.ledger.reached(rank.number, said)
        if said.stage == READY:
            self._on_ready(rank, said.number)
        elif said.stage == FINISHED:
            self.on_finish(rank.number)
        elif said.stage == WAITS and said.number == self.ledger.number:
            for number in self.ledger.silent(rank.number):
                self.lose(number, Failure("does not run: it is stopped, or its host is down"))
            self._tell()

    def _publish(self, membership: Membership) -> None:
        if self._store:
            self._store.close()
        self._store = gloo.Store(self._address, ranks=len(membership.members))
        self._membership = membership._replace(store=("", self._store.port))
        self._tell()

    def _tell(self) -> None:
        for number in self.ledger.ranks:
            if self._membership:
                self._ranks[number].send(NewMembership(self._membership))

    def is_lost(self, rank: RankConnection, status: int) -> bool:
        """Whether the job may go on without a rank whose program has ended; what it printed may not be read yet."""
        if not self.is_current(rank) or not self._may_lose or not status:
            return False
        if not self.ledger.may_train(rank.number):
            return True
        if status == Stopped.exit_status or self._ends.has_stopped(rank):
            return False
        said = rank.failure
        # What a program of another kind says about its end is in its last lines.
        return status < 0 or bool(said and said.retry is not False and status != UserError.exit_status)

    def on_finish(self, number: int) -> None:
        """A rank has completed its training, or has ended well. It is awaited, and from now on so are all others."""
        self.ledger.has_finished(number)
        self._fail_if_incomplete()
        self.end_newcomers()

    def _fail_if_incomplete(self) -> None:
        """End the job where ranks wait before training begins, and another one has ended."""
        if self.ledger.finished and self.ledger.awaited:
            ended = next(rank for rank in self._ranks.values() if rank.status == 0 or self._ends.has_stopped(rank))
            reason = "ended before training began, for which other ranks wait"
            self._ends.fail(Failure(reason, rank=ended.number, host=ended.host), ended.status or 1)

    def end_newcomers(self) -> None:
        """End the ranks that have not joined, once the job has begun: they are not needed any more.

        Those that train may wait for one of them, or where a rank was lost at the very end, for ranks that have ended.
        """
        for number in self._started.keys() | self._ranks.keys():
            if not self.ledger.may_train(number):
                self._drop(number)
        if not self._ends.failure and (membership := self.ledger.left()):
            self._publish(membership)

    def on_rank_failure(self, failure: Failure) -> None:
        """The agent of a rank has disconnected, or its program has ended: it is lost, if it may be."""
        rank, at_fault = failure.rank, failure.retry is False or failure.status == UserError.exit_status
        if (at_fault and failure.status is not None) or rank not in self._ranks:
            self._ends.on_rank_failure(failure)
        else:
            self.lose(rank, failure, answers=self._ranks[rank].host_answers)

    def lose(self, number: int, failure: Failure, answers: bool = True) -> None:
        """A rank is lost. answers: whether its host is known to be there."""
        connection, place = self._ranks.get(number), self.places.of(number)
        failure = replace(failure, rank=number, host=connection.host if connection else place.host if place else "")
        was_member = number in self.ledger.ranks
        if not self._may_lose:
            self._ends.on_rank_failure(failure)
            return
        self._drop(number)
        if not place:
            return
        if not answers:  # a rank may go where none began
            self.places.add(self._job.spare)
        pause_s = self.places.release(number, asyncio.get_running_loop().time(), answers)
        again = self._is_repeated(number, failure)
        before, self._losses[number] = self._losses.get(number), failure
        if membership := self.ledger.lost(number, failure.reason or failure.how):
            self._publish(membership)
        if self.ledger.too_few or (not self.ledger.number and again):
            for each in [*self._losses.values()]:  # the job ends as one that does not survive, by the first failure
                self._ends.on_rank_failure(each)
            self._ends.decide_if_all_ended()
            return
        self.start_due()
        if not (before and before.text == failure.text) and not self._ends.asked(failure):
            self._say_lost(number, failure, pause_s, was_member)
        if self.ended:
            self._ends.over.set()

    def _is_repeated(self, number: int, failure: Failure) -> bool:
        """Whether another start of ranks would end in the same way, before the job has begun."""
        same = [other for other in self._losses.values() if signature(other)[1:] == signature(failure)[1:]]
        return bool(signature(failure) and same) or self.places.starts(number) >= MAX_STARTS

    def _say_lost(self, number: int, failure: Failure, pause_s: float, was_member: bool) -> None:
        count, text = len(self.ledger.ranks), failure.text
        if was_member:
            text += f"; {count} rank{'s continue' if count != 1 else ' continues'}"
        elif self.places.of(number) or pause_s:
            text += f"; it is started again{f' in {pause_s:g} s' if pause_s else ''}"
        self._console.say(text)

    def _drop(self, number: int) -> None:
        """End a rank; from now on its process is not the job's."""
        connection, process = self._ranks.pop(number, None), self._started.pop(number, None)
        if connection:
            connection.end(at_once=True)
        if process:
            start_task(self._processes.retire(process))

    def _on_hosts(self, hosts: tuple[Host, ...]) -> None:
        if not self._takes_new_ranks:
            return
        if not self.ledger.number and (slots := sum(host.slots for host in hosts)) < self._job.ranks:
            self._ends.fail_at_start(
                f"{self._job.ranks} ranks, but {slots} slot(s) are left", "name more slots or hosts"
            )
        for place in self.places.update(hosts):
            self.lose(place.rank, Failure(f"{place.host} has no slot for it any more"))
        self.start_due()
