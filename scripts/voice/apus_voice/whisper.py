"""Whisper: free text of an utterance, and how likely given texts are for it. See docs/voice-engines.md."""

import json
import re

import numpy as np

RATE = 16000
HOP, WINDOW, MELS = 160, 400, 80
# The shortest window of the encoder, in seconds. Whisper was made for 30; most of the work of those is for silence.
WINDOW_SECONDS = 6
WINDOW_SECONDS_MAX = 30


def mel_filters():
    """The filters of Whisper's features: 80 triangles on Slaney's mel scale up to 8 kHz."""
    low, step, break_hertz = 0.0, 200.0 / 3, 1000.0
    log_step = np.log(6.4) / 27.0

    def to_hertz(mel):
        return np.where(mel < break_hertz / step, low + step * mel,
                        break_hertz * np.exp(log_step * (mel - break_hertz / step)))

    top = break_hertz / step + np.log(8000.0 / break_hertz) / log_step
    edges = to_hertz(np.linspace(0.0, top, MELS + 2))
    bins = np.linspace(0.0, RATE / 2, WINDOW // 2 + 1)
    slopes = edges[:, None] - bins[None, :]
    widths = np.diff(edges)
    filters = np.maximum(0, np.minimum(-slopes[:-2] / widths[:-1, None], slopes[2:] / widths[1:, None]))
    return (filters * (2.0 / (edges[2:] - edges[:-2]))[:, None]).astype(np.float32)


class Features:
    """Log-mel features of 16 kHz audio."""

    def __init__(self):
        self._filters = mel_filters()
        self._window = np.hanning(WINDOW + 1)[:-1].astype(np.float32)

    def __call__(self, samples, seconds):
        """samples: float32 between -1 and 1. Padded with silence or cut to the seconds."""
        count = seconds * RATE
        padded = np.zeros(count + WINDOW, np.float32)
        padded[WINDOW // 2:WINDOW // 2 + min(len(samples), count)] = samples[:count]
        padded[:WINDOW // 2] = padded[WINDOW // 2 + 1:WINDOW + 1][::-1]
        frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][:count // HOP]
        power = np.abs(np.fft.rfft(frames * self._window, axis=1)) ** 2
        mel = np.log10(np.maximum(self._filters @ power.T.astype(np.float32), 1e-10))
        mel = np.maximum(mel, mel.max() - 8.0)
        return np.ascontiguousarray((mel + 4.0) / 4.0, np.float32)


class Whisper:
    """One loaded model. Used by one thread at a time."""

    def __init__(self, folder, threads=1):
        import ctranslate2
        import tokenizers

        self._ct = ctranslate2
        self._model = ctranslate2.models.Whisper(str(folder), device="cpu", compute_type="int8", intra_threads=threads,
                                                 inter_threads=1)
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._features = Features()
        token = self._tokenizer.token_to_id
        self._prompt = [token("<|startoftranscript|>"), token("<|notimestamps|>")]
        self._text_end = token("<|endoftext|>")
        config = json.loads((folder / "config.json").read_text())
        self._suppressed = config.get("suppress_ids", [])

    def encode(self, samples):
        """The encoder's output for an utterance, and its frames."""
        seconds = min(WINDOW_SECONDS_MAX, max(WINDOW_SECONDS, -(-len(samples) // RATE)))
        features = self._features(samples, seconds)
        encoded = self._model.encode(self._ct.StorageView.from_array(features[None]), to_cpu=True)
        return encoded, min(features.shape[1], max(1, len(samples) // HOP))

    def free_text(self, encoded, frames):
        """What the model writes by itself, without repetitions."""
        length = 12 + frames * 6 // 100
        result = self._model.generate(encoded, [self._prompt], beam_size=1, max_length=length, suppress_blank=True)[0]
        tokens = [number for number in result.sequences_ids[0] if number < self._text_end]
        return collapse(self._tokenizer.decode(tokens).strip())

    def log_probabilities(self, encoded, frames, texts):
        """For each text the logarithms of the probabilities of its tokens."""
        tokens = [self._tokenizer.encode(" " + text, add_special_tokens=False).ids for text in texts]
        batch = np.repeat(np.array(encoded), len(texts), axis=0)
        results = self._model.align(self._ct.StorageView.from_array(batch), self._prompt[:1], tokens,
                                    [frames] * len(texts))
        return [np.log(np.maximum(np.array(result.text_token_probs), 1e-9)) for result in results]


def collapse(text):
    """The text without words that are repeated at once: a short window makes the decoder write in circles."""
    words = text.split()
    plain = [re.sub(r"[^\w]", "", word).lower() for word in words]
    changed = True
    while changed:
        changed = False
        for length in range(len(words) // 2, 0, -1):
            # One word said twice is speech; three times it is a circle.
            times = 3 if length == 1 else 2
            for start in range(len(words) - length * times + 1):
                part = plain[start:start + length]
                if all(plain[start + length * turn:start + length * (turn + 1)] == part for turn in range(1, times)):
                    del words[start + length:start + length * 2]
                    del plain[start + length:start + length * 2]
                    changed = True
                    break
            if changed:
                break
    # The beginning of the text once more, cut off by the end of the window.
    for length in range(len(words) // 2, 0, -1):
        if plain[-length:] == plain[:length] and words[-length - 1][-1] in ".,?!":
            del words[-length:]
            break
    return " ".join(words)
