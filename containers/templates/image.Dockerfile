# Image @NAME@ for Docker and podman: @TITLE@.
# From the root of a checkout:  podman build --format docker -f containers/@NAME@.Dockerfile -t aam:@NAME@ .
# The base is @TAG@, named by its digest alone: Apptainer before 1.4 accepts no tag with it.
# Made by `make definitions` from launcher/catalog.yaml; containers/install.sh installs every image.
ARG BASE=@BASE@
FROM $BASE

ARG BASE
ARG SNAPSHOT=@SNAPSHOT@
ARG TORCH=@TORCH@
ARG TORCH_INDEX=@TORCH_INDEX@

COPY aam /opt/aam/source/aam
COPY containers /opt/aam/containers
RUN sh /opt/aam/containers/install.sh @NAME@ "$BASE" "$SNAPSHOT" "$TORCH" "$TORCH_INDEX"

ENV PATH="/opt/aam/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENV LD_LIBRARY_PATH="/opt/aam/torch-lib"
ENV LANG="C.UTF-8"
ENV LC_ALL="C.UTF-8"
ENV PYTHONNOUSERSITE="1"
ENV PYTHONDONTWRITEBYTECODE="1"
ENV PYTHONPATH=""

ENTRYPOINT ["/opt/aam/bin/aam"]
CMD ["--help"]
