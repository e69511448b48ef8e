# vLLM for CPUs, for the test cluster: the build context is the environment that images.py made.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
RUN apt-get update -q \
 && apt-get install -y -q --no-install-recommends libgomp1 libnuma1 \
 && rm -rf /var/lib/apt/lists/*
COPY . /opt/vllm
ENV PATH=/opt/vllm/bin:/usr/local/bin:/usr/bin:/bin
