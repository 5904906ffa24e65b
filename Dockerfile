# syntax=docker/dockerfile:1
# Two images, as few need Java:
#   docker build -t dynatops:0.1.0 .                                brokers, managers, commands
#   docker build -t dynatops:0.1.0-analytics --target analytics .   the same, with Java and Spark
# What they hold and weigh: docs/deploying.md.
ARG PYTHON=3.11.14

# It has a compiler.
FROM python:${PYTHON}-bookworm AS build
ENV DYNATOPS_COMPILE=1
WORKDIR /build
RUN python -m venv /opt/dynatops
COPY . .
RUN /opt/dynatops/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt ".[manager,lake]"
# A tenth of it all, which nobody runs there.
RUN find /opt/dynatops/lib -type d -name tests -prune -exec rm -rf {} +

FROM build AS build-analytics
RUN /opt/dynatops/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt ".[analytics]"

# Nothing that builds is left in it, and nobody in it is root.
FROM python:${PYTHON}-slim-bookworm AS base
RUN groupadd --gid 10001 dynatops \
    && useradd --uid 10001 --gid 10001 --home-dir /tmp --shell /usr/sbin/nologin dynatops
ENV PATH=/opt/dynatops/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /
USER 10001:10001
ENTRYPOINT ["dynatops"]

FROM base AS analytics
USER 0
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build-analytics /opt/dynatops /opt/dynatops
USER 10001:10001

FROM base AS dynatops
COPY --from=build /opt/dynatops /opt/dynatops
