"""What `/v1/stats` says of targets, in words: for people, beside the JSON, on stderr."""

from collections.abc import Mapping
from typing import Any

import typer


def tell(types: Mapping[str, Mapping[str, Any]]) -> None:
    """A line for each target that is in trouble; nothing if there is none."""
    for line in lines(types):
        typer.echo(line, err=True)


def lines(types: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The lines, types in the order in which they come."""
    found = []
    for name, stats in types.items():
        if target := stats.get("target"):
            found += [f"{name}: its target{_since(target)} {word}" for word in _words(target)]
        if hosts := stats.get("hosts"):
            for host in hosts["troubled"]:
                found += [f"{name}: host {host['host']}{_since(host)} {word}" for word in _words(host)]
            if unnamed := max(hosts["open"], hosts["slowed"], hosts["held"]) - len(hosts["troubled"]):
                found += [f"{name}: and {unnamed} hosts more"] if unnamed > 0 else []
    return found


def _since(target: Mapping[str, Any]) -> str:
    return f", in trouble since {target['since']}," if target.get("since") else ""


def _words(target: Mapping[str, Any]) -> list[str]:
    why = f" ({target['reason']})" if target["reason"] else ""
    if target["breaker"] == "open":
        return [f"is down{why}; next probe at {target['next_probe_at']}"]
    if target["breaker"] == "probing":
        return [f"is down{why}; a probe is under way"]
    if target["held_until"]:
        return [f"is left alone until {target['held_until']}{why}"]
    if target["window"] < target["bound"]:
        return [f"is slowed down to {target['window']} of {target['bound']} requests at once{why}"]
    return []
