"""One utterance of a connection, and what hears and recognises it."""

import asyncio
import concurrent.futures
import contextlib
import functools

from . import work

# The only format of audio that is heard: 16 kHz, 16 bits, one channel.
RATE, WIDTH, CHANNELS = 16000, 2, 1
MILLISECOND = RATE * WIDTH // 1000


class Refused(Exception):
    """A request that is answered with an error; the connection stays open."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def refused_when_busy(function, *arguments, **options):
    """Calls a function that queues work."""
    try:
        return function(*arguments, **options)
    except work.Busy as error:
        raise Refused("apus-busy", str(error)) from error


class Utterance:
    """One utterance: its audio, the listener that hears along, and the recognition ahead of time."""

    def __init__(self, server, grammar):
        self._server, self._grammar = server, grammar
        self._audio, self._fed, self._heard = bytearray(), 0, None
        self._early, self._early_heard = None, None
        self._changed, self._advanced = asyncio.Event(), asyncio.Event()
        server.utterances += 1
        self._hearing = asyncio.ensure_future(self._hear()) if grammar is not None else None

    def add(self, audio):
        """More audio. False if the utterance is longer than allowed."""
        if len(self._audio) + len(audio) > self._server.limits.audio_seconds_max * 1000 * MILLISECOND:
            return False
        self._audio += audio
        self._changed.set()
        return True

    async def ask(self):
        """What was heard up to now, and the milliseconds of audio; begins to recognise it. None if that takes long."""
        length = len(self._audio)
        heard = None
        if self._hearing is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._server.limits.question_milliseconds_max / 1000):
                    heard = await self._heard_until(length)
        self._recognise_early(length, heard)
        return heard, length // MILLISECOND

    def resume(self):
        """Speech goes on: what was recognised ahead of time is not the utterance."""
        if self._early is not None:
            self._early.cancel()
            self._early = None

    async def finish(self):
        """What was heard and recognised at the end of the utterance. Fails with Refused if the queue is full."""
        length = len(self._audio)
        if self._early is not None:
            self._early.is_urgent = True
            try:
                return self._early_heard, await asyncio.wrap_future(self._early.future)
            except (asyncio.CancelledError, concurrent.futures.CancelledError):
                if asyncio.current_task().cancelling():
                    raise
        heard = await self._heard_until(length) if self._hearing is not None else NOTHING
        self._early = refused_when_busy(
            self._server.recogniser.submit,
            functools.partial(self._server.engine.recognise, self._grammar, heard, bytes(self._audio)))
        return heard, await asyncio.wrap_future(self._early.future)

    def drop(self):
        """Frees what the utterance holds and cancels its work."""
        self.resume()
        if self._hearing is not None:
            self._hearing.cancel()
        self._audio = bytearray()
        self._server.utterances -= 1

    def _recognise_early(self, length, heard):
        if self._early is not None:
            return  # only silence has come since
        if self._grammar is not None and heard is None:
            return  # the listener is late: no work ahead of time under load
        run = functools.partial(self._server.engine.recognise, self._grammar, heard or NOTHING,
                                bytes(self._audio[:length]))
        with contextlib.suppress(work.Busy):
            self._early = self._server.recogniser.submit(run, is_urgent=False)
            self._early_heard = heard or NOTHING

    async def _heard_until(self, length):
        while self._fed < length or self._heard is None:
            if self._hearing.done():
                self._hearing.result()
                raise RuntimeError("the listener has ended")
            self._advanced.clear()
            await self._advanced.wait()
        return self._heard

    async def _hear(self):
        loop, ears, engine = asyncio.get_running_loop(), self._server.ears, self._server.engine
        opening = ears.submit(engine.listen, self._grammar)
        try:
            listener = await asyncio.wrap_future(opening)
            while True:
                while self._fed < len(self._audio) or self._heard is None:
                    # At most 200 ms at once, so that the listeners of several utterances take turns.
                    part = bytes(self._audio[self._fed:self._fed + 200 * MILLISECOND])
                    self._heard = await loop.run_in_executor(ears, feed, listener, part)
                    self._fed += len(part)
                    self._advanced.set()
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._advanced.set()
            if not opening.cancel():
                opening.add_done_callback(functools.partial(give_back, ears, engine))


def give_back(ears, engine, opening):
    """Releases the listener that was opened; after the step that it may be in."""
    if opening.exception() is None:
        with contextlib.suppress(RuntimeError):  # the process ends
            ears.submit(engine.release, opening.result())


def feed(listener, audio):
    """Gives a listener audio; what it has heard then."""
    listener.feed(audio)
    return listener.heard()


class Nothing:
    """What is heard of an utterance without a grammar."""

    text, is_whole, is_beginning, fit = "", False, False, -20.0


NOTHING = Nothing()
