# `anncur serve` without torch, for an index in /data. Runs as an unprivileged user, with a read-only root:
#   docker build -t anncur .
#   docker run --read-only --tmpfs /tmp -e ANNCUR_READ_TOKEN=… -p 8000:8000 -v "$PWD/my.anncur:/data/index.anncur" anncur

FROM python:3.11-slim-bookworm AS build
ARG EXTRAS=serve
WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src ./src
RUN python -m venv /opt/anncur \
    && /opt/anncur/bin/pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]"

FROM python:3.11-slim-bookworm
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin anncur
COPY --from=build /opt/anncur /opt/anncur
ENV PATH=/opt/anncur/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /data
USER 10001:10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
ENTRYPOINT ["anncur"]
CMD ["serve", "/data/index.anncur", "--host", "0.0.0.0"]
