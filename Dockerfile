# The one image of Ridgeline: the operator, the registrar beside each router, the GPU exporter, and the engine exporter
# that an init container copies into engine pods. Built from a locked set of packages; nothing is fetched when it runs.
ARG BASE_IMAGE=docker.io/library/python:3.12-slim-bookworm

FROM ${BASE_IMAGE} AS build
# With it, compiled modules are checked by content and not by time: the same in every build, and never stale.
ARG SOURCE_DATE_EPOCH=1
ENV SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
RUN python3 -m venv /opt/ridgeline
# Dependencies before sources: this layer stays until the lock file changes.
COPY requirements.lock ./
RUN /opt/ridgeline/bin/pip install --quiet --require-hashes --no-deps --only-binary=:all: -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
COPY exporters exporters
RUN /opt/ridgeline/bin/pip install --quiet --no-deps . \
    && /opt/ridgeline/bin/pip uninstall --quiet --yes pip setuptools \
    && /opt/ridgeline/bin/python -P -c "import ridgeline, ridgeline_exporters.gpu.nvml, ridgeline_exporters.gpu.pod_resources"

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="Ridgeline" \
      org.opencontainers.image.description="Operator that splits and merges vLLM prefill and decode pools" \
      org.opencontainers.image.licenses="Apache-2.0"
# PYTHONSAFEPATH: the working folder never shadows a module.
ENV PATH=/opt/ridgeline/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
COPY --from=build /opt/ridgeline /opt/ridgeline
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["ridgeline"]
