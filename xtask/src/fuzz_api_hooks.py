"""What Schemathesis has to know about the API beyond its OpenAPI document: media types, formats, and parameters that go together."""

import base64
import itertools
import json
import os
import urllib.parse
import uuid

import jsonschema_rs
import schemathesis
from hypothesis import strategies as st

# Queries that groups support, and further ones for letters.
GROUP_QUERIES = [
    "",
    "queue:orders",
    "consumer:orders state:dead",
    "reason:HANDLER_FAILED or reason:TIMEOUT",
    'error:"exit status" -(age:>1d)',
    "group:g1_4f1c",
    "failed:>15m enqueued:>=2026-01-31",
    "state:open,closed a\u00e9\u65e5 b",
]
LETTER_QUERIES = GROUP_QUERIES + [
    "type:Order* attempts:>=1 crashes:<3 replays:0",
    "payload./number:3,4 or header.tenant:acme",
    "-payload./card/number:x",
    "payload./note:* header.authorization:*",
    "seq:s-1 key:~empty message:m-1 stream:orders",
    "owner:* -assignee:ada poison:false due:<+10m phase:handle",
    "id:3f2a*",
]

schemathesis.openapi.format("lazaret-query", st.sampled_from(LETTER_QUERIES))
schemathesis.openapi.format("lazaret-group-query", st.sampled_from(GROUP_QUERIES))
# Replaced by one of its list below.
schemathesis.openapi.format("cursor", st.just("next"))

# The list of each path, and a position in it.
LISTS = {
    "/v1/audit": "audit 1",
    "/v1/letters": "letters 5",
    "/v1/sequences": "sequence 1",
    "/v1/operations": "operations 3",
    "/v1/plans/{id}/items": "items 1",
    "/v1/operations/{id}/items": "items 1",
}
# The audit has a list for each of its orders.
LATEST_AUDIT = "latest-audit 1"

# What exists and can be named in paths, by their beginning. Generated ids name nothing.
NAMES = {
    start: itertools.cycle(values) for start, values in json.loads(os.environ.get("LAZARET_FUZZ_NAMES", "{}")).items()
}


@schemathesis.hook
def map_case(ctx, case):
    """Full letters are lines."""
    if case.operation.path == "/v1/letters" and (case.query or {}).get("view") == "full":
        case.headers = {**(case.headers or {}), "Accept": "application/x-ndjson"}
    return case


@schemathesis.hook
def filter_headers(ctx, headers):
    """Spaces around the value of a header are no part of it: a key that is wrong only there arrives as a right one."""
    key = (headers or {}).get("Idempotency-Key")
    return not isinstance(key, str) or key == key.strip(" \t")


@schemathesis.hook
def filter_case(ctx, case):
    """Requests that are to be invalid, and are not: `null` violates no format where it is allowed, and most texts are queries."""
    if case.meta is None or case.meta.generation.mode.is_positive:
        return True
    invalid = {place.value for place, part in case.meta.components.items() if not part.mode.is_positive}
    if invalid == {"body"} and case.media_type == "application/json":
        return not is_valid_body(case.operation, case.body)
    wrong = getattr(case.meta.phase.data, "description", None) or ""
    parameter = getattr(case.meta.phase.data, "parameter", None)
    return not (invalid == {"query"} and parameter == "query" and wrong.startswith("violates `format`"))


# By method and path.
VALIDATORS = {}


def is_valid_body(operation, body):
    """Whether the document allows a body. Formats that JSON Schema does not know do not count."""
    name = (operation.method.lower(), operation.path)
    if name not in VALIDATORS:
        document = operation.schema.raw_schema
        content = document["paths"][operation.path][name[0]]["requestBody"]["content"]
        schema = {**content["application/json"]["schema"], "components": document["components"]}
        VALIDATORS[name] = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    try:
        return VALIDATORS[name].is_valid(body)
    except ValueError:
        # It is no JSON.
        return False


@schemathesis.hook
def before_call(ctx, case, kwargs):
    """Makes valid requests fit to each other and to the state of the server, which a document cannot demand."""
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    if case.query:
        fit_parameters(case.operation.path, case.query)
    # A change would take away what others are to read.
    if case.method.upper() == "GET":
        name_existing(case.operation.path, case.path_parameters)
    # Another request with a used key is an error.
    if isinstance((case.headers or {}).get("Idempotency-Key"), str):
        case.headers["Idempotency-Key"] = f"k-{uuid.uuid4()}"


def name_existing(path, parameters):
    """Names something that exists in a path."""
    for start, values in NAMES.items():
        if path.startswith(start):
            name = start[start.index("{") + 1 : -1]
            parameters[name] = urllib.parse.quote(next(values), safe="")


def fit_parameters(path, query):
    """Gives a list a cursor of its own, and the number of an entry of the audit its hash."""
    if query.get("after") == "next":
        position = LATEST_AUDIT if path == "/v1/audit" and query.get("order") == "latest" else LISTS.get(path)
        if position is None:
            del query["after"]
        else:
            query["after"] = base64.urlsafe_b64encode(f"1 {position}".encode()).decode().rstrip("=")
    if ("number" in query) != ("hash" in query):
        query.pop("number", None)
        query.pop("hash", None)


@schemathesis.serializer("application/x-ndjson", "application/jsonl")
def lines(ctx, value):
    """Sends text as it is, and anything else as one line of JSON."""
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else json.dumps(value).encode()
