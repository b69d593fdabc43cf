"""What Schemathesis has to know about the API beyond its OpenAPI document: media types, formats, and parameters that go together."""

import base64
import uuid

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
def before_call(ctx, case, kwargs):
    """Makes valid requests fit to each other and to the state of the server, which a document cannot demand."""
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    if case.query:
        fit_parameters(case.operation.path, case.query)
    # Another request with a used key is an error.
    if isinstance((case.headers or {}).get("Idempotency-Key"), str):
        case.headers["Idempotency-Key"] = f"k-{uuid.uuid4()}"


def fit_parameters(path, query):
    """Gives a list a cursor of its own, and the number of an entry of the audit its hash."""
    if query.get("after") == "next":
        position = LISTS.get(path)
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
    import json

    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else json.dumps(value).encode()
