"""A small model server: each request carries a priority, which the server's process has while it serves the request.

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
            # Also while the request waits for the lock: the request that holds it then has at least this priority.
            with xsched.priority(request.get("priority", "normal")):
                begin = time.perf_counter()
                run()
            self.reply(200, {"ms": (time.perf_counter() - begin) * 1e3})
        except (xsched.Error, ValueError) as error:
            # An invalid priority, or one that this user may not have; with the message of the command line.
            self.reply(400, {"error": str(error)})

    def reply(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


run()
server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0), Handler)
print(json.dumps(server.server_port), flush=True)
server.serve_forever()
