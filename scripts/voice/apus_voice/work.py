"""A thread that does one job after the other, from a bounded queue."""

import concurrent.futures
import threading


class Busy(Exception):
    """The queue is full."""


def stepper(is_cancelled):
    """A function that does one step of some work, or fails with CancelledError if the work is cancelled."""
    def step(function, *arguments):
        if is_cancelled():
            raise concurrent.futures.CancelledError
        return function(*arguments)
    return step


class Job:
    """Work with a result. A cancelled job that runs ends at its next step."""

    def __init__(self, run, is_urgent):
        self._run = run
        self.is_urgent, self.is_cancelled = is_urgent, False
        self.future = concurrent.futures.Future()

    def cancel(self):
        """The result is not wanted any more."""
        self.is_cancelled = True
        self.future.cancel()

    def perform(self):
        """Runs the work in the thread of the caller."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self._run(lambda: self.is_cancelled))
        except Exception as error:  # the one who waits gets it
            self.future.set_exception(error)


class Worker:
    """Runs urgent jobs first, and of equal ones the oldest.

    Jobs that are not urgent are done ahead of time: they never keep an urgent one out of the queue.
    """

    def __init__(self, name, queue_max):
        self._queue_max, self._jobs = queue_max, []
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def submit(self, run, is_urgent=True):
        """Queues run(is_cancelled). Fails with Busy where the queue is full."""
        job = Job(run, is_urgent)
        with self._changed:
            self._jobs = [other for other in self._jobs if not other.is_cancelled]
            if len(self._jobs) >= self._queue_max:
                early = [other for other in self._jobs if not other.is_urgent]
                if not is_urgent or not early:
                    raise Busy(f"{len(self._jobs)} wait already")
                self._jobs.remove(early[-1])
                early[-1].cancel()
            self._jobs.append(job)
            self._changed.notify()
        return job

    def close(self):
        """Ends the thread after the job that runs; the others are cancelled."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _loop(self):
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._is_closed)
                if self._is_closed:
                    for job in self._jobs:
                        job.cancel()
                    return
                job = next((one for one in self._jobs if one.is_urgent), self._jobs[0])
                self._jobs.remove(job)
            job.perform()
