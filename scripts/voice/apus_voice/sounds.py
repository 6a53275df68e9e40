"""How alike two texts sound: phones of espeak-ng, and edit distances to many sentences at once.

A recogniser that writes freely misspells names, but writes what sounds alike. The distance of two texts is the mean of
two normalised edit distances: of their phones, and of the classes of their phones ("p" and "b" are one class).
"""

import threading

import numpy as np

# The most phones of a text that are compared; the bit vectors have one bit for each.
PHONES_MAX = 64

# Phones that listeners and recognisers take for each other. A phone that is not listed is a class of its own.
CLASSES = [
    "pb", "tdɾʔ", "kɡgxɬ", "fv", "θð", "sz", "ʃʒ", "mnŋɲ", "lɫ", "ɹrɻ", "w", "j", "h",
    "iɪyᵻ", "eɛæa", "əɜɐʌɚɝ", "uʊo", "ɔɑɒ",
]

# Marks of stress, length, ties and variants, and what separates words.
MARKS = set("ˈˌːˑ͡‍̩̯̃̈̊.,;:?!'\"-–_() \n\t")


class Phonemizer:
    """Texts to phones, by the espeak-ng that is part of piper-tts. Safe to use by several threads."""

    # espeak-ng has one state for each process.
    lock = threading.Lock()
    _is_ready = False

    def __init__(self, voice="en-us"):
        from piper import espeakbridge
        from piper.phonemize_espeak import ESPEAK_DATA_DIR

        self._bridge, self._voice = espeakbridge, voice
        with Phonemizer.lock:
            if not Phonemizer._is_ready:
                espeakbridge.initialize(str(ESPEAK_DATA_DIR))
                Phonemizer._is_ready = True

    def ipa(self, text):
        """The IPA of a text with its marks."""
        with Phonemizer.lock:
            self._bridge.set_voice(self._voice)
            return "".join(clause[0] for clause in self._bridge.get_phonemes(text))

    def phones(self, text):
        """The phones of a text without marks, at most 64."""
        return "".join(phone for phone in self.ipa(text) if phone not in MARKS)[:PHONES_MAX]


class SoundIndex:
    """The sentences of a grammar, prepared for distances to a text."""

    def __init__(self, phones):
        """phones: the phones of each sentence, in the order of the grammar."""
        letters = sorted(set("".join(phones)))
        self._numbers = {letter: number + 1 for number, letter in enumerate(letters)}
        self._lengths = np.array([len(text) for text in phones], np.int64)
        self._phones = np.zeros((max(1, int(self._lengths.max(initial=1))), len(phones)), np.uint8)
        for column, text in enumerate(phones):
            for row, letter in enumerate(text):
                self._phones[row, column] = self._numbers[letter]
        classes = {letter: number + 1 for number, group in enumerate(CLASSES) for letter in group}
        extra = len(CLASSES) + 1
        self._class_of = {}
        for letter in letters:
            if letter not in classes:
                classes[letter] = extra
                extra += 1
            self._class_of[letter] = classes[letter]
        table = np.zeros(256, np.uint8)
        for letter, number in self._numbers.items():
            table[number] = min(255, classes[letter])
        self._classes = table[self._phones]
        self._all_classes = classes

    def distances(self, phones):
        """The distance of a text to each sentence: 0 is the same sound, 1 is nothing in common."""
        if not phones:
            return np.ones(len(self._lengths))
        phones = phones[:PHONES_MAX]
        exact = [self._numbers.get(letter, 0) for letter in phones]
        alike = [self._all_classes.get(letter, 0) for letter in phones]
        longest = np.maximum(self._lengths, len(phones))
        return (self._edits(exact, self._phones) + self._edits(alike, self._classes)) / (2.0 * longest)

    def _edits(self, pattern, texts):
        """Edit distances of one pattern to all columns of texts: Myers' bit vectors (1999), one word for each text."""
        count, length = texts.shape[1], len(pattern)
        masks = np.zeros(256, np.uint64)
        for bit, symbol in enumerate(pattern):
            # Symbol 0 is the padding of texts and what no sentence has; it equals nothing.
            if symbol:
                masks[symbol] |= np.uint64(1 << bit)
        one, last = np.uint64(1), np.uint64(1 << (length - 1))
        plus = np.full(count, (1 << length) - 1, np.uint64)
        minus = np.zeros(count, np.uint64)
        score = np.full(count, length, np.int64)
        result = np.where(self._lengths == 0, length, 0)
        for row in range(texts.shape[0]):
            equal = masks[texts[row]]
            vertical = equal | minus
            horizontal = (((equal & plus) + plus) ^ plus) | equal
            up = minus | ~(horizontal | plus)
            down = plus & horizontal
            score += ((up & last) != 0).astype(np.int64) - ((down & last) != 0).astype(np.int64)
            up = (up << one) | one
            down = down << one
            plus = down | ~(vertical | up)
            minus = up & vertical
            result = np.where(self._lengths == row + 1, score, result)
        return result
