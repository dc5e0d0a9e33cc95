# Two stages: wheels are built in one, the other has only what runs.
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY requirements.txt pyproject.toml README.md ./
RUN python -m venv /opt/timerd \
 && /opt/timerd/bin/pip install --quiet --no-cache-dir --disable-pip-version-check -r requirements.txt hatchling==1.33.0
COPY timerd timerd
COPY api api
COPY storage storage
COPY cluster cluster
RUN /opt/timerd/bin/pip install --quiet --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation . \
 && /opt/timerd/bin/pip uninstall --yes --quiet hatchling

FROM python:3.11-slim-bookworm
RUN groupadd --gid 8470 timerd \
 && useradd --uid 8470 --gid timerd --home-dir /var/lib/timerd --shell /usr/sbin/nologin timerd \
 && install -d -o timerd -g timerd -m 0750 /var/lib/timerd
COPY --from=build /opt/timerd /opt/timerd
COPY deploy/nats/backup.py /opt/timerd/backup.py
ENV PATH=/opt/timerd/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TIMERD_DATA=/var/lib/timerd \
    TIMERD_HOST=0.0.0.0
USER timerd
VOLUME /var/lib/timerd
EXPOSE 8470
# Listening beyond loopback takes a key: run it with TIMERD_API_KEY set. The health check needs none.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen(f\"http://127.0.0.1:{os.environ.get('TIMERD_PORT', '8470')}/healthz\", timeout=2)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["timerd"]
CMD ["serve"]
