#!/bin/bash
# Make folders and links, build or record the image rocm63, on a login node:
#     bash slurm/cosmos_setup.sh [OPTIONS of `aam-launch images build`]
set -uo pipefail
scratch=/cosmos/vast/scratch/${USER:-$(id -un)}
command -v module >/dev/null || . /etc/profile
module load singularitypro rocm || exit 69
for name in data checkpoints logs containers{/tmp,/cache}; do
    mkdir -p -- "$scratch/$name" || exit 73
    link=$HOME/aam-${name%/*}
    [ -e "$link" ] || ln -s -- "$scratch/${name%/*}" "$link"
done
# A home is too small for what a build unpacks and caches.
export SINGULARITY_TMPDIR=$scratch/containers/tmp SINGULARITY_CACHEDIR=$scratch/containers/cache
image=$scratch/containers/rocm63.sif action=(build rocm63 "$@")
[ ! -e "$image" ] || action=(build rocm63 --from "$image")
aam-launch images "${action[@]}" --site cosmos || exit
aam-launch --site cosmos --image rocm63 check --device cpu --quick || exit
echo "ready; next: docs/cosmos_quickstart.md"
