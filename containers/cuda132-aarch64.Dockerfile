# Image cuda132-aarch64 for Docker and podman: CUDA 13.2, PyTorch 2.15.0, for Arm (GH200, GB200).
# From the root of a checkout:  podman build --format docker -f containers/cuda132-aarch64.Dockerfile -t aam:cuda132-aarch64 .
# The base is debian:bookworm-20260824-slim, named by its digest alone: Apptainer before 1.4 accepts no tag with it.
# Made by `make definitions` from launcher/catalog.yaml; containers/install.sh installs every image.
ARG BASE=debian@sha256:88200866dfff7ea7f5cbcb6ec7c8a701889efe6fe859fe64d6990e4b07ea4171
FROM $BASE

ARG BASE
ARG SNAPSHOT=20260824T000000Z
ARG TORCH=2.15.0
ARG TORCH_INDEX=pypi

COPY aam /opt/aam/source/aam
COPY containers /opt/aam/containers
RUN sh /opt/aam/containers/install.sh cuda132-aarch64 "$BASE" "$SNAPSHOT" "$TORCH" "$TORCH_INDEX"

ENV PATH="/opt/aam/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV LD_LIBRARY_PATH="/opt/aam/torch-lib"
ENV LANG="C.UTF-8"
ENV LC_ALL="C.UTF-8"
ENV PYTHONNOUSERSITE="1"
ENV PYTHONDONTWRITEBYTECODE="1"
ENV PYTHONPATH=""

ENTRYPOINT ["/opt/aam/bin/aam"]
CMD ["--help"]
