"""A small model server: every request says how important it is, and the whole server is that important meanwhile.

    POST /run with {"priority": "high"}  ->  {"ms": 3.2}
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
import xsched

model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(10)]).to("cuda")
x = torch.randn(256, 2048, device="cuda")
one_at_a_time = threading.Lock()


def run():
    with one_at_a_time, torch.no_grad():
        model(x)
        torch.cuda.synchronize()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        try:
            request = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            # Also while it waits for its turn: what it waits for is then as important as itself.
            with xsched.priority(request.get("priority", "normal")):
                begin = time.perf_counter()
                run()
            self.answer(200, {"ms": (time.perf_counter() - begin) * 1e3})
        except (xsched.Error, ValueError) as error:
            # A priority that cannot be, or that this user may not have: in the words of the command line.
            self.answer(400, {"error": str(error)})

    def answer(self, status, what):
        body = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass


run()
server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0), Handler)
print(json.dumps(server.server_port), flush=True)
server.serve_forever()
