"""microWakeWord: finds the phrases that begin a dialog in a stream of audio."""

import threading


# Models say for half a second that a phrase has ended: so many steps of 10 ms later the next one counts.
PAUSE_STEPS = 100


def phrases():
    """The models that the package has, with their phrases."""
    import json

    import pymicro_wakeword.microwakeword as library

    found = {}
    for path in sorted(library._MODELS_DIR.glob("*.json")):
        found[path.stem] = json.loads(path.read_text())["wake_word"]
    return found


class Detector:
    """Listens for some phrases in one stream of 16 kHz audio."""

    def __init__(self, names):
        import pymicro_wakeword

        self._lock, self._step, self._next_step = threading.Lock(), 0, 0
        self._features = pymicro_wakeword.MicroWakeWordFeatures()
        self._models = {name: pymicro_wakeword.MicroWakeWord.from_builtin(pymicro_wakeword.Model(name))
                        for name in names}

    def feed(self, audio):
        """The name of the phrase that ended in this audio; none if there was none."""
        ended = None
        with self._lock:
            for features in self._features.process_streaming(audio):
                found = [name for name, model in self._models.items() if model.process_streaming(features)]
                self._step += 1
                if found and self._step >= self._next_step:
                    ended, self._next_step = found[0], self._step + PAUSE_STEPS
        return ended

    def close(self):
        """Releases the models, after the step that another thread may be in."""
        with self._lock:
            for model in self._models.values():
                model.close()
            self._models = {}
