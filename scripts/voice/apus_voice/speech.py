"""Piper: a text to sound, in parts, so that the first sound does not wait for the last word."""

import re

SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
CLAUSE_END = re.compile(r"(?<=[,;:])\s+")
# The fewest words of a first clause that is spoken by itself.
CLAUSE_WORDS_MIN = 2


def parts(text):
    """The sentences of a text; the first one is cut after its first clause."""
    sentences = [part for part in SENTENCE_END.split(text.strip()) if part]
    if not sentences:
        return []
    clauses = CLAUSE_END.split(sentences[0])
    count = 1
    while count < len(clauses) and len(" ".join(clauses[:count]).split()) < CLAUSE_WORDS_MIN:
        count += 1
    first = [" ".join(clauses[:count])]
    rest = " ".join(clauses[count:])
    return first + ([rest] if rest else []) + sentences[1:]


def complete(text):
    """A text that arrives in pieces: the sentences that are complete, and the rest."""
    sentences = SENTENCE_END.split(text)
    return [part for part in sentences[:-1] if part], sentences[-1]


class Piper:
    """One voice. The same text always has the same sound, since no noise is drawn. Used by one thread at a time."""

    def __init__(self, model, configuration, threads=1):
        import json
        import pathlib

        import onnxruntime
        import piper
        from piper.config import PiperConfig
        from piper.phonemize_espeak import ESPEAK_DATA_DIR

        from . import sounds

        class Voice(piper.PiperVoice):
            """A voice that shares espeak-ng's state with the other users of the process."""

            def phonemize(self, text):
                with sounds.Phonemizer.lock:
                    return super().phonemize(text)

        onnxruntime.disable_telemetry_events()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = threads
        options.enable_cpu_mem_arena = False
        session = onnxruntime.InferenceSession(str(model), sess_options=options, providers=["CPUExecutionProvider"])
        self._voice = Voice(
            session=session, config=PiperConfig.from_dict(json.loads(pathlib.Path(configuration).read_text())),
            espeak_data_dir=ESPEAK_DATA_DIR, download_dir=pathlib.Path("/nonexistent"))
        self._style = piper.SynthesisConfig(noise_scale=0.0, noise_w_scale=0.0)
        self.rate = self._voice.config.sample_rate

    def speak(self, text):
        """The sound of one part: 16 bits, one channel, at the voice's rate."""
        return b"".join(chunk.audio_int16_bytes for chunk in self._voice.synthesize(text, self._style))
