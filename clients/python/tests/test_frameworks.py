"""A processor inside of Starlette and FastAPI, and the README's example of it, as it stands there."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from timerd_client import Batch, processor, rearm

from .test_receiver import BODY, OTHER, SECRET, signed

README = Path(__file__).parents[1] / "README.md"


async def post(app: Any, path: str, headers: Any = None, body: bytes = BODY) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://p") as client:
        return await client.post(path, content=body, headers=headers)


def again(batch: Batch) -> Any:
    return [rearm(timer.id, delay=300) for timer in batch.timers]


async def test_it_can_be_routed_to() -> None:
    app = Starlette(routes=[Route("/due", processor(again), methods=["POST"])])
    app.add_route("/added", processor(again, path="/added"), methods=["POST"])  # type: ignore[arg-type]
    for path in ("/due", "/added"):
        response = await post(app, path)
        assert (response.status_code, len(response.json()["results"])) == (200, 2)


async def test_it_can_be_mounted_and_then_has_a_slash_at_its_end() -> None:
    app = Starlette(routes=[Mount("/due", processor(again))])
    assert (await post(app, "/due/")).status_code == 200
    assert (await post(app, "/due")).status_code == 307  # which the README warns of


@pytest.mark.parametrize("path", ["/due", "/mounted/", "/plain"])
async def test_the_example_of_the_readme_works_as_written(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUE_SECRET", SECRET)
    (example,) = re.findall(r"^```python\n(# due\.py.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    module: dict[str, Any] = {}
    exec(example, module)
    response = await post(module["app"], path, signed(SECRET))
    assert [answer["delay"] for answer in response.json()["results"]] == [300, 300]
    assert (await post(module["app"], path, signed(OTHER))).status_code == 401
    assert (await post(module["app"], path, signed(SECRET, b"{}"), b"{}")).status_code == 400
