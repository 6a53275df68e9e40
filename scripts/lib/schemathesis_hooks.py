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

# Schemas of things (docs/things.md): one value of each kind, in any leaf.
kinds = strategies.fixed_dictionaries({}, optional={
    "type": strategies.sampled_from(["integer", "number", "string", "boolean", "null"]),
    "minimum": strategies.integers(-10**9, 10**9), "maxLength": strategies.integers(0, 10**9),
    "description": strategies.text(max_size=8)})
leaves = strategies.dictionaries(strategies.from_regex(r"[A-Za-z][A-Za-z0-9]{0,8}", fullmatch=True), kinds, max_size=3)
schemas = strategies.fixed_dictionaries({}, optional={
    "properties": strategies.dictionaries(
        strategies.sampled_from(["ProReadonly", "ProWritable", "Action"]),
        strategies.fixed_dictionaries({"properties": leaves}), max_size=3)})
schemathesis.openapi.format("json-schema", schemas.map(json.dumps))

# Manifests of firmware (docs/firmware.md): as `apus firmware sign` writes them.
schemathesis.openapi.format("json-manifest", strategies.builds(
    lambda product, version, size, digits: json.dumps(
        {"product": product, "version": ".".join(map(str, version)), "size": size, "sha256": digits, "from": ""},
        separators=(",", ":")),
    strategies.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True),
    strategies.tuples(*[strategies.integers(0, 999)] * 3), strategies.integers(1, 10**5),
    strategies.from_regex(r"[0-9a-f]{64}", fullmatch=True)))


@schemathesis.hook
def filter_body(context, body):
    """JSON Schema has no word for it that the descriptions of a firmware must be in different languages."""
    found = body.get("descriptions") if isinstance(body, dict) else None
    if not isinstance(found, list):
        return True
    languages = [str(one.get("language")).lower() for one in found if isinstance(one, dict)]
    return len(set(languages)) == len(languages)
