"""HTTP to one server and nothing more: JSON in, JSON out, bounded in time and size, cancelled as a whole.

Only the standard library: a request is one POST of a few kilobytes, and what a client library would add (redirects,
cookies, decompression, proxies from the environment) is what must not happen here. A key is read from the environment
when a request is sent and is kept nowhere.
"""

from __future__ import annotations

import io
import json
import math
import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, cast
from urllib.parse import SplitResult, urlsplit

from bifolio._version import __version__
from bifolio.errors import ModelError, UsageError

_BUSY = (429, 503)
_CONNECT_SECONDS = 20.0
_EXCERPT = 300  # characters of a server's own words in a message of ours


class ServerError(ModelError):
    """The server answered, and not with what was asked for; ``status`` is the HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        """Remember the HTTP ``status`` beside the ``message``."""
        super().__init__(message)
        self.status = status


class _CancelledError(Exception):
    """The caller has given up; nobody sees this."""


class _TooLongError(Exception):
    """More bytes than a body may have."""


@dataclass(frozen=True)
class Limits:
    """How long and how much a server may take.

    Attributes:
        timeout: Seconds for one request, from connecting to the last byte.
        attempts: How often a request is sent at most, when the server says that it is busy (429, 503).
        first_wait: Seconds before the second attempt, doubled before each further one, unless ``Retry-After`` says.
        longest_wait: Seconds that are waited at most before an attempt; a server that asks for more is an error.
        body: Bytes of an answer, headers included.
    """

    timeout: float = 120.0
    attempts: int = 4
    first_wait: float = 0.5
    longest_wait: float = 30.0
    body: int = 64 * 2**20

    def __post_init__(self) -> None:
        for name in ("timeout", "first_wait", "longest_wait"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise UsageError(f"{name} {value!r}: expected a finite number of seconds above 0")
        for name in ("attempts", "body"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} {value!r}: expected a whole number from 1 on")


@dataclass(frozen=True)
class Request:
    """One exchange: ``payload`` is sent as JSON with POST, or nothing with GET where it is None."""

    path: str
    payload: dict[str, Any] | None = None


class Endpoint:
    """The server behind one URL. Safe to use from many threads."""

    def __init__(self, url: str, *, api_key_env: str | None = None, limits: Limits | None = None) -> None:
        """Check the address; nothing is sent.

        Args:
            url: Such as ``http://127.0.0.1:8000/v1``; without a path ``/v1`` is added.
            api_key_env: Environment variable with the key. None: ``OPENAI_API_KEY`` for https://api.openai.com,
                ``BIFOLIO_API_KEY`` everywhere else, so that no server gets a key that was meant for another.
            limits: Bounds of time and size.

        Raises:
            UsageError: the URL is not plain http or https to a host, or carries a password or a query.
        """
        parts = _parse(url)
        self._host = parts.hostname or ""
        self._port = parts.port
        self._secure = parts.scheme == "https"
        self._prefix = parts.path.rstrip("/") or "/v1"
        self.url = f"{parts.scheme}://{parts.netloc}{self._prefix}"
        theirs = self._secure and self._host == "api.openai.com"
        self.key_name = api_key_env or ("OPENAI_API_KEY" if theirs else "BIFOLIO_API_KEY")
        self.limits = limits or Limits()

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r})"

    def ask(self, requests: Sequence[Request], concurrency: int = 1) -> list[Any]:
        """Answers to all requests, in their order, at most ``concurrency`` under way at a time.

        When one fails, or the caller is interrupted, the others are broken off; no thread outlives the call.

        Raises:
            ServerError: the server answers with an error or with something that is no JSON object.
            ModelError: it cannot be reached, takes too long or sends too much.
            UsageError: the key in the environment cannot be sent.
        """
        flight = _Flight()
        if len(requests) == 1:
            return [self._ask(requests[0], flight)]
        pool = ThreadPoolExecutor(max(1, min(concurrency, len(requests))), thread_name_prefix="bifolio-remote")
        try:
            futures = [pool.submit(self._ask, request, flight) for request in requests]
            _raise_first(futures)
            return [future.result() for future in futures]
        except BaseException:
            flight.cancel()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _ask(self, request: Request, flight: _Flight) -> Any:
        """One request, sent again while the server is busy."""
        for attempt in range(1, self.limits.attempts + 1):
            status, headers, body = self._exchange(request, flight)
            if status not in _BUSY or attempt == self.limits.attempts:
                break
            flight.sleep(self._pause(attempt, headers.get("retry-after"), status))
        return self._understand(status, headers, body)

    def _pause(self, attempt: int, retry_after: str | None, status: int) -> float:
        """Seconds before the next attempt."""
        asked = _seconds(retry_after)
        if asked is None:
            share = 0.5 + random.random() / 2  # so that branches that were turned away together come back apart
            return min(self.limits.first_wait * 2.0 ** (attempt - 1), self.limits.longest_wait) * share
        if asked > self.limits.longest_wait:
            raise ServerError(
                f"{self.url} is busy (HTTP {status}) and asks to wait {asked:.0f} s, which is more than the "
                f"{self.limits.longest_wait:g} s that are waited: try again later",
                status,
            )
        return asked

    def _exchange(self, request: Request, flight: _Flight) -> tuple[int, dict[str, str], bytes]:
        """Status, headers with small names, and body."""
        headers = {"Accept": "application/json", "User-Agent": f"bifolio/{__version__}", "Connection": "close"}
        if key := self._key():
            headers["Authorization"] = f"Bearer {key}"
        body = None if request.payload is None else json.dumps(request.payload).encode()
        if body is not None:
            headers["Content-Type"] = "application/json"
        deadline = time.monotonic() + self.limits.timeout
        connection = (HTTPSConnection if self._secure else HTTPConnection)(
            self._host, self._port, timeout=min(self.limits.timeout, _CONNECT_SECONDS)
        )
        line: socket.socket | None = None
        try:
            connection.connect()
            line = connection.sock
            flight.take(line)
            connection.sock = cast(socket.socket, _Line(line, deadline, self.limits.body))
            connection.request("GET" if body is None else "POST", self._prefix + request.path, body, headers)
            with connection.getresponse() as response:
                return response.status, {k.lower(): v for k, v in response.getheaders()}, self._body(response)
        except (OSError, HTTPException, _TooLongError) as error:
            flight.check()
            raise self._broken(error) from None
        finally:
            if line is not None:
                flight.drop(line)
                line.close()
            connection.close()

    def _key(self) -> str:
        """The key, which a header can hold; "" for none."""
        key = os.environ.get(self.key_name, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise UsageError(f"the key in {self.key_name} has characters that no key has: set it again")
        return key

    def _body(self, response: HTTPResponse) -> bytes:
        length = response.getheader("Content-Length") or ""
        if length.isdecimal() and (len(length) > 15 or int(length) > self.limits.body):
            raise _TooLongError
        return response.read()

    def _broken(self, error: Exception) -> ModelError:
        """A sentence for an exchange that came to nothing."""
        if isinstance(error, _TooLongError):
            return ModelError(
                f"{self.url} sends more than {self.limits.body} bytes in one answer: is it the right one?"
            )
        if isinstance(error, TimeoutError):
            return ModelError(
                f"{self.url} did not finish within {self.limits.timeout:g} s: raise timeout if it is slow"
            )
        if isinstance(error, ConnectionRefusedError):
            return ModelError(f"no server answers at {self.url} (connection refused): start it, or correct the address")
        if isinstance(error, socket.gaierror):
            return ModelError(f"the host {self._host} of {self.url} cannot be found: correct the address")
        if isinstance(error, ssl.SSLError):
            return ModelError(f"{self.url} cannot be trusted or does not speak https: {self._say(error)}")
        return ModelError(f"the connection to {self.url} broke ({type(error).__name__}: {self._say(error)})")

    def _understand(self, status: int, headers: dict[str, str], body: bytes) -> Any:
        """The JSON object of a good answer; ``ServerError`` for anything else."""
        if status != 200:
            raise ServerError(self._refusal(status, headers, body), status)
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            excerpt = self._say(body.decode("utf-8", "replace"))
            raise ServerError(f"{self.url} answered with something that is not JSON: {excerpt}", status) from None
        if not isinstance(value, dict):
            raise ServerError(f"{self.url} answered with JSON that is not an object: {self._say(value)}", status)
        if value.get("error"):
            raise ServerError(f"{self.url} answered with an error: {self._say(_reason(value))}", status)
        return value

    def _refusal(self, status: int, headers: dict[str, str], body: bytes) -> str:
        """A sentence for an HTTP status that is not 200."""
        if 300 <= status < 400:
            where = urlsplit(headers.get("location", ""))
            host = f"{where.scheme}://{where.hostname}" if where.hostname else "another path"
            return f"{self.url} redirects to {self._say(host)}, which is not followed: give the final address"
        try:
            reason = _reason(json.loads(body))
        except (ValueError, RecursionError):
            reason = body.decode("utf-8", "replace")
        said = f": {text}" if (text := self._say(reason)) else ""
        if status in (401, 403):
            what = "it wants another key" if self._key() else "it wants a key"
            return f"{self.url} refused the request (HTTP {status}): {what} in the variable {self.key_name}{said}"
        if status in _BUSY:
            return f"{self.url} is busy (HTTP {status}, {self.limits.attempts} attempts){said}"
        return f"{self.url} answered HTTP {status}{said}"

    def _say(self, what: object) -> str:
        """A server's words on one line, short, without control characters, and never the key."""
        text = "".join(c if c.isprintable() else " " for c in str(what)[: 4 * _EXCERPT])
        key = os.environ.get(self.key_name, "").strip()
        text = text.replace(key, "***") if key else text
        text = " ".join(text.split())
        return text if len(text) <= _EXCERPT else text[:_EXCERPT] + "…"


class _Flight:
    """The requests of one call: their sockets, so that all can be broken off at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: set[socket.socket] = set()
        self._over = threading.Event()

    def take(self, line: socket.socket) -> None:
        with self._lock:
            self._lines.add(line)
        self.check()

    def drop(self, line: socket.socket) -> None:
        with self._lock:
            self._lines.discard(line)

    def check(self) -> None:
        if self._over.is_set():
            raise _CancelledError

    def sleep(self, seconds: float) -> None:
        if self._over.wait(seconds):
            raise _CancelledError

    def cancel(self) -> None:
        self._over.set()
        with self._lock:
            for line in self._lines:
                try:
                    socket.socket.shutdown(line, socket.SHUT_RDWR)  # not that of TLS, which is not for two threads
                except OSError:
                    continue


class _Line:
    """A socket as http.client uses it, with one deadline and one bound for all that is read."""

    def __init__(self, line: socket.socket, deadline: float, most: int) -> None:
        self._line, self._deadline, self._most = line, deadline, most

    def sendall(self, data: bytes) -> None:
        self._line.settimeout(_left(self._deadline))
        self._line.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Incoming(self._line, self._deadline, self._most))

    def close(self) -> None:
        """Nothing: the socket is closed where it was opened."""


class _Incoming(io.RawIOBase):
    """What a socket receives; each wait is bounded by what is left of the whole time."""

    def __init__(self, line: socket.socket, deadline: float, most: int) -> None:
        self._line, self._deadline, self._left = line, deadline, most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._line.settimeout(_left(self._deadline))
        got = self._line.recv_into(buffer)
        self._left -= got
        if self._left < 0:
            raise _TooLongError
        return got


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _parse(url: str) -> SplitResult:
    """The parts of a URL that is plain http or https to a host; no message repeats what may be a secret."""
    if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url:
        raise UsageError("the address of a server has to be a URL in ASCII, such as http://127.0.0.1:8000/v1")
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
        (host or "").encode("idna")  # a label that is too long would fail when the name is looked up
    except ValueError:
        raise UsageError("the address of the server cannot be read: expected http://HOST:PORT/v1") from None
    if parts.scheme not in ("http", "https"):
        raise UsageError(f"address with the scheme {parts.scheme!r}: only http and https are spoken")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UsageError(
            "the address of a server is scheme, host, port and path alone: put the key into an environment variable"
        )
    if not host or port == 0:
        raise UsageError(f"{url!r} names no host and port: expected http://HOST:PORT/v1")
    return parts


def _raise_first(futures: Sequence[Future[Any]]) -> None:
    """Wait for all, or raise what the first failure was."""
    done, _ = wait(futures, return_when=FIRST_EXCEPTION)
    for future in futures:
        if future in done:
            future.result()


def _seconds(retry_after: str | None) -> float | None:
    """What a ``Retry-After`` header asks for: seconds, or a date; None if there is none that can be read."""
    if retry_after is None:
        return None
    try:
        if retry_after.strip().isdecimal():
            return float(retry_after)
        when = parsedate_to_datetime(retry_after)
        return max(0.0, (when - datetime.now(timezone.utc)).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None


def _reason(value: Any) -> str:
    """A server's own words for what went wrong, in the places where servers put them."""
    error = value.get("error", value) if isinstance(value, dict) else value
    for name in ("message", "detail", "error"):
        if isinstance(error, dict) and error.get(name):
            return str(error[name])
    return str(error)
