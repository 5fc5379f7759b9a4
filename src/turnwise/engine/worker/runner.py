"""The runner of one chat: state in, job started or cancelled."""

from __future__ import annotations

import asyncio
from typing import Final

import anyio

from turnwise.engine.isolation.clock import sleep
from turnwise.engine.isolation.user_code import is_the_engines
from turnwise.engine.jobs.compact import CompactionJob
from turnwise.engine.jobs.endings import Failure, SettleJob
from turnwise.engine.jobs.leased_chat import ConcurrentTransition, LeasedChat
from turnwise.engine.jobs.run_tools import ToolJob
from turnwise.engine.jobs.stream_step import StepJob
from turnwise.logger import concerning, logger
from turnwise.states.decide import job_of
from turnwise.states.errors import StoreError, TurnwiseError
from turnwise.states.facts import Facts
from turnwise.states.names import Job
from turnwise.states.triggers import Released

IDLE_ROUNDS: Final = 6
"""Jobs in a row without progress after which the worker gives the chat up."""
IDLE_PAUSE_S: Final = 0.1
"""Doubles with each such round."""
JOBS: Final[dict[Job, type[StepJob | ToolJob | CompactionJob | SettleJob]]] = {
    Job.stream_step: StepJob,
    Job.run_tools: ToolJob,
    Job.compact: CompactionJob,
    Job.settle: SettleJob,
}


class Runner:
    """Runs the jobs of a chat while this worker holds it.

    A cancelled job does not know why; the facts show it. If they say `interrupted`, the next job settles; if the lease
    is lost, nothing more is written; if the worker was asked to let go, or cancelled itself, `released` is fired.
    """

    def __init__(self, leased: LeasedChat) -> None:
        self.leased = leased
        self._scope: anyio.CancelScope | None = None
        self._let_go = False
        self._idle_rounds = 0
        """Jobs in a row without progress."""

    async def run(self) -> None:
        """Run job after job until the chat needs none, or another worker holds it."""
        try:
            with concerning(lambda: self.leased.facts):
                await self._run_jobs()
                if self._let_go or self.leased.ended:
                    await self._release()
        except asyncio.CancelledError:  # the event loop ends, and has cancelled all of its tasks
            await self._release()
            raise
        finally:
            await self.leased.deps.close()

    async def _run_jobs(self) -> None:
        while self._next_job() is not None and not self._let_go:
            with anyio.CancelScope() as self._scope:
                while (job := self._next_job()) is not None and not self._scope.cancel_called:
                    if not self.leased.runtime.agents.can_run(self.leased.facts):
                        self._let_go = True  # it was given to an agent that others run
                        break
                    self.leased.job, version = job, self.leased.facts.version
                    await self._run(job)
                    await self._await_progress(job, version)

    async def _await_progress(self, job: Job, version: int) -> None:
        """Wait, longer each time, before a job without progress runs again; then give up."""
        if self.leased.facts.version != version or self._next_job() is not job:
            self._idle_rounds = 0
            return
        self._idle_rounds += 1
        if self._idle_rounds == 1:
            return  # another process may have changed the chat in the same moment
        logger.warning("job_made_no_progress", job=job, rounds=self._idle_rounds)
        if self._idle_rounds >= IDLE_ROUNDS:
            self.leased.give_up()
            return
        await sleep(self.leased.runtime.clock, IDLE_PAUSE_S * 2.0**self._idle_rounds)

    def observe(self, facts: Facts, *, known: Facts | None = None) -> None:
        """Update the facts; cancel the job if others have moved the chat out of its state.

        Ignore reads while our own commit is in flight: they may show our own change.
        """
        leased = self.leased
        leased.observe(facts, known=known)
        if not leased.is_committing and not leased.has_committed(leased.facts) and self._next_job() is not leased.job:
            self._cancel_job()

    def let_go(self) -> None:
        """Cancel the job and release the chat for another worker."""
        self._let_go = True
        self._cancel_job()

    def end(self) -> None:
        """End this lease here: another one was granted for the chat."""
        if self.leased.holds:
            self.leased.give_up()
            self._cancel_job()

    def run_out(self) -> None:
        """Stop streaming and running tools: the lease was not renewed in time, and may be another worker's by now.

        A commit that waits for the store is still tried.
        """
        logger.warning("lease_ran_out", chat_id=self.leased.chat_id, problem="the store was out of reach for too long")
        self.leased.ended = True
        if not self.leased.is_firing:
            self._cancel_job()
        elif self.leased.stop_calls is not None:
            self.leased.stop_calls()

    def _cancel_job(self) -> None:
        if self._scope is not None:
            self._scope.cancel()

    def _next_job(self) -> Job | None:
        return None if self.leased.lost else job_of(self.leased.facts)

    async def _run(self, job: Job) -> None:
        leased = self.leased
        try:
            await leased.ask_again()
            await JOBS[job](leased).run()
        except ConcurrentTransition:
            logger.debug("chat_moved", job=job)
        except BaseException as error:
            if is_the_engines(error):
                raise
            if isinstance(error, StoreError) and error.passing:
                self._put_off(error, job)
                return
            logger.exception("job_failed", error=error, job=job)
            await Failure(self.leased).commit(error)

    def _put_off(self, away: StoreError, job: Job) -> None:
        """Give the chat up unchanged, for a worker that reaches the store: most likely this one again."""
        logger.warning("job_put_off", job=job, problem=str(away))
        self.leased.runtime.writer.broadcaster.fail(self.leased.chat_id, away)
        self.leased.give_up()

    async def _release(self) -> None:
        leased = self.leased
        if not leased.holds or job_of(leased.facts) is None:
            return
        try:
            usage = None if leased.attempt is None else leased.attempt.usage
            released = Released(token=leased.token, usage=usage)
            await leased.runtime.writer.commit(leased.chat_id, released, actor=leased.runtime.actor)
        except TurnwiseError as error:
            logger.info("not_released", problem=str(error))
