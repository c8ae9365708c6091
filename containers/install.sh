#!/bin/sh
# Installation of an image: run as root in a base of Debian 12 by every .def and .Dockerfile.
#
#     install.sh NAME BASE SNAPSHOT TORCH TORCH_INDEX
#
# NAME         rocm63, ...: selects the lock
# BASE         base image, for the labels
# SNAPSHOT     day of snapshot.debian.org for Debian's packages; "base": package sources of the base
# TORCH        version of PyTorch, that of the lock
# TORCH_INDEX  package index of PyTorch
#
# /opt/aam/containers is this folder, /opt/aam/source the package aam. If wheels are mounted at /mnt, Python
# packages are installed from there alone, without a network.
# Every step is idempotent, so that an image can be the base of another.
set -eu
umask 022
NAME=$1 BASE=$2 SNAPSHOT=$3 TORCH=$4 TORCH_INDEX=$5
AAM=/opt/aam
export DEBIAN_FRONTEND=noninteractive PYTHONNOUSERSITE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 LC_ALL=C.UTF-8
step() { printf '\n== %s\n' "$1"; }
lock=$AAM/containers/locks/$NAME.txt
grep -qxF "torch==$TORCH \\" "$lock" || {
    echo "The lock of $NAME has no hash of PyTorch $TORCH: leave the build argument TORCH out." >&2
    exit 1
}

step "Debian packages: $SNAPSHOT"
if [ "$SNAPSHOT" != base ]; then
    rm -f /etc/apt/sources.list.d/*
    for suite in debian/"$SNAPSHOT"=bookworm debian/"$SNAPSHOT"=bookworm-updates \
        debian-security/"$SNAPSHOT"=bookworm-security; do
        echo "deb [check-valid-until=no] http://snapshot.debian.org/archive/${suite%=*} ${suite#*=} main"
    done > /etc/apt/sources.list
fi
# Builds with a single mapped user id cannot switch to the user _apt.
apt='apt-get -qq -o APT::Sandbox::User=root -o Acquire::Retries=3'
$apt update
# unifrac-tools has ssu; Triton and Inductor call the compiler; libdrm reads the names of GPUs.
# A base with a Python of its own has it in /usr/local, with its headers.
[ -x /usr/local/bin/python3 ] && python='' || python='python3 python3-venv python3-dev'
# shellcheck disable=SC2086
$apt install -y --no-install-recommends ca-certificates $python gcc g++ libc6-dev \
    unifrac-tools libdrm-common > /dev/null

step "Python packages: PyTorch $TORCH and $NAME.txt"
python3 -m venv "$AAM"
set -- --no-cache-dir --no-compile --no-deps --only-binary :all: --progress-bar off --quiet
if ls /mnt/*.whl > /dev/null 2>&1; then
    set -- "$@" --no-index --find-links /mnt
elif [ "$TORCH_INDEX" != pypi ]; then
    set -- "$@" --extra-index-url "$TORCH_INDEX"
fi
cp "$lock" "$AAM/lock.txt"
"$AAM/bin/pip" install "$@" --require-hashes -r "$AAM/lock.txt"

step "aam"
packages=$("$AAM/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
rm -rf "$packages/aam" "$packages"/attention_all_microbes-*.dist-info
cp -R "$AAM/source/aam" "$packages/aam"
find "$packages/aam" -name __pycache__ -type d -prune -exec rm -rf {} +
version=$("$AAM/bin/python" -c 'import aam; print(aam.__version__)')
info=$packages/attention_all_microbes-$version.dist-info
mkdir "$info"
printf 'Metadata-Version: 2.4\nName: attention-all-microbes\nVersion: %s\nLicense-Expression: BSD-3-Clause\n' "$version" > "$info/METADATA"
printf '[console_scripts]\naam = aam.cli:main\n' > "$info/entry_points.txt"
echo images > "$info/INSTALLER"
cat > "$AAM/bin/aam" <<SCRIPT
#!$AAM/bin/python
import sys

from aam.cli import main

sys.exit(main())
SCRIPT
chmod 755 "$AAM/bin/aam"
ln -sfn "$packages/torch/lib" "$AAM/torch-lib"
# The libdrm of ROCm's wheels reads the names of GPUs here; without the file every start prints a warning.
mkdir -p /opt/amdgpu/share/libdrm
ln -sf /usr/share/libdrm/amdgpu.ids /opt/amdgpu/share/libdrm/amdgpu.ids

step "Tests of other packages"
# Nothing imports them at run time, and some do not compile with this Python.
find "$packages" -type d -name tests -prune -exec rm -rf {} +
rm -rf "$packages/torch/test"

step "Bytecode"
# Unchecked hash-based bytecode serves a read-only root and any file date. Of torch's test helpers only the
# modules that every start imports are compiled. Bytecode depends on what a process compiled before, so each
# process gets the same packages in the same order in every build. Bytecode of earlier steps has dates in it
# and is removed; later steps write none.
find "$packages" -name '*.pyc' -delete
export PYTHONDONTWRITEBYTECODE=1
ls -d "$packages"/* | LC_ALL=C sort | PYTHONHASHSEED=0 xargs -P "$(nproc)" -n 8 \
    "$AAM/bin/python" -m compileall -q --invalidation-mode unchecked-hash \
    -x '/testing/_internal/(?!(__init__|common_dtype|logging_tensor)\.py$)'

step "Labels"
"$AAM/bin/python" "$AAM/containers/measure.py" "$NAME" "$BASE" "$SNAPSHOT" "$TORCH" "$TORCH_INDEX"

step "Clean"
rm -rf "$AAM/source" /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb \
    /var/cache/ldconfig/aux-cache /var/log/apt /var/log/*.log /var/log/alternatives.log /root/.cache
chmod -R a+rX,go-w "$AAM"
