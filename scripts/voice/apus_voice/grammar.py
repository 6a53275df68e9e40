"""Grammars: the sentences that may be said, their hash, and the network of words that they make."""

import collections
import hashlib
import re
import threading

WORD = re.compile(r"[^\s]+")


class GrammarError(ValueError):
    """A grammar that is refused."""


def digest(sentences, jsgf=None):
    """The name of a grammar: SHA-256 of its sorted sentences, joined by a line feed, in hexadecimal digits. Two line
    feeds and the grammar in JSGF follow where there is one."""
    text = "\n".join(sorted(sentences)) + ("" if jsgf is None else "\n\n" + jsgf)
    return hashlib.sha256(text.encode()).hexdigest()


def check(sentences, limits):
    """The sentences without repetitions, sorted. Fails where a bound is passed."""
    if not isinstance(sentences, list) or not all(isinstance(text, str) for text in sentences):
        raise GrammarError("sentences is not a list of texts")
    if not sentences:
        raise GrammarError("a grammar needs at least one sentence")
    if len(sentences) > limits.sentences_max:
        raise GrammarError(f"{len(sentences)} sentences, at most {limits.sentences_max}")
    size = sum(len(text.encode()) + 1 for text in sentences)
    if size > limits.grammar_bytes_max:
        raise GrammarError(f"{size} bytes of sentences, at most {limits.grammar_bytes_max}")
    for text in sentences:
        words = len(text.split())
        if words == 0 or words > limits.words_max:
            raise GrammarError(f"a sentence has {words} words, at least 1 and at most {limits.words_max}")
        if any(ord(letter) < 32 for letter in text):
            raise GrammarError("a sentence has control characters")
    return sorted(set(sentences))


class WordNetwork:
    """The smallest acyclic automaton of the sentences, with words on its edges.

    State 0 is the start and state 1 the end. An edge that ends a sentence goes to the end; where a longer sentence
    goes on, a second edge with the same word goes on.
    """

    def __init__(self, sentences):
        self.edges = []
        self._nodes, self._next = {}, 2
        lists = sorted({tuple(spoken(text)) for text in sentences})
        self.spoken = frozenset(" ".join(words) for words in lists)
        # Sentences that are also the beginning of longer ones.
        self.beginnings = frozenset(
            " ".join(words) for words, following in zip(lists, lists[1:]) if following[:len(words)] == words)
        root = self._node(lists, 0, len(lists), 0)
        renamed = {root: 0}
        self.edges = [(renamed.get(source, source), renamed.get(target, target), word)
                      for source, target, word in self.edges]
        self.states = self._next

    def _node(self, lists, low, high, depth):
        """The state from which exactly the rests of the lists between low and high lead to the end."""
        edges = []
        while low < high:
            if len(lists[low]) == depth:
                low += 1
                continue
            word, until = lists[low][depth], low
            while until < high and len(lists[until]) > depth and lists[until][depth] == word:
                until += 1
            if len(lists[low]) == depth + 1:
                edges.append((1, word))
            if len(lists[until - 1]) > depth + 1:
                edges.append((self._node(lists, low, until, depth + 1), word))
            low = until
        key = tuple(edges)
        if key not in self._nodes:
            self._nodes[key] = self._next
            self._next += 1
            self.edges += [(self._nodes[key], target, word) for target, word in edges]
        return self._nodes[key]


def spoken(text):
    """The words of a sentence as a dictionary of pronunciations has them: small letters, no punctuation at the ends."""
    return [word for word in (part.strip(".,;:!?\"()").lower() for part in WORD.findall(text)) if word]


class Grammar:
    """A checked grammar with all that recognition needs of it."""

    def __init__(self, sentences, phonemizer=None, name=None):
        from . import sounds

        self.name = name or digest(sentences)
        self.sentences = sentences
        self.network = WordNetwork(sentences)
        self.of_spoken = {}
        for text in sentences:
            self.of_spoken.setdefault(" ".join(spoken(text)), text)
        self.index = {text: number for number, text in enumerate(sentences)}
        self.sounds = sounds.SoundIndex([phonemizer.phones(text) for text in sentences])


class GrammarStore:
    """The grammars that were used last, by their hash. Safe to use by several threads."""

    def __init__(self, count_max):
        self._count_max = count_max
        self._grammars = collections.OrderedDict()
        self._lock = threading.Lock()

    def get(self, name):
        """The grammar of that hash; none if it is not known, or no longer."""
        with self._lock:
            grammar = self._grammars.get(name)
            if grammar is not None:
                self._grammars.move_to_end(name)
            return grammar

    def put(self, grammar):
        """Keeps a grammar; the one that was not used for the longest time is dropped."""
        with self._lock:
            self._grammars[grammar.name] = grammar
            self._grammars.move_to_end(grammar.name)
            while len(self._grammars) > self._count_max:
                self._grammars.popitem(last=False)

    def __len__(self):
        return len(self._grammars)
