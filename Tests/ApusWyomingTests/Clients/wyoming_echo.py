"""Reads the events of a file with the reference implementation, makes its message of each, and writes them again.

    python wyoming_echo.py INPUT OUTPUT
"""

import sys

from wyoming import asr, audio, error, handle, info, ping, tts, vad, wake
from wyoming.event import read_event, write_event

MESSAGES = [
    asr.Transcribe, asr.Transcript, asr.TranscriptStart, asr.TranscriptChunk, asr.TranscriptStop,
    audio.AudioStart, audio.AudioChunk, audio.AudioStop, error.Error, handle.Handled, handle.NotHandled,
    info.Describe, info.Info, ping.Ping, ping.Pong, tts.Synthesize, vad.VoiceStarted, vad.VoiceStopped,
    wake.Detect, wake.Detection, wake.NotDetected,
]

with open(sys.argv[1], "rb") as source, open(sys.argv[2], "wb") as output:
    while (event := read_event(source)) is not None:
        for message in MESSAGES:
            if message.is_type(event.type):
                write_event(message.from_event(event).event(), output)
                break
        else:
            write_event(event, output)
