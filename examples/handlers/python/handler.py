"""A handler over HTTP, standard library only: PORT=8080 python3 handler.py"""
import json, os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

handled = set()  # in production: a table, written in the transaction that does the work


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        event = self.headers["ce-id"]
        if event in handled:
            return self.answer(208)  # duplicate
        try:
            total = json.loads(body)["total"]
            if type(total) is not int:
                raise ValueError("total is no integer")  # int() would cut 4.5 to 4, and take "4" and true
        except Exception as error:  # also deep nesting, and integers that are too long
            return self.answer(400, str(error))  # dead letter, INVALID_SCHEMA
        if total < 0:
            return self.answer(422, "a negative total", {"Lazaret-Reason": "NEGATIVE_TOTAL"})  # dead letter
        if total == 0:
            return self.answer(503, "not priced yet", {"Retry-After": "30"})  # retry, not before 30 s
        handled.add(event)
        self.answer(204)

    def answer(self, status, text="", headers={}):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(text.encode()))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())


server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", 8080))), Handler)
print("listening on", server.server_port, flush=True)
server.serve_forever()
