"""The Wyoming server of a provider: connections, their utterances, and what ends them.

An utterance is `transcribe`, `audio-start`, `audio-chunk`s and `audio-stop`, answered by `transcript`. Two additions,
all inside `context`, are described in docs/voice-engines.md: the grammar that a transcript is scored against, and
`voice-stopped` in the middle of an utterance, which asks whether what was heard is a whole sentence.
"""

import asyncio
import concurrent.futures
import contextlib
import sys

from . import grammar as grammars
from . import programs, speech, wire, work
from .utterance import CHANNELS, MILLISECOND, RATE, WIDTH, Refused, Utterance, refused_when_busy

# Samples of a chunk of spoken sound.
CHUNK_SAMPLES = 2048
# What a connection has instead of a request whose audio is to come, after it was refused.
REFUSED = object()


class Server:
    """What the connections of a process share."""

    def __init__(self, engine, limits, on_drain=lambda: None):
        self.engine, self.limits = engine, limits
        self.recogniser = work.Worker("recogniser", limits.queue_max)
        self.voice = work.Worker("voice", limits.queue_max)
        # Listeners of several utterances are fed side by side.
        self.ears = concurrent.futures.ThreadPoolExecutor(2, "ear")
        self.connections, self.utterances, self.done, self.is_draining = set(), 0, 0, False
        self.grammars = asyncio.Lock()
        self._on_drain, self._listening, self._left = on_drain, None, asyncio.Event()

    async def run(self, socket):
        """Serves until the process is used up or the task is cancelled."""
        self._listening = await asyncio.start_server(self._accept, sock=socket, limit=self.limits.line_bytes_max)
        try:
            while not (self.is_draining and not self.connections):
                self._left.clear()
                await self._left.wait()
        finally:
            await self.close()

    async def close(self):
        """Ends all connections and threads."""
        self._listening.close()
        for connection in list(self.connections):
            connection.task.cancel()
        await asyncio.gather(*(one.task for one in self.connections), return_exceptions=True)
        await asyncio.to_thread(self.recogniser.close)
        await asyncio.to_thread(self.voice.close)
        self.ears.shutdown(cancel_futures=True)

    def count_work(self):
        """One utterance or text is done. After so many, or with too much memory, the process drains."""
        self.done += 1
        if self.done >= self.limits.work_max:
            self.drain(f"{self.done} utterances and texts")
        elif resident_megabytes() > self.limits.memory_megabytes_max:
            self.drain(f"{resident_megabytes()} MB of memory")

    def drain(self, reason):
        """Accepts no more connections; those that are there end when they are idle."""
        if self.is_draining:
            return
        print(f"provider: is replaced after {reason}", file=sys.stderr, flush=True)
        self.is_draining = True
        self._listening.close()
        self._on_drain()
        self._left.set()
        for connection in list(self.connections):
            connection.end_if_idle()

    async def _accept(self, reader, writer):
        connection = Connection(self, reader, writer)
        if len(self.connections) >= self.limits.connections_max:
            with contextlib.suppress(Exception):
                await connection.fail("apus-busy", f"{len(self.connections)} connections already")
            writer.close()
            return
        self.connections.add(connection)
        connection.task = asyncio.current_task()
        try:
            await connection.run()
        except asyncio.CancelledError:
            pass  # the server ends it; nobody waits for this task
        finally:
            self.connections.discard(connection)
            self._left.set()
            writer.close()


def resident_megabytes():
    """The resident memory of the process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096 // (1 << 20)


class Connection:
    """One client. Its events are handled one after the other."""

    def __init__(self, server, reader, writer):
        self._server, self._reader, self._writer, self.task = server, reader, writer, None
        self._utterance = self._detection = self._spoken = self._transcribe = None
        self._waits_for_event, self._has_begun = False, False

    async def run(self):
        """Handles events until the client leaves."""
        limits = self._server.limits
        try:
            while not (self._server.is_draining and self._is_idle):
                idle = (limits.silence_seconds_max if self._utterance or self._transcribe else
                        limits.event_seconds_max if self._server.is_draining else None)
                self._waits_for_event = True
                try:
                    event = await wire.read(self._reader, limits, idle)
                except TimeoutError:
                    if self._server.is_draining:
                        return
                    self._drop_utterance()
                    await self.fail("apus-timeout", f"no event for {limits.silence_seconds_max} s in an utterance")
                    continue
                finally:
                    self._waits_for_event = False
                if event is None:
                    return
                self._has_begun = True
                await self._handle(event)
        except wire.WireError as error:
            with contextlib.suppress(OSError, TimeoutError):
                await self.fail("apus-bad-event", str(error))
        except (OSError, TimeoutError):
            pass  # the client has left, or does not take what it asked for
        finally:
            self._drop_utterance()
            self._drop_detection()

    def end_if_idle(self):
        """Ends the connection of a client that asks for nothing at the moment."""
        if self._is_idle and self._waits_for_event and self.task is not asyncio.current_task():
            self.task.cancel()

    @property
    def _is_idle(self):
        # A client that has just connected is about to ask.
        return (self._has_begun and self._utterance is None and self._transcribe is None and self._detection is None
                and self._spoken is None)

    async def send(self, kind, data=None, payload=b""):
        """Sends an event."""
        await wire.write(self._writer, wire.Event(kind, data, payload), self._server.limits)

    async def fail(self, code, text):
        """Sends an error."""
        await self.send("error", {"text": text, "code": code})

    async def _handle(self, event):
        handler = HANDLERS.get(event.kind)
        if handler is None:
            return  # the protocol asks servers to ignore what they do not know
        try:
            await handler(self, event)
        except Refused as error:
            await self.fail(error.code, str(error))
        except grammars.GrammarError as error:
            await self.fail("apus-bad-grammar", str(error))
        except (OSError, TimeoutError, wire.WireError):
            raise
        except Exception as error:  # an engine that fails must not end the process
            print(f"provider: {event.kind} failed: {error!r}", file=sys.stderr, flush=True)
            self._drop_utterance()
            await self.fail("apus-failed", f"{event.kind} failed")

    async def _describe(self, event):
        await self.send("info", programs.info(self._server.engine))

    async def _ping(self, event):
        await self.send("pong", {"text": event.data["text"]} if isinstance(event.data.get("text"), str) else {})

    # Recognition

    async def _on_transcribe(self, event):
        self._drop_utterance()
        self._drop_detection()
        self._transcribe = REFUSED
        self._transcribe = (await self._grammar_of(event),)

    async def _grammar_of(self, event):
        """The grammar that an event names or has; none for free text."""
        context = event.data.get("context")
        additions = context.get("apus") if isinstance(context, dict) else None
        if not isinstance(additions, dict) or "grammar" not in additions:
            return None
        name, sentences = additions["grammar"], additions.get("sentences")
        engine = self._server.engine
        known = engine.grammar(name) if isinstance(name, str) else None
        if known is not None:
            return known
        if sentences is None:
            raise Refused("apus-grammar-unknown", "send the sentences of the grammar")
        if not isinstance(sentences, list) or not all(isinstance(text, str) for text in sentences):
            raise grammars.GrammarError("sentences is not a list of texts")
        jsgf = additions.get("jsgf")
        if jsgf is not None and not isinstance(jsgf, str):
            raise grammars.GrammarError("jsgf is not a text")
        if grammars.digest(sentences, jsgf) != name:
            raise grammars.GrammarError("grammar is not the hash of its sentences")
        async with self._server.grammars:  # one at a time, since it takes seconds of processor time
            return await asyncio.to_thread(engine.add_grammar, sentences, name)

    async def _on_audio_start(self, event):
        if self._detection is not None or self._transcribe is REFUSED:
            return  # the audio of a request that was refused is passed over
        check_format(event)
        if self._transcribe is None:
            raise Refused("apus-no-request", "audio without transcribe or detect before it")
        request = self._transcribe
        self._drop_utterance()
        server = self._server
        if server.utterances >= server.limits.utterances_max:
            self._transcribe = REFUSED
            raise Refused("apus-busy", f"{server.utterances} utterances already")
        self._utterance = Utterance(server, request[0])

    async def _on_audio_chunk(self, event):
        if self._detection is not None:
            check_format(event)
            await self._detect(event)
        elif self._utterance is not None:
            check_format(event)
            if not self._utterance.add(event.payload):
                self._drop_utterance()
                self._transcribe = REFUSED
                raise Refused("apus-audio-too-long", f"more than {self._server.limits.audio_seconds_max} s of audio")

    async def _on_audio_stop(self, event):
        if self._detection is not None:
            was_found = self._detection.was_found
            self._drop_detection()
            if not was_found:
                await self.send("not-detected")
            return
        if self._utterance is None:
            self._transcribe = None
            return
        utterance = self._utterance
        try:
            heard, result = await self._while_connected(utterance.finish())
            await self.send("transcript", {
                "text": result.text, "language": "en",
                "context": {"apus": {
                    "candidates": [{"text": one.text, "score": round(one.score, 3)} for one in result.candidates],
                    "free": result.free, "whole": bool(result.text) or heard.is_whole,
                    "milliseconds": result.milliseconds}}})
        finally:
            self._drop_utterance()
            self._server.count_work()

    async def _on_voice_stopped(self, event):
        if self._utterance is not None:
            heard, milliseconds = await self._utterance.ask()
            await self.send("transcript-chunk", {
                "text": heard.text if heard else "",
                "context": {"apus": {"whole": bool(heard and heard.is_whole),
                                     "beginning": bool(heard and heard.is_beginning), "audio_ms": milliseconds}}})

    async def _on_voice_started(self, event):
        if self._utterance is not None:
            self._utterance.resume()

    async def _while_connected(self, work_to_do):
        """The result of something, unless the client leaves meanwhile: then the work is cancelled.

        A client that closes only its sending half counts as one that has left.
        """
        task = asyncio.ensure_future(work_to_do)
        gone = asyncio.ensure_future(self._client_gone())
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ConnectionResetError
            return await task
        finally:
            task.cancel()
            gone.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)

    async def _client_gone(self):
        while not self._reader.at_eof() and not self._writer.is_closing():
            await asyncio.sleep(0.02)

    def _drop_utterance(self):
        self._transcribe = None
        if self._utterance is not None:
            self._utterance.drop()
            self._utterance = None

    # Wake phrases

    async def _on_detect(self, event):
        self._drop_utterance()
        self._drop_detection()
        self._transcribe = None
        engine, names = self._server.engine, event.data.get("names")
        known = engine.phrases()
        if names is not None and (not isinstance(names, list)
                                  or not all(isinstance(name, str) and name in known for name in names)):
            raise Refused("apus-unknown-phrase", f"the phrases are {', '.join(known)}")
        self._detection = Detection(await asyncio.to_thread(engine.detector, names or list(known)))

    async def _detect(self, event):
        detection = self._detection
        found = await asyncio.get_running_loop().run_in_executor(
            self._server.ears, detection.detector.feed, event.payload)
        detection.milliseconds += len(event.payload) // MILLISECOND
        if found is not None:
            detection.was_found = True
            timestamp = event.data.get("timestamp")
            await self.send("detection", {
                "name": found, "timestamp": timestamp if timestamp is not None else detection.milliseconds})

    def _drop_detection(self):
        if self._detection is not None:
            self._detection.detector.close()
            self._detection = None

    # Speech

    async def _on_synthesize(self, event):
        if self._spoken is not None:
            return  # repeats the text of synthesize-start for servers that do not stream
        text = self._text_of(event, 0)
        await self._speak(speech.parts(text), is_first=True)
        await self.send("audio-stop")
        self._server.count_work()

    async def _on_synthesize_start(self, event):
        self._spoken = Spoken()

    async def _on_synthesize_chunk(self, event):
        spoken = self._spoken
        if spoken is None:
            return
        text = self._text_of(event, spoken.size)
        spoken.size += len(text.encode())
        ready, spoken.rest = speech.complete(spoken.rest + text)
        for sentence in ready:
            await self._speak([sentence] if spoken.has_begun else speech.parts(sentence), not spoken.has_begun)
            spoken.has_begun = True

    async def _on_synthesize_stop(self, event):
        spoken = self._spoken
        if spoken is None:
            return
        rest = speech.parts(spoken.rest)
        if rest or not spoken.has_begun:
            await self._speak(rest, not spoken.has_begun)
        self._spoken = None
        await self.send("audio-stop")
        await self.send("synthesize-stopped")
        self._server.count_work()

    def _text_of(self, event, size):
        text = event.data.get("text")
        if not isinstance(text, str):
            raise Refused("apus-bad-text", "text is missing")
        size += len(text.encode(errors="replace"))
        if size > self._server.limits.text_bytes_max:
            self._spoken = None
            raise Refused("apus-text-too-long", f"{size} bytes, at most {self._server.limits.text_bytes_max}")
        return text

    async def _speak(self, parts, is_first):
        rate = self._server.engine.voice_rate
        form = {"rate": rate, "width": WIDTH, "channels": 1}
        for part in parts:
            job = refused_when_busy(self._server.voice.submit, lambda _, part=part: self._server.engine.speak(part))
            try:
                sound = await self._while_connected(asyncio.wrap_future(job.future))
            finally:
                job.cancel()
            if is_first:
                await self.send("audio-start", form)
                is_first = False
            for start in range(0, len(sound), CHUNK_SAMPLES * WIDTH):
                await self.send("audio-chunk", form, sound[start:start + CHUNK_SAMPLES * WIDTH])
        if is_first:
            await self.send("audio-start", form)


HANDLERS = {
    "describe": Connection._describe, "ping": Connection._ping, "transcribe": Connection._on_transcribe,
    "audio-start": Connection._on_audio_start, "audio-chunk": Connection._on_audio_chunk,
    "audio-stop": Connection._on_audio_stop, "voice-stopped": Connection._on_voice_stopped,
    "voice-started": Connection._on_voice_started, "detect": Connection._on_detect,
    "synthesize": Connection._on_synthesize, "synthesize-start": Connection._on_synthesize_start,
    "synthesize-chunk": Connection._on_synthesize_chunk, "synthesize-stop": Connection._on_synthesize_stop,
}


def check_format(event):
    """Refuses audio of another format than 16 kHz, 16 bits, one channel."""
    data = event.data
    form = (data.get("rate", RATE), data.get("width", WIDTH), data.get("channels", CHANNELS))
    if form != (RATE, WIDTH, CHANNELS) or len(event.payload) % WIDTH:
        raise Refused("apus-audio-format", "audio is 16000 Hz, 16 bits, one channel")


class Detection:
    """A stream of audio in which wake phrases are looked for."""

    def __init__(self, detector):
        self.detector, self.milliseconds, self.was_found = detector, 0, False


class Spoken:
    """A text that arrives in pieces and is spoken meanwhile."""

    def __init__(self):
        self.rest, self.size, self.has_begun = "", 0, False
