"""Clients and services of other versions of the protocol, and ones that do not keep to it."""
import contextlib
import json
import os
import re
import socket
import threading

from .machine import ROOT, Failure

MAX_PACKET_SIZE = 64 * 1024
# That of the service.
PROTOCOL = int(re.search(r"^pub const PROTOCOL: u32 = (\d+);", (ROOT / "crates/xsched-ipc/src/protocol.rs").read_text(), re.MULTILINE)[1])


def join_request(protocol):
    return {"request": "join", "args": {"protocol": protocol, "version": "0.0.0", "name": None, "hint_request": {}}}


def join(path, rng):
    """Connects as a client of another version, and sends what such a client may send. Returns a description. The connection is closed."""
    protocol = rng.choice([0, 1, PROTOCOL - 1, PROTOCOL + 1, 99, 2**32 - 1])
    messages = [join_request(protocol), {"request": "join", "args": {"protocol": protocol}}, {"request": "teleport", "args": {}}, {"request": "hint", "args": {"color": 1}}, [], "x"]
    sent = [rng.choice(messages) for _ in range(rng.randint(1, 5))]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.settimeout(20)
        client.connect(path)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for message in sent:
                client.send(json.dumps(message).encode())
                try:
                    reply, ancillary, _, _ = client.recvmsg(MAX_PACKET_SIZE, socket.CMSG_SPACE(4))
                except TimeoutError as error:
                    raise Failure(f"the service did not reply to {message}") from error
                if not reply:
                    break
                if ancillary:
                    raise Failure(f"the service gave a page to a client with {message}")
    return f"protocol {protocol}, {len(sent)} messages"


class Service:
    """Listens at a socket and behaves as a service of another version, or not as a service at all."""

    BEHAVIORS = ["refuses the version", "closes at once", "never replies", "sends an unknown reply", "sends no page", "sends an empty page", "sends a page of another layout", "sends bytes"]

    def __init__(self, path, rng):
        self.path, self.behavior, self.connections, self.kept = path, rng.choice(self.BEHAVIORS), 0, []

    def __enter__(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen(64)
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()
        return self

    def serve(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            self.kept.append(client)
            threading.Thread(target=self.answer, args=[client], daemon=True).start()

    def answer(self, client):
        with contextlib.suppress(OSError):
            while client.recv(MAX_PACKET_SIZE):
                self.reply(client)

    def reply(self, client):
        welcome = {"reply": "welcome", "args": {"version": "9.0.0", "note": None}}
        if self.behavior == "refuses the version":
            client.send(json.dumps({"reply": "refused", "args": {"why": "protocol 3, the service has 9"}}).encode())
        elif self.behavior == "closes at once":
            client.shutdown(socket.SHUT_RDWR)
        elif self.behavior == "sends an unknown reply":
            client.send(json.dumps({"reply": "teleported", "args": [1, 2]}).encode())
        elif self.behavior == "sends no page":
            client.send(json.dumps(welcome).encode())
        elif self.behavior == "sends bytes":
            client.send(os.urandom(200))
        elif self.behavior in ("sends an empty page", "sends a page of another layout"):
            page = os.memfd_create("page", os.MFD_ALLOW_SEALING)
            if self.behavior == "sends a page of another layout":
                os.write(page, os.urandom(1 << 16))
            socket.send_fds(client, [json.dumps(welcome).encode()], [page])
            os.close(page)

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(10)
        for client in self.kept:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            client.close()
        os.unlink(self.path)
