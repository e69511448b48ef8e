# SMG from its wheel, for the test cluster; in production the fleet names SMG's own image.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
RUN python3 -m venv /opt/smg && /opt/smg/bin/pip install --no-cache-dir smg==1.13.0
ENV PATH=/opt/smg/bin:/usr/local/bin:/usr/bin:/bin
USER 65532
