"""A small server that speaks as OpenAI's do and has a real, tiny language model; and the faults that servers have.

It knows nothing of bifolio: the model is run with transformers, so that what comes through HTTP can be compared.
"""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


class Model:
    """Logits, tokens and text of a saved model, which is made to prefer some characters and to come to an end."""

    def __init__(self, folder, *, prefers="abc .CD", ends=2.0):
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.eos = self.tokenizer.eos_token_id
        self._lock = threading.Lock()
        self.shown = [self.tokenizer.decode([token]) for token in range(len(self.tokenizer))]
        self.ends = [t for t, text in enumerate(self.shown) if t == self.eos or text.startswith(("\n", "\r"))]
        self.bias = torch.full((len(self.shown),), -40.0, dtype=torch.float64)
        self.bias[[t for t, text in enumerate(self.shown) if text.strip(prefers) == "" and text]] = 0.0
        self.bias[self.ends[-1]] = self.bias[self.ends[0]] = ends

    def ids(self, text):
        return self.tokenizer(text)["input_ids"]

    def show(self, token):
        return self.shown[token]

    def text(self, tokens):
        return self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    @torch.inference_mode()
    def log_probs(self, ids):
        """Log p of what follows each prefix of ``ids``: (len(ids), V), float64."""
        with self._lock:
            return torch.log_softmax(self.network(torch.tensor([ids])).logits[0].double() + self.bias, dim=-1)

    def continued(self, ids, *, max_tokens, stop, temperature, seed):
        """Generated tokens with the distributions that they were taken from, the text, and why it ended."""
        dice = torch.Generator().manual_seed(seed)
        tokens, rows = [], []
        while len(tokens) < max_tokens:
            row = self.log_probs([*ids, *tokens])[-1]
            if temperature:
                token = int(torch.multinomial((row / temperature).softmax(0), 1, generator=dice))
            else:
                token = int(row.argmax())
            tokens.append(token)
            rows.append(row)
            text = self.text([t for t in tokens if t != self.eos])
            cut = min((text.index(s) for s in stop if s in text), default=None)
            if cut is not None:
                return tokens, rows, text[:cut], "stop"
            if token == self.eos:
                return tokens, rows, text, "stop"
        return tokens, rows, self.text(tokens), "length"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format, *args):
        self.server.log.append(format % args)

    def do_GET(self):
        self._answer(None)

    def do_POST(self):
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, payload):
        server = self.server
        with server.lock:
            server.requests.append((self.path, payload, dict(self.headers)))
        if server.fault is None or not server.fault(self, payload):
            status, answer = server.respond(self.path, payload)
            self.json(status, server.edit(answer) if status == 200 else answer)

    def json(self, status, answer, **headers):
        self.raw(status, json.dumps(answer).encode(), **headers)

    def raw(self, status, body, **headers):
        self.send_response(status)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        for name, value in {"Content-Length": len(body), **named}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    """Switches: ``fault(handler, payload)`` answers instead of the model if it returns True; ``edit(answer)`` changes a
    good answer; ``abilities`` are what this server can do; ``most`` bounds the alternatives a token."""

    daemon_threads = True

    def __init__(self, model, *, abilities=("completions", "chat", "logprobs", "echo"), most=1000, names=("tiny",)):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model, self.abilities, self.most, self.names = model, set(abilities), most, list(names)
        self.fault = None
        self.edit = lambda answer: answer
        self.hide_end = False
        self.lock = threading.Lock()
        self.release = threading.Event()
        self.requests, self.log, self.errors = [], [], []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request, client_address):
        self.errors.append(client_address)

    def respond(self, path, payload):
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": name, "object": "model"} for name in self.names]}
        kind = {"/v1/completions": "completions", "/v1/chat/completions": "chat"}.get(path)
        if kind not in self.abilities:
            return 404, {"error": {"message": f"no route {path}"}}
        if payload["model"] not in self.names:
            return 404, {"error": {"message": f"The model `{payload['model']}` does not exist."}}
        if payload.get("echo") and "echo" not in self.abilities:
            return 500, {"error": {"code": 500, "message": "Only no echo is supported"}}
        if max(int(payload.get("logprobs") or 0), payload.get("top_logprobs") or 0) > self.most:
            return 400, {"error": {"message": f"at most {self.most} logprobs"}}
        return self._completion(payload) if kind == "completions" else self._chat(payload)

    def _generate(self, ids, payload):
        made = self.model.continued(
            ids,
            max_tokens=payload["max_tokens"],
            stop=payload.get("stop") or [],
            temperature=payload.get("temperature", 1.0),
            seed=payload.get("seed", 0),
        )
        tokens, rows, text, why = made
        if self.hide_end and tokens and tokens[-1] == self.model.eos:
            tokens, rows = tokens[:-1], rows[:-1]
        return tokens, rows, text, why

    def _top(self, row, token, count):
        best = [int(t) for t in row.topk(min(count, len(row))).indices]
        return {self.model.show(t): float(row[t]) for t in [*reversed(best), token]}

    def _completion(self, payload):
        ids = self.model.ids(payload["prompt"])
        tokens, rows, text, why = self._generate(ids, payload)
        count = payload.get("logprobs") if "logprobs" in self.abilities else None
        whole = tokens
        if payload.get("echo"):
            before = self.model.log_probs(ids)
            whole, rows, text = [*ids, *tokens], [None, *before[:-1], *rows], payload["prompt"] + text
        logprobs = None
        if count is not None:
            logprobs = {
                "tokens": [self.model.show(token) for token in whole],
                "token_logprobs": [
                    None if row is None else float(row[token]) for token, row in zip(whole, rows, strict=True)
                ],
                "top_logprobs": [
                    None if row is None else self._top(row, token, count if i >= len(whole) - len(tokens) else 1)
                    for i, (token, row) in enumerate(zip(whole, rows, strict=True))
                ],
            }
        choice = {"index": 0, "text": text, "finish_reason": why, "logprobs": logprobs}
        return 200, {"object": "text_completion", "choices": [choice], "usage": {"prompt_tokens": len(ids)}}

    def _chat(self, payload):
        final = payload.get("continue_final_message", False)
        ids = self.model.tokenizer.apply_chat_template(
            payload["messages"],
            continue_final_message=final,
            add_generation_prompt=payload.get("add_generation_prompt", True),
            return_dict=True,
        )["input_ids"]
        tokens, rows, text, why = self._generate(ids, payload)
        logprobs = None
        if payload.get("logprobs") and "logprobs" in self.abilities:
            logprobs = {"content": [self._entry(t, row, payload) for t, row in zip(tokens, rows, strict=True)]}
        message = {"role": "assistant", "content": text}
        answer = {"choices": [{"index": 0, "message": message, "finish_reason": why, "logprobs": logprobs}]}
        if "prompt_logprobs" in self.abilities and payload.get("prompt_logprobs") is not None:
            before = self.model.log_probs(ids)
            answer["prompt_logprobs"] = [None] + [
                {str(token): {"logprob": float(row[token]), "rank": 1, "decoded_token": self.model.show(token)}}
                for token, row in zip(ids[1:], before[:-1], strict=True)
            ]
        return 200, answer

    def _entry(self, token, row, payload):
        best = row.topk(min(payload.get("top_logprobs", 0), len(row))).indices.tolist()
        return {
            "token": self.model.show(token),
            "logprob": float(row[token]),
            "bytes": None,
            "top_logprobs": [{"token": self.model.show(t), "logprob": float(row[t]), "bytes": None} for t in best],
        }


@contextmanager
def serving(model, **options):
    """A running server; every thread of it ends with the block."""
    server = Server(model, **options)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.release.set()
        server.shutdown()
        thread.join()
        server.server_close()


def busy(times, status=429, **headers):
    """The first ``times`` requests are turned away."""
    left = [times]

    def fault(handler, payload):
        if not left[0]:
            return False
        left[0] -= 1
        handler.json(status, {"error": {"message": "Rate limit"}}, **headers)
        return True

    return fault


def always(status, body=b"", **headers):
    """Every request gets this answer."""

    def fault(handler, payload):
        handler.raw(status, body, **headers)
        return True

    return fault


def hang(handler, payload):
    """Nothing comes, until the server is closed."""
    handler.server.release.wait()
    handler.close_connection = True
    return True


def drip(handler, payload):
    """A byte now and then, before any header is complete."""
    handler.close_connection = True
    while not handler.server.release.wait(0.05):
        handler.wfile.write(b"H")
        handler.wfile.flush()
    return True


def endless(handler, payload):
    """A body without an end."""
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.close_connection = True
    while not handler.server.release.is_set():
        handler.wfile.write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
    return True
