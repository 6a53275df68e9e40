"""pocketsphinx with a grammar: hears along while somebody speaks, and says what was heard and whether it is whole."""

import functools
import math
import re
import threading

# IPA of espeak-ng to the phones of the English acoustic model; the longest match counts.
ARPABET = {
    "tʃ": "CH", "dʒ": "JH", "aɪ": "AY", "aʊ": "AW", "eɪ": "EY", "oʊ": "OW", "əʊ": "OW", "ɔɪ": "OY", "ɜ": "ER",
    "ɚ": "ER", "ɝ": "ER", "əl": "AH L", "iə": "IY AH", "aɪə": "AY AH", "aɪɚ": "AY ER", "i": "IY", "ɪ": "IH",
    "ᵻ": "IH", "y": "IY", "e": "EH", "ɛ": "EH", "æ": "AE", "a": "AA", "ɑ": "AA", "ɒ": "AA", "ɔ": "AO", "o": "OW",
    "ʊ": "UH", "u": "UW", "ʌ": "AH", "ə": "AH", "ɐ": "AH", "p": "P", "b": "B", "t": "T", "d": "D", "ɾ": "T",
    "k": "K", "ɡ": "G", "g": "G", "f": "F", "v": "V", "θ": "TH", "ð": "DH", "s": "S", "z": "Z", "ʃ": "SH",
    "ʒ": "ZH", "m": "M", "n": "N", "ŋ": "NG", "ɲ": "N", "l": "L", "ɫ": "L", "ɹ": "R", "r": "R", "w": "W", "j": "Y",
    "h": "HH", "x": "K", "ɬ": "L", "ʔ": "T",
}


def arpabet(ipa):
    """The phones of the acoustic model for IPA without marks; empty if nothing of it is known."""
    phones, place = [], 0
    while place < len(ipa):
        for length in (3, 2, 1):
            found = ARPABET.get(ipa[place:place + length])
            if found and len(ipa[place:place + length]) == length:
                phones.append(found)
                break
        place += length if found else 1
    return " ".join(phones)


# The beginning of an utterance from which its mean is taken: one second.
BEGINNING_BYTES = 32000
# The fit of what was not heard at all, and the smallest likelihood that has a logarithm.
FIT_MIN, LIKELIHOOD_MIN = -20.0, 1e-308
# pocketsphinx drops ten bits of the logarithms of scores while an utterance goes on.
SCORE_SCALE = 1 << 10


def locked(method):
    """A method that only one thread is in."""
    @functools.wraps(method)
    def call(self, *arguments):
        with self._lock:
            return method(self, *arguments)
    return call


class Heard:
    """What was heard so far: the sentence of the grammar, or the beginning of one.

    fit says how well the sound fits the words: the mean logarithm of the likelihood of a frame, compared with the best
    phone of that frame; 0 is best. weakest_fit is that of the word that fits least.
    """

    def __init__(self, text="", is_whole=False, is_beginning=False, fit=FIT_MIN, weakest_fit=FIT_MIN):
        self.text, self.is_whole, self.is_beginning = text, is_whole, is_beginning
        self.fit, self.weakest_fit = fit, weakest_fit


class Level:
    """The mean of the cepstra of audio: how loud it is and how the microphone sounds.

    A decoder that is fed bit by bit subtracts the mean of the utterances before, which were other people's. The mean
    of this utterance's beginning is worth 12 points of exact sentences on quiet recordings. It is computed by a decoder
    of its own, since one that has ever been fed bit by bit computes no means of whole utterances any more.
    """

    def __init__(self):
        import pocketsphinx

        self._lock = threading.Lock()
        self._decoder = pocketsphinx.Decoder(lm=None, loglevel="FATAL")
        # It decodes what it hears, so it has as little to search as possible.
        model = pocketsphinx.FsgModel("level", self._decoder.get_logmath(), 1.0, 2)
        model.trans_add(0, 1, 0, model.word_add("a"))
        model.set_start_state(0)
        model.set_final_state(1)
        self._decoder.add_fsg("level", model)
        self._decoder.activate_search("level")

    def mean(self, audio):
        """The mean of some audio, as decoders take it."""
        with self._lock:
            self._decoder.start_utt()
            self._decoder.process_raw(audio, no_search=True, full_utt=True)
            mean = self._decoder.get_cmn(False)
            self._decoder.end_utt()
            return mean


class Listener:
    """One decoder. It hears one utterance at a time, and keeps the networks of the grammars that it used last.

    Calls of several threads wait for each other, since the C library does not expect them.
    """

    def __init__(self, phonemizer, level, networks_max=4):
        import pocketsphinx

        self._library = pocketsphinx
        self._decoder = pocketsphinx.Decoder(lm=None, loglevel="FATAL")
        self._phonemizer, self._level, self._networks_max = phonemizer, level, networks_max
        self._names, self._grammar, self._is_open, self._beginning = [], None, False, None
        self._lock = threading.RLock()

    def has(self, name):
        """Whether the decoder has the network of the grammar of that hash."""
        return name in self._names

    @locked
    def start(self, grammar):
        """Begins an utterance."""
        self.stop()
        if grammar.name not in self._names:
            self._add(grammar)
        self._names.remove(grammar.name)
        self._names.append(grammar.name)
        self._grammar = grammar
        self._decoder.activate_search(grammar.name)
        self._decoder.start_utt()
        self._is_open, self._beginning = True, bytearray()

    @locked
    def feed(self, audio):
        """Hears more of the utterance: 16 kHz, 16 bits, one channel."""
        if self._beginning is None:
            self._process(audio)
            return
        self._beginning += audio
        if len(self._beginning) >= BEGINNING_BYTES:
            self._process_beginning()

    def _process_beginning(self):
        audio, self._beginning = bytes(self._beginning), None
        if audio:
            self._decoder.set_cmn(self._level.mean(audio))
        self._process(audio)

    def _process(self, audio):
        if audio:
            self._decoder.process_raw(audio, no_search=False, full_utt=False)

    @locked
    def heard(self):
        """What was heard so far."""
        if self._is_open and self._beginning is not None:
            self._process_beginning()
        hypothesis = self._decoder.hyp()
        if hypothesis is None:
            return Heard()
        text = re.sub(r"\(\d+\)", "", hypothesis.hypstr)
        network = self._grammar.network
        scale = SCORE_SCALE if self._is_open else 1
        words = [(scale * math.log(max(segment.ascore, LIKELIHOOD_MIN)), segment.end_frame - segment.start_frame + 1)
                 for segment in self._decoder.seg() if segment.word[0] not in "<("]
        if not words:
            return Heard()
        return Heard(text, text in network.spoken, text in network.beginnings,
                     sum(likelihood for likelihood, _ in words) / sum(frames for _, frames in words),
                     min(likelihood / frames for likelihood, frames in words))

    @locked
    def stop(self):
        """Ends the utterance."""
        if self._is_open:
            self._is_open, self._beginning = False, None
            self._decoder.end_utt()

    def _add(self, grammar):
        while len(self._names) >= self._networks_max:
            self._decoder.remove_search(self._names.pop(0))
        network = grammar.network
        model = self._library.FsgModel(grammar.name, self._decoder.get_logmath(), 6.5, network.states)
        numbers = {}
        for source, target, word in network.edges:
            if word not in numbers:
                self._pronounce(word)
                numbers[word] = model.word_add(word)
            model.trans_add(source, target, 0, numbers[word])
        model.set_start_state(0)
        model.set_final_state(1)
        self._decoder.add_fsg(grammar.name, model)
        self._names.append(grammar.name)

    def _pronounce(self, word):
        """Gives the dictionary a pronunciation of a word that it lacks."""
        if self._decoder.lookup_word(word) is not None:
            return
        from . import sounds

        phones = arpabet("".join(phone for phone in self._phonemizer.ipa(word) if phone not in sounds.MARKS))
        # A word that cannot be pronounced never matches; silence would always match.
        self._decoder.add_word(word, phones or "ZH ZH ZH", True)
