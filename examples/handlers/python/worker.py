"""A worker: one JSON line in, one JSON line out. program: [python3, worker.py], mode: lines"""
import base64, json, sys


def payload(message):
    if "payload-base64" in message:  # the source did not declare JSON
        return json.loads(base64.b64decode(message["payload-base64"]))
    return message["payload"]


def handle(message):
    total = payload(message)["total"]
    if type(total) is not int:
        raise ValueError("total is no integer")
    if total < 0:
        return {"verdict": "dead-letter", "reason": "NEGATIVE_TOTAL", "message": "a negative total"}
    if total == 0:
        return {"verdict": "retry", "message": "not priced yet", "retry-after": 30}
    return {"verdict": "handled"}


for line in sys.stdin:
    event, _ = json.JSONDecoder().raw_decode(line, len('{"id":'))  # the id comes first, whatever the payload is
    try:
        answer = handle(json.loads(line))
    except Exception as error:  # one bad message must not end the worker: deep nesting, a long integer, no total
        answer = {"verdict": "dead-letter", "reason": "INVALID_SCHEMA", "message": repr(error)}
    print(json.dumps({"id": event, **answer}), flush=True)
