#!/bin/bash
#SBATCH --job-name=sync_checkpoints
#SBATCH --partition=cluster
#SBATCH --time=0:30:00
#SBATCH --output=%x-%j.out
# Copies a run folder to another, every file complete at any moment: FROM TO. From aam-launch 0.1.0.
# shellcheck disable=SC1091
export USER="${USER:-$(id -un)}" SLURM_JOB_ID="${SLURM_JOB_ID:-$$}"
engine=${AAM_ENGINE:-singularity} image="${AAM_IMAGE:-/cosmos/vast/scratch/$USER/containers/rocm63.sif}"
if [ "$engine" != native ]; then
    command -v module >/dev/null || . /etc/profile
    module load singularitypro rocm || exit 69
fi
set -uo pipefail
disk="/scratch/$USER/job_$SLURM_JOB_ID" && [ -w "$disk" ] || disk=${TMPDIR:-/tmp}
container=("$engine" exec --cleanenv --no-eval --no-home --no-mount 'home,cwd,tmp,hostfs,bind-paths' --mount 'type=bind,source=/etc/hosts,destination=/etc/hosts,ro' --mount 'type=bind,source=/etc/localtime,destination=/etc/localtime,ro' --no-rocm --no-nv --pwd /)
for path in "$disk" /cosmos ${AAM_BIND-}; do [ ! -e "$path" ] || container+=(--mount "type=bind,source=$path,destination=$path"); done
container+=("$image" python -m aam.node)
[ "$engine" != native ] || container=(env PYTHONSAFEPATH=1 python -m aam.node)
exec "${container[@]}" sync --patience 300 "$@"
