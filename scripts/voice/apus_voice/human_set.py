"""A set of sentences that a person has spoken: see ../make-human-set."""

import argparse
import gzip
import json
import pathlib
import random
import re
import subprocess
import sys
import wave

import numpy as np

SOUNDS = pathlib.Path("/usr/share/asterisk/sounds/en_US_f_Allison")
TEXTS = pathlib.Path("/usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz")
RATE, LEAD, TAIL = 16000, 500, 1000
# Loudness of speech, as in the synthetic sets: the root of the mean square of samples of 16 bits.
LOUDNESS = 2500
CONDITIONS = ("clean", "pink20", "room20")


def prompts():
    """The prompts of two to nine words without figures and remarks, by name."""
    found = {}
    for line in gzip.decompress(TEXTS.read_bytes()).decode(errors="replace").splitlines():
        name, _, text = line.partition(":")
        words = re.sub(r"[^a-z' -]", "", text.lower()).replace("-", " ").split()
        path = SOUNDS / (name.strip() + ".g722")
        if not line.startswith(";") and not re.search(r"[\[\d]", text) and 2 <= len(words) <= 9 and path.exists():
            found.setdefault(" ".join(words), path)
    return found


def speech(path):
    """The samples of a prompt without the silence around it."""
    done = subprocess.run(["ffmpeg", "-v", "error", "-f", "g722", "-i", path, "-ar", str(RATE), "-f", "s16le", "-"],
                          capture_output=True, check=True)
    samples = np.frombuffer(done.stdout, "<i2").astype(np.float64)
    energy = np.sqrt(np.convolve(samples ** 2, np.ones(160) / 160, "same"))
    loud = np.where(energy > max(60.0, 0.02 * energy.max()))[0]
    samples = samples[loud[0]:loud[-1] + 1]
    return samples * LOUDNESS / np.sqrt(np.mean(samples[np.abs(samples) > 200] ** 2))


def pink(count, chance):
    """Noise whose power falls with the frequency."""
    spectrum = np.fft.rfft(chance.normal(0, 1, count))
    return np.fft.irfft(spectrum / np.sqrt(np.maximum(1, np.arange(len(spectrum)))), count)


def room(samples, chance):
    """Speech in a room with a reverberation of 0.4 s."""
    count = int(0.4 * RATE)
    echo = chance.normal(0, 1, count) * np.exp(-6.9 * np.arange(count) / count)
    echo[:RATE // 500] = 0
    echo *= 0.5 / np.sqrt((echo ** 2).sum())
    echo[0] = 1
    length = len(samples) + count
    spoken = np.fft.irfft(np.fft.rfft(samples, length) * np.fft.rfft(echo, length), length)
    return spoken[:len(samples) + count // 2]


def mixed(samples, condition, chance):
    """What a microphone hears of speech."""
    if condition == "room20":
        samples = room(samples, chance)
    full = np.concatenate([np.zeros(LEAD * 16), samples, np.zeros(TAIL * 16)])
    if condition == "clean":
        noise = chance.normal(0, 3, len(full))
    else:
        noise = pink(len(full), chance)
        loud = np.sqrt(np.mean(samples[np.abs(samples) > 200] ** 2))
        noise *= loud / 10 / np.sqrt(np.mean(noise ** 2))
    return np.clip(full + noise, -32768, 32767).astype("<i2"), len(samples) // 16


def main():
    """The command."""
    parser = argparse.ArgumentParser(prog="scripts/voice/make-human-set")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=80, help="prompts of the grammar, and as many outside of it")
    options = parser.parse_args()
    if not SOUNDS.is_dir() or not TEXTS.exists():
        sys.exit("missing; Debian: apt-get install asterisk-core-sounds-en asterisk-core-sounds-en-g722 ffmpeg")
    found = prompts()
    names = sorted(found)
    random.Random(options.seed).shuffle(names)
    count = min(options.count, len(names) // 2)
    chance = np.random.default_rng(options.seed)
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "sentences.txt").write_text("\n".join(sorted(names[:count])) + "\n")
    with open(options.folder / "manifest.jsonl", "w", encoding="utf-8") as manifest:
        for number, text in enumerate(names[:2 * count]):
            samples = speech(found[text])
            for condition in CONDITIONS:
                sound, length = mixed(samples, condition, chance)
                file = f"{number:04d}-{condition}.wav"
                with wave.open(str(options.folder / file), "wb") as out:
                    out.setparams((1, 2, RATE, 0, "NONE", ""))
                    out.writeframes(sound.tobytes())
                manifest.write(json.dumps({
                    "file": file, "kind": "in" if number < count else "oog", "text": text, "voice": "allison",
                    "condition": condition, "start_ms": LEAD, "end_ms": LEAD + length,
                    "speech_end_ms": LEAD + len(samples) // 16, "pause_ms": 0}) + "\n")
    print(f"{count} + {count} prompts of {len(found)}, {2 * count * len(CONDITIONS)} files in {options.folder}")


if __name__ == "__main__":
    main()
