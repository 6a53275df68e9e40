"""The sentences of a grammar in the Java Speech Grammar Format without recursion."""

import re

TOKEN = re.compile(r"[()\[\]|]|<[^>]+>|[^\s()\[\]|<>]+")
# The most sentences that are made.
SENTENCES_MAX = 100_000


def sentences(text):
    """All sentences of the public rule."""
    rules, public = {}, None
    for statement in text.split(";"):
        found = re.match(r"\s*(public\s+)?<([^>]+)>\s*=(.*)", statement, re.DOTALL)
        if found:
            rules[found[2]] = TOKEN.findall(found[3])
            public = found[2] if found[1] else public
    if public is None:
        raise ValueError("the grammar has no public rule")
    return sorted({" ".join(words) for words in _expand(rules, public, ())})


def _expand(rules, name, above):
    if name in above or name not in rules:
        raise ValueError(f"<{name}> is recursive or missing")
    made, rest = _choice(rules, rules[name], (*above, name))
    if rest:
        raise ValueError(f"<{name}> has a bracket too many")
    return made


def _choice(rules, tokens, above):
    """The word lists of alternatives up to a closing bracket, and the tokens after it."""
    found, current = [], [()]
    while tokens and tokens[0] not in ")]":
        token, tokens = tokens[0], tokens[1:]
        if token == "|":
            found += current
            current = [()]
            continue
        if token in "([":
            part, tokens = _choice(rules, tokens, above)
            tokens = tokens[1:]
            part += [()] if token == "[" else []
        elif token.startswith("<"):
            part = _expand(rules, token[1:-1], above)
        else:
            part = [(token,)]
        current = [first + second for first in current for second in part]
        if len(current) > SENTENCES_MAX:
            raise ValueError(f"more than {SENTENCES_MAX} sentences")
    return found + current, tokens
