"""Which sentence of a grammar was said: candidates, written as Whisper writes, and the rule of their scores."""

import re

UNITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
         "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
NUMBERS = {word: number for number, word in enumerate(UNITS)}
NUMBERS.update({word: 10 * (number + 2) for number, word in enumerate(TENS)})


def written(sentence, free):
    """A sentence of the grammar as Whisper would write it: with digits, a capital and a full stop.

    Numbers below ten are written as the free text writes them, since Whisper uses both forms.
    """
    seen = re.findall(r"\d+|[a-z']+", free.lower())
    words, parts, place = sentence.split(), [], 0
    while place < len(words):
        word = words[place].lower()
        if word not in NUMBERS:
            parts.append("%" if word == "percent" and parts and parts[-1].isdigit() else words[place])
            place += 1
            continue
        number, length = NUMBERS[word], 1
        if number >= 20 and place + 1 < len(words) and 0 < NUMBERS.get(words[place + 1].lower(), 0) < 10:
            number, length = number + NUMBERS[words[place + 1].lower()], 2
        spoken = " ".join(words[place:place + length])
        as_digits = number >= 10 or str(number) in seen
        parts.append(str(number) if as_digits and not (length == 1 and word in seen) else spoken)
        place += length
    text = " ".join(parts).replace(" %", "%")
    end = free[-1:] if free[-1:] in ".?!" else ""
    capital = not free or free[:1].isupper() or free[:1].isdigit()
    return (text[:1].upper() + text[1:] if capital else text) + (end if free else ".")


# The candidates that are nearest by sound; what pocketsphinx heard is one more.
CANDIDATES = 4
# The weights of a score, and the lowest score of a sentence that is accepted: see docs/voice-engines.md.
DISTANCE_WEIGHT, WEAKEST_WEIGHT, AGREEMENT_WEIGHT, FIT_WEIGHT, DOUBT_WEIGHT = 3.0, 0.2, 0.5, 1.0, 2.0
# How well the sound fits the words that pocketsphinx heard: what counts as worst and best, and what adds nothing.
FIT_WORST, FIT_MIDDLE, FIT_BEST = -5.0, -3.0, -1.5
THRESHOLD = -3.76


class Candidate:
    """A sentence of the grammar and how well it fits: more is better."""

    def __init__(self, text, score):
        self.text, self.score = text, score


def score(candidate, free, distance, heard, agrees):
    """The score of a sentence from the logarithms of the probabilities of its tokens and of those of the free text.

    distance is how different the two sound. heard is what pocketsphinx heard; agrees: it is this sentence.
    """
    likelihood = (sum(candidate) - sum(free)) / max(1, len(candidate))
    # Where Whisper is sure of its own text, a sentence must be nearer to it.
    doubt = -sum(free) / max(1, len(free))
    fit = min(FIT_BEST, max(FIT_WORST, heard.fit)) - FIT_MIDDLE
    return (likelihood - DISTANCE_WEIGHT * distance + WEAKEST_WEIGHT * min(candidate, default=0.0)
            + FIT_WEIGHT * fit + DOUBT_WEIGHT * doubt + (AGREEMENT_WEIGHT if agrees else 0.0))


def rank(grammar, free, heard, phones, log_probabilities):
    """The candidates of an utterance, the best one first.

    free is Whisper's text, heard what pocketsphinx heard. phones gives the phones of a text, and log_probabilities the
    logarithms for the tokens of several texts.
    """
    distances = grammar.sounds.distances(phones(free))
    nearest = distances.argsort(kind="stable")[:CANDIDATES]
    texts = [grammar.sentences[number] for number in nearest]
    agreed = grammar.of_spoken.get(heard.text)
    if agreed is not None and agreed not in texts:
        texts.append(agreed)
    # A text without letters has no tokens to compare with; a full stop stands for it.
    free_tokens, *tokens = log_probabilities([free or "."] + [written(text, free) for text in texts])
    ranked = [Candidate(text, float(score(one, free_tokens, distances[grammar.index[text]], heard,
                                         text == agreed)))
              for text, one in zip(texts, tokens)]
    return sorted(ranked, key=lambda candidate: -candidate.score)
