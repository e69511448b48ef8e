# Prometheus 3 for the test cluster: the build context is the folder that images.py compiled it into.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
COPY prometheus /usr/bin/prometheus
USER 65534
ENTRYPOINT ["/usr/bin/prometheus"]
