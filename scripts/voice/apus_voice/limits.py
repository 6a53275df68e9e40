"""The bounds of a provider. Each is an option of provider.py, with its name."""

import dataclasses


def bound(default, text):
    """A bound with its default and its description."""
    return dataclasses.field(default=default, metadata={"help": text})


@dataclasses.dataclass
class Limits:
    """What a provider holds and does at most."""

    connections_max: int = bound(64, "connections at once")
    utterances_max: int = bound(12, "utterances at once; each takes about 30 MB")
    queue_max: int = bound(8, "utterances that wait for the recogniser, and texts that wait for the voice")
    audio_seconds_max: int = bound(30, "seconds of an utterance")
    silence_seconds_max: int = bound(30, "seconds without an event after which an utterance is dropped")
    text_bytes_max: int = bound(2048, "bytes of a text that is spoken")
    sentences_max: int = bound(20_000, "sentences of a grammar")
    grammar_bytes_max: int = bound(1 << 20, "bytes of the sentences of a grammar")
    words_max: int = bound(32, "words of a sentence")
    grammars_max: int = bound(32, "grammars that are kept")
    line_bytes_max: int = bound(64 << 10, "bytes of the line of an event")
    data_bytes_max: int = bound(2 << 20, "bytes of the data of an event")
    payload_bytes_max: int = bound(256 << 10, "bytes of the payload of an event")
    event_seconds_max: int = bound(10, "seconds that one event takes to arrive or to be sent")
    question_milliseconds_max: int = bound(150, "milliseconds until a question is answered")
    memory_megabytes_max: int = bound(1500, "resident memory after which the process is replaced")
    work_max: int = bound(5000, "utterances and spoken texts after which the process is replaced")
