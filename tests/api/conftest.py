"""What the API's tests share: a fake service, and a caller that goes in at the ASGI door without a server."""

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.api.fake_service import FakeService
from timerd_api.app import create_app
from timerd_api.service import Service
from timerd_api.settings import ApiSettings

BASE = "http://127.0.0.1:8470"


@pytest.fixture
def service() -> FakeService:
    service = FakeService()
    as_declared: Service = service
    assert as_declared is service
    return service


@pytest.fixture
async def client(service: FakeService) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(service, ApiSettings())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE) as client:
        yield client
