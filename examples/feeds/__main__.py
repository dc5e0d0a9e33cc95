"""Poll feeds, a timer each.

python -m examples.feeds --demo                          half a minute with everything local, and a verdict
python -m examples.feeds --demo --kill                   the same, with a kill -9 of timerd in the middle
python -m examples.feeds --online --timerd http://127.0.0.1:8470 --opml my.opml --db feeds.sqlite
"""

import argparse
import os
import sys
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from .demo import Options, execute
from .service import CUTOFF_S

FEEDS = Path(__file__).with_name("feeds.opml")
DEMO_INTERVAL_S = 5.0
ONLINE_DEMO_INTERVAL_S = 60.0
"""Strangers' servers are polled no faster than that unless told to."""
INTERVAL_S = 900.0
DEMO_INTERVALS = 6
"""How long a demo takes: half a minute locally."""
INTERVAL_S_MIN = CUTOFF_S + 1
"""A poll may take up to its cut-off and is answered after it; its successor can't be due before that."""
DEMO_FAILED_FACTOR = 2
FAILED_FACTOR = 96
"""A feed that is gone for good ends at one poll a day, from a quarter of an hour."""


def main() -> None:
    usage, _, examples = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m examples.feeds",
        description=usage,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--demo", action="store_true", help="run for a while, then judge the run: exit 0 if all was well, 1 if not")
    add("--opml", type=Path, default=FEEDS, help="a list of feeds, or a folder of lists (default: a short list)")
    add("--seconds", type=_positive, help="length of the demo (default: six intervals)")
    add("--interval", type=_positive, help="seconds between polls of a feed (demo: 5, online 60; else 900)")
    add("--max-lag", type=_positive, default=1.0, help="how long timerd may gather a batch, in seconds (default 1)")
    add("--online", action="store_true", help="poll the network instead of the local provider")
    add("--kill", action="store_true", help="kill -9 timerd in the middle of the demo and start it again")
    add("--db", type=Path, help="the service's own store (default: one that goes with the run)")
    add(
        "--timerd",
        metavar="URL",
        type=_address,
        help="a running timerd, its key in TIMERD_API_KEY (default: start one)",
    )
    add("--host", default="127.0.0.1", help="where the service listens, as timerd reaches it")
    add("--port", type=int, default=0, help="0 takes a free one")
    add("--seed", type=int, default=1, help="of the local provider")
    given = parser.parse_args()

    default_s = INTERVAL_S if not given.demo else ONLINE_DEMO_INTERVAL_S if given.online else DEMO_INTERVAL_S
    interval_s = given.interval or default_s
    if interval_s < INTERVAL_S_MIN:
        parser.error(f"--interval: a poll may take {CUTOFF_S:g} s, so at least {INTERVAL_S_MIN:g}")
    if given.kill and (given.timerd or not given.demo):
        parser.error("--kill: only for the demo, and only the timerd it started itself")
    interval = timedelta(seconds=interval_s)
    options = Options(
        opml=given.opml,
        judged=given.demo,
        seconds=(given.seconds or DEMO_INTERVALS * interval_s) if given.demo else given.seconds,
        interval=interval,
        failed_interval_max=interval * (DEMO_FAILED_FACTOR if given.demo else FAILED_FACTOR),
        max_lag=timedelta(seconds=given.max_lag),
        online=given.online,
        kill=given.kill,
        db=given.db,
        timerd=given.timerd,
        key=os.environ.get("TIMERD_API_KEY"),
        host=given.host,
        port=given.port,
        seed=given.seed,
    )
    sys.exit(execute(options))


def _address(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(f"an address such as http://127.0.0.1:8470, not {text!r}")
    return text


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 10**9:
        raise argparse.ArgumentTypeError("a number above 0")
    return value


if __name__ == "__main__":
    main()
