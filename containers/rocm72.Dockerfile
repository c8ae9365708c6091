# Image rocm72 for Docker and podman: ROCm 7.2, PyTorch 2.14.0.
# From the root of a checkout:  podman build --format docker -f containers/rocm72.Dockerfile -t aam:rocm72 .
# The base is python:3.12.14-slim-bookworm, named by its digest alone: Apptainer before 1.4 accepts no tag with it.
# Made by `make definitions` from launcher/catalog.yaml; containers/install.sh installs every image.
ARG BASE=python@sha256:782412e85d0f0984994c290652577d4018aff08145c85b262bb63dc0c7522254
FROM $BASE

ARG BASE
ARG SNAPSHOT=20260905T000000Z
ARG TORCH=2.14.0+rocm7.2
ARG TORCH_INDEX=https://download.pytorch.org/whl/rocm7.2

COPY aam /opt/aam/source/aam
COPY containers /opt/aam/containers
RUN sh /opt/aam/containers/install.sh rocm72 "$BASE" "$SNAPSHOT" "$TORCH" "$TORCH_INDEX"

ENV PATH="/opt/aam/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV LD_LIBRARY_PATH="/opt/aam/torch-lib"
ENV LANG="C.UTF-8"
ENV LC_ALL="C.UTF-8"
ENV PYTHONNOUSERSITE="1"
ENV PYTHONDONTWRITEBYTECODE="1"
ENV PYTHONPATH=""

ENTRYPOINT ["/opt/aam/bin/aam"]
CMD ["--help"]
