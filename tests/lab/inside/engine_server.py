# mypy: ignore-errors
"""A simulated engine for a test host: python3 - FILE; prints its port, ends with its input.

/health reads FILE; /v1/completions has a worker process read it, as engines do; /broken answers
500; /hang never answers, and makes FILE.asked.
"""

import http.server
import json
import os
import sys
import threading

PATH = sys.argv[1]
MODEL = "served/model"


def read() -> None:
    with open(PATH, "rb") as file:
        while file.read(1 << 20):
            pass


asked, ask = os.pipe()
done, tell = os.pipe()
if os.fork() == 0:
    os.close(ask)
    while os.read(asked, 1):
        read()
        os.write(tell, b"1")
    os._exit(0)
os.close(asked)


class Engine(http.server.BaseHTTPRequestHandler):
    def answer(self, status, body=b"ok"):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/health":
            read()
            self.answer(200)
        elif self.path == "/v1/models":
            self.answer(200, json.dumps({"data": [{"id": MODEL}]}).encode())
        elif self.path == "/hang":
            open(PATH + ".asked", "w").close()
            threading.Event().wait()
        else:
            self.answer(500 if self.path == "/broken" else 404)

    def do_POST(self):
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        known = question == {"model": MODEL, "prompt": "a", "max_tokens": 1}
        if self.path == "/v1/completions" and known:
            os.write(ask, b"1")
            os.read(done, 1)
            self.answer(200, b'{"choices": []}')
        else:
            self.answer(400)

    def log_message(self, *words):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True


server = Server(("127.0.0.1", 0), Engine)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
sys.stdin.read()
os._exit(0)
