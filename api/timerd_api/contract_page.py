"""The contract page: the OpenAPI document as one HTML page that needs nothing else, for people without a network."""

import html
import json
from typing import Any, Final

_STYLE: Final = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code, pre { font: 13px/1.45 ui-monospace, monospace }
pre { overflow-x: auto; padding: .75rem; background: color-mix(in srgb, currentColor 7%, transparent) }
summary { cursor: pointer; padding: .4rem 0 } summary b { display: inline-block; min-width: 4rem }
details { border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent); scroll-margin-top: 1rem }
table { border-collapse: collapse } td, th { text-align: left; vertical-align: top; padding: .15rem 1rem .15rem 0 }
"""


def render(document: dict[str, Any]) -> bytes:
    """The page of an OpenAPI document."""
    info = document["info"]
    calls = [
        _call(path, method, operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    deliveries = [
        _call(f"url of the type: {name}", method, operation)
        for name, operations in document["webhooks"].items()
        for method, operation in operations.items()
    ]
    shapes = [_shape(name, schema) for name, schema in document["components"]["schemas"].items()]
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{_text(info["title"])}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f"<h1>{_text(info['title'])}</h1><p>{_text(info['description'])} "
        f'The same as data: <a href="openapi.json">openapi.json</a>.</p>'
        f"<h2>Calls</h2>{''.join(calls)}"
        f"<h2>Deliveries</h2><p>What timerd sends, and what the answer means.</p>{''.join(deliveries)}"
        f"<h2>Shapes</h2>{''.join(shapes)}</html>\n"
    )
    return page.encode()


def _call(path: str, method: str, operation: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{_text(p['name'])}</code><td>{p['in']}<td>{_text(p['description'])}"
        for p in operation.get("parameters", ())
    )
    scope = operation.get("description", "")
    taken = _links(operation["requestBody"]["content"]) if "requestBody" in operation else ""
    given = "".join(
        f"<tr><td>{status}<td>{_text(response['description'])}<td>{_links(response.get('content', {}))}"
        for status, response in operation["responses"].items()
    )
    return (
        f"<details><summary><b>{method.upper()}</b> <code>{_text(path)}</code> {_text(operation['summary'])}</summary>"
        f"{f'<p>{_text(scope)}</p>' if scope else ''}"
        f"{f'<table>{rows}</table>' if rows else ''}{f'<p>Body: {taken}</p>' if taken else ''}"
        f"<table>{given}</table></details>"
    )


def _shape(name: str, schema: dict[str, Any]) -> str:
    text = json.dumps(schema, indent=2, ensure_ascii=False)
    return (
        f'<details id="{_text(name)}"><summary><code>{_text(name)}</code> {_text(schema.get("description", ""))}'
        f"</summary><pre>{_text(text)}</pre></details>"
    )


def _links(content: dict[str, Any]) -> str:
    names = {body["schema"]["$ref"].rpartition("/")[2] for body in content.values() if "schema" in body}
    return ", ".join(f'<a href="#{_text(name)}"><code>{_text(name)}</code></a>' for name in sorted(names))


def _text(text: str) -> str:
    return html.escape(text)
