"""A worker: one JSON line in, one JSON line out. program: [python3, worker.py], mode: lines"""
import json, sys


def handle(message):
    total = message["payload"]["total"]
    if total < 0:
        return {"verdict": "dead-letter", "reason": "NEGATIVE_TOTAL", "message": "a negative total"}
    if total == 0:
        return {"verdict": "retry", "message": "not priced yet", "retry-after": 30}
    return {"verdict": "handled"}


for line in sys.stdin:
    message = json.loads(line)
    try:
        answer = handle(message)
    except Exception as error:  # one bad message must not end the worker
        answer = {"verdict": "dead-letter", "reason": "INVALID_SCHEMA", "message": repr(error)}
    print(json.dumps({"id": message["id"], **answer}), flush=True)
