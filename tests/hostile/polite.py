"""The well-behaved client: arms one timer at a time at a steady pace, and writes down how long each took.

`python -m tests.hostile.polite URL RATE` goes on until it is told to stop, on one connection that it opens again when
it must. Each line is the time of sending and what passed until the answer, in seconds, -1 for none.
"""

import http.client
import signal
import sys
import time

import msgspec

FAR = 2_050_000_000_000


def main(url: str, rate: float) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    address = url.removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=10)
    due = time.monotonic()
    n = 0
    while True:
        due = max(due + 1 / rate, time.monotonic() - 1)
        time.sleep(max(0, due - time.monotonic()))
        n += 1
        body = msgspec.json.encode({"type": "t", "fire_at": FAR + n, "payload": {"n": n}})
        started = time.monotonic()
        try:
            connection.request("PUT", f"/v1/timers/polite:{n % 10_000}", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            took = time.monotonic() - started if answer.status in (200, 201) else -1.0
        except (OSError, http.client.HTTPException):
            connection.close()
            took = -1.0
        print(f"{started} {took}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
