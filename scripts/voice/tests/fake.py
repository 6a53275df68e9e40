"""An engine without models, for tests of the protocol.

Audio is text: what is spoken is the bytes of a sentence, padded with zeros. So a test says what is heard.
"""

import pathlib
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from apus_voice import grammar as grammars
from apus_voice import limits, work


class FakeGrammar:
    """A checked grammar without sounds."""

    def __init__(self, sentences):
        self.name, self.sentences = grammars.digest(sentences), sentences
        self.network = grammars.WordNetwork(sentences)


class FakeListener:
    """Hears the words whose letters have arrived."""

    def __init__(self, grammar):
        self.grammar, self.audio = grammar, b""

    def feed(self, audio):
        self.audio += audio

    def heard(self):
        text = spoken(self.audio)
        return Heard(text, text in self.grammar.network.spoken, text in self.grammar.network.beginnings)


class Heard:
    """What a listener has heard."""

    def __init__(self, text, is_whole, is_beginning):
        self.text, self.is_whole, self.is_beginning = text, is_whole, is_beginning


class Candidate:
    """A sentence with its score."""

    def __init__(self, text, score):
        self.text, self.score = text, score


class Result:
    """What was recognised."""

    def __init__(self, text, candidates, free):
        self.text, self.candidates, self.free, self.milliseconds = text, candidates, free, 1


class FakeDetector:
    """Finds its names in the audio."""

    def __init__(self, names):
        self.names, self.is_closed = names, False

    def feed(self, audio):
        return next((name for name in self.names if name.encode() in audio), None)

    def close(self):
        self.is_closed = True


class Engine:
    """Answers at once, or waits for the event `may_recognise`."""

    voice_rate = 22050

    def __init__(self, bounds=None):
        self.limits = bounds or limits.Limits()
        self.store = grammars.GrammarStore(self.limits.grammars_max)
        self.may_recognise, self.may_listen = threading.Event(), threading.Event()
        self.may_recognise.set()
        self.may_listen.set()
        self.recognised, self.cancelled, self.listeners, self.detectors, self.spoken = [], 0, 0, [], []

    def grammar(self, name):
        return self.store.get(name)

    def add_grammar(self, sentences, name=None):
        grammar = FakeGrammar(grammars.check(sentences, self.limits))
        grammar.name = name or grammar.name
        self.store.put(grammar)
        return grammar

    def listen(self, grammar):
        self.may_listen.wait(10)
        self.listeners += 1
        return FakeListener(grammar)

    def release(self, listener):
        self.listeners -= 1

    def recognise(self, grammar, heard, audio, is_cancelled):
        text = spoken(audio)
        self.recognised.append(text)
        if text == "fail":
            raise ValueError("the engine fails")
        step = work.stepper(is_cancelled)
        try:
            while not step(self.may_recognise.is_set):
                time.sleep(0.002)
            if grammar is None:
                return Result(text, [], text)
            accepted = text if text in grammar.sentences else ""
            return Result(accepted, [Candidate(grammar.sentences[0], -9.0 if not accepted else 0.5)], text + ".")
        except BaseException:
            self.cancelled += 1
            raise

    def speak(self, text):
        self.spoken.append(text)
        return text.encode().ljust(5000, b"\0")

    def phrases(self):
        return {"hey_jarvis": "Hey Jarvis", "alexa": "Alexa"}

    def detector(self, names):
        self.detectors.append(FakeDetector(names))
        return self.detectors[-1]


def spoken(audio):
    """The text that audio is."""
    return audio.replace(b"\0", b"").decode(errors="replace").strip()


def audio(text, milliseconds=100):
    """Audio in which a text is spoken."""
    return text.encode().ljust(milliseconds * 32, b"\0")
