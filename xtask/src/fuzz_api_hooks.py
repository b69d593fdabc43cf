"""Serializers for the media types of the API that Schemathesis does not know."""

import schemathesis


@schemathesis.serializer("application/x-ndjson", "application/jsonl")
def lines(ctx, value):
    """Sends text as it is, and anything else as one line of JSON."""
    import json

    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else json.dumps(value).encode()
