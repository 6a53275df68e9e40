"""Teaches schemathesis the format of texts that are JSON: see scripts/lib/try_api.py."""

import json

import schemathesis
from hypothesis import strategies

values = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers(-10**9, 10**9) | strategies.text(max_size=20),
    lambda inner: strategies.lists(inner, max_size=3) | strategies.dictionaries(
        strategies.text(max_size=8), inner, max_size=3),
    max_leaves=4)
schemathesis.openapi.format("json", values.map(json.dumps))
schemathesis.openapi.format("json-ctlVal", values.map(lambda value: json.dumps({"ctlVal": value})))
