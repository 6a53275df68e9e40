"""Grammars, their networks of words, sounds and scores."""

import random
import unittest

import fake  # noqa: F401, finds the package

from apus_voice import grammar, jsgf, limits, scoring, speech

try:
    import numpy
except ImportError:
    numpy = None


def walks(network):
    """All sentences that a network accepts."""
    edges = {}
    for source, target, word in network.edges:
        edges.setdefault(source, []).append((target, word))
    found, open_walks = set(), [(0, ())]
    while open_walks:
        state, words = open_walks.pop()
        if state == 1:
            found.add(" ".join(words))
        open_walks += [(target, (*words, word)) for target, word in edges.get(state, [])]
    return found


class GrammarTests(unittest.TestCase):
    def test_name_of_a_grammar_does_not_depend_on_the_order(self):
        self.assertEqual(grammar.digest(["b", "a"]), grammar.digest(["a", "b"]))
        self.assertEqual(grammar.digest(["a", "b"]),
                         "7e18f737311b2dc3b2f269dd78396b0351f14fb66efa879f768cb23181883c78")

    def test_bounds(self):
        bounds = limits.Limits(sentences_max=2, grammar_bytes_max=20, words_max=3)
        self.assertEqual(grammar.check(["b", "a", "a"][1:], bounds), ["a"])
        for bad in (["a", "b", "c"], ["x" * 30], ["a b c d"], [""], [" "], [], "a", [1], ["a\tb"]):
            with self.assertRaises(grammar.GrammarError, msg=str(bad)):
                grammar.check(bad, bounds)

    def test_network_accepts_the_sentences_and_nothing_else(self):
        for seed in range(200):
            chance = random.Random(seed)
            sentences = {" ".join(chance.choice("abc") for _ in range(chance.randrange(1, 6)))
                         for _ in range(chance.randrange(1, 30))}
            network = grammar.WordNetwork(sorted(sentences))
            self.assertEqual(walks(network), sentences, f"seed {seed}")
            self.assertEqual(network.beginnings, {
                one for one in sentences if any(other.startswith(one + " ") for other in sentences)}, f"seed {seed}")

    def test_network_shares_what_is_common(self):
        rooms = [f"turn {state} the {room} {thing}" for state in ("on", "off") for room in "abcdefgh"
                 for thing in ("light", "fan")]
        network = grammar.WordNetwork(rooms)
        self.assertLess(len(network.edges), 20)
        self.assertEqual(walks(network), set(rooms))

    def test_network_of_words_as_they_are_spoken(self):
        network = grammar.WordNetwork(["What time is it?", "wake me at five o'clock"])
        self.assertEqual(network.spoken, {"what time is it", "wake me at five o'clock"})

    def test_store_drops_what_was_not_used_for_the_longest_time(self):
        store = grammar.GrammarStore(2)

        class One:
            def __init__(self, name):
                self.name = name

        for name in "ab":
            store.put(One(name))
        self.assertIsNotNone(store.get("a"))
        store.put(One("c"))
        self.assertIsNone(store.get("b"))
        self.assertEqual([store.get(name).name for name in "ac"], ["a", "c"])
        self.assertEqual(len(store), 2)

    def test_sentences_of_a_jsgf_grammar(self):
        text = "#JSGF V1.0; grammar g; public <c> = <a> | stop ; <a> = ( open | close ) [ the ] <d> ; <d> = gate ;"
        self.assertEqual(jsgf.sentences(text), [
            "close gate", "close the gate", "open gate", "open the gate", "stop"])
        for bad in ("grammar g;", "public <a> = b <a> ;", "public <a> = <b> ;"):
            with self.assertRaises(ValueError):
                jsgf.sentences(bad)


class WrittenTests(unittest.TestCase):
    def test_sentences_are_written_as_whisper_writes(self):
        for sentence, free, expected in [
            ("set the light to fifty percent", "Set the lie to 50%.", "Set the light to 50%."),
            ("set a timer for five minutes", "Set a timer for 5 minutes.", "Set a timer for 5 minutes."),
            ("set a timer for five minutes", "Set a timer for five minutes.", "Set a timer for five minutes."),
            ("set it to twenty one degrees", "Set it to 21 degrees", "Set it to 21 degrees"),
            ("what time is it", "what time is it?", "what time is it?"),
            ("stop", "", "Stop."),
            ("wake me at ten", "Wake me at ten.", "Wake me at ten."),
        ]:
            self.assertEqual(scoring.written(sentence, free), expected)

    def test_a_sentence_as_likely_as_the_free_text_wins_over_a_distant_one(self):
        class Heard:
            fit = -2.0

        near = scoring.score([-0.1, -0.1], [-0.1, -0.1], 0.0, Heard, True)
        self.assertGreater(near, scoring.score([-0.1, -0.1], [-0.1, -0.1], 0.0, Heard, False))
        self.assertGreater(near, scoring.score([-4.0, -0.1], [-0.1, -0.1], 0.0, Heard, True))
        self.assertGreater(near, scoring.score([-0.1, -0.1], [-0.1, -0.1], 0.4, Heard, True))
        Heard.fit = -4.0
        self.assertGreater(near, scoring.score([-0.1, -0.1], [-0.1, -0.1], 0.0, Heard, True))


class PartTests(unittest.TestCase):
    def test_first_clause_is_spoken_by_itself(self):
        self.assertEqual(speech.parts("The kitchen light is on, and the fan is off. Anything else? No."), [
            "The kitchen light is on,", "and the fan is off.", "Anything else?", "No."])
        self.assertEqual(speech.parts("Yes, the kitchen light is on."), ["Yes, the kitchen light is on."])
        self.assertEqual(speech.parts("It is 21.5 degrees."), ["It is 21.5 degrees."])
        self.assertEqual(speech.parts("  "), [])

    def test_complete_sentences_of_a_text_that_arrives(self):
        self.assertEqual(speech.complete("It is on. And th"), (["It is on."], "And th"))
        self.assertEqual(speech.complete("It is"), ([], "It is"))
        self.assertEqual(speech.complete("It is on. "), (["It is on."], ""))


@unittest.skipIf(numpy is None, "numpy is not installed")
class SoundTests(unittest.TestCase):
    @staticmethod
    def edits(first, second):
        row = list(range(len(second) + 1))
        for number, letter in enumerate(first, 1):
            last, row[0] = row[0], number
            for place, other in enumerate(second, 1):
                last, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, last + (letter != other))
        return row[-1]

    def test_distances_are_edit_distances_of_phones_and_classes(self):
        from apus_voice import sounds

        def of_class(letter):
            return next((group for group in sounds.CLASSES if letter in group), letter)

        chance = random.Random(5)
        letters = "pbtdkgszmnlɹwjhiɪɛæəʌuʊɔɑθð5"
        for size in (5, 30, 64):
            texts = ["".join(chance.choice(letters) for _ in range(chance.randrange(0, size + 1))) for _ in range(40)]
            index = sounds.SoundIndex(texts)
            for _ in range(20):
                said = "".join(chance.choice(letters + "q") for _ in range(chance.randrange(1, size + 1)))
                found = index.distances(said)
                for number, text in enumerate(texts):
                    edits = self.edits(said, text) + self.edits(
                        [of_class(one) for one in said], [of_class(one) for one in text])
                    self.assertAlmostEqual(found[number], edits / 2 / max(len(said), len(text)), msg=f"{said} {text}")

    def test_the_best_candidate_is_first(self):
        from apus_voice import sounds

        class Letters:
            def phones(self, text):
                return text.replace(" ", "")

        made = grammar.Grammar(sorted(["open the gate", "close the gate", "stop"]), Letters())
        class Heard:
            text, fit = "open the gate", -2.0

        ranked = scoring.rank(made, "Open the bait.", Heard, lambda text: "openthebait",
                              lambda texts: [[-0.2] if "gate" in text or "bait" in text else [-5.0] for text in texts])
        self.assertEqual(ranked[0].text, "open the gate")
        self.assertEqual({one.text for one in ranked}, {"open the gate", "close the gate", "stop"})


if __name__ == "__main__":
    unittest.main()
