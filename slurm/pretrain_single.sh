#!/bin/bash
#SBATCH --job-name=pretrain_single
#SBATCH --partition=cluster
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
# aam pretrain: 1 node, 1 rank each, SDSC Cosmos, 42 nodes of four MI300A. From aam-launch 0.1.0.
#     sbatch [OPTIONS] THIS_FILE --table TABLE --output-dir OUTPUT_DIR
# shellcheck disable=SC1091,SC2015,SC2016
command -v module >/dev/null || . /etc/profile
module load singularitypro rocm || exit 69
set -uo pipefail
export SLURM_EXPORT_ENV=ALL USER="${USER:-$(id -un)}" ranks=${SLURM_NTASKS_PER_NODE:-1}
disk="/scratch/$USER/job_$SLURM_JOB_ID"; [ -w "$disk" ] || disk=${SLURM_TMPDIR:-${TMPDIR:-/tmp}}
export node=$disk/aam-$SLURM_JOB_ID
end=${SLURM_JOB_END_TIME:-$(t=$(SLURM_TIME_FORMAT=standard squeue -h -j "$SLURM_JOB_ID" -o %e); [ -z "$t" ] || date -d "$t" +%s 2>/dev/null)}
image="${AAM_IMAGE:-/cosmos/vast/scratch/$USER/containers/rocm63.sif}" python=python
container=("${AAM_ENGINE:-singularity}" exec --cleanenv --no-eval --no-home --no-mount 'home,cwd,tmp,hostfs,bind-paths' --mount 'type=bind,source=/etc/hosts,destination=/etc/hosts,ro' --mount 'type=bind,source=/etc/localtime,destination=/etc/localtime,ro' --no-rocm --no-nv --pwd /mnt/node/home --mount "type=bind,source=$node,destination=/mnt/node" --mount "type=bind,source=$node/tmp,destination=/tmp")
settings=(--node-folder /mnt/node --host-folder "$node" --directory "$PWD" --ranks "$ranks" --end "$end" --vendor amd --whole-nodes --stage-gb 900 --sync-seconds 10 --sync-patience 300 --warn-seconds 600 --requeue --interface 'hsn*' --interface 'hsi*' --plugin /opt/cray/libfabric/1.20.1/lib64 --variable NCCL_CROSS_NIC=1 --variable NCCL_NET_GDR_LEVEL=PHB --variable FI_CXI_DEFAULT_CQ_SIZE=131072 --variable FI_CXI_DISABLE_HOST_REGISTER=1 --variable FI_MR_CACHE_MONITOR=userfaultfd)
variables=(PYTHONNOUSERSITE=1 LC_ALL=C.UTF-8 TMPDIR=/tmp HOME=/mnt/node/home XDG_CACHE_HOME=/mnt/node/cache MIOPEN_USER_DB_PATH=/mnt/node/cache/miopen MIOPEN_CUSTOM_CACHE_DIR=/mnt/node/cache/miopen TRITON_CACHE_DIR=/mnt/node/cache/triton TORCHINDUCTOR_CACHE_DIR=/mnt/node/cache/inductor NUMBA_CACHE_DIR=/mnt/node/cache/numba MPLCONFIGDIR=/mnt/node/cache/matplotlib)
mounts=() required=("$image")
passed='@(SLURM_*|SLURMD_*|PMI*|MASTER_ADDR|MASTER_PORT|WORLD_SIZE|RANK|LOCAL_RANK|LOCAL_WORLD_SIZE|NODE_RANK|GROUP_RANK|TORCHELASTIC_*|NCCL_*|RCCL_*|GLOO_*|FI_*|OMP_*|MKL_NUM_THREADS|HSA_*|PYTORCH_*|TORCH_*|MIOPEN_*|TZ|AAM_PLAN)'
for path in /cosmos /opt/cray/libfabric/1.20.1/lib64 ${AAM_BIND-}; do [ ! -e "$path" ] || mounts+=(--mount "type=bind,source=$path,destination=$path"); done
[ "${AAM_ENGINE-}" != native ] || { image='' container=() required=() variables=(PYTHONSAFEPATH=1); settings+=(--native --node-folder "$node"); }
set -- pretrain "$@"
fail() { echo "aam-job: $2" >&2; exit "$1"; }
for path in "${required[@]}"; do [ -e "$path" ] || fail 66 "'$path' does not exist on $(hostname); put it where all nodes see it"; done
rm -rf -- "$node" && mkdir -m 700 -- "$node" || fail 73 "no folder can be made at '$node'"
# On each node, for each task: the job's folder, the variables that enter the image, the image.
enter='umask 077; passed=$1; shift; mkdir -- "$node" 2>/dev/null
[ -d "$node" ] && [ ! -L "$node" ] && [ -O "$node" ] && cd "$node" && mkdir -p home tmp staged run ||
    { echo "aam-job: $node on $(hostname) is no folder of this job; remove it" >&2; exit 73; }
vars=(); for name in $(compgen -e); do
    if [[ $name == $passed ]]; then vars+=("$name=${!name}"); fi
    if [[ $name == @(APPTAINER*|SINGULARITY*|*_proxy|*_PROXY) ]]; then unset "$name"; fi
done; exec "${@:2:$1}" "${vars[@]}" "${@:$1 + 2}"'
step() { # step NAME TASKS WORDS...: a step of aam.node in the image, as TASKS tasks on each node
    local cpus=$((SLURM_CPUS_ON_NODE / $2)) paths=("${mounts[@]}") engine=() kill=1
    case $1 in run) mapfile -t paths <"$node/mounts" ;; finish) kill=0 ;; esac # nodes end one by one
    [ -z "$image" ] || engine=("${container[@]}" "${paths[@]}" "$image")
    srun --nodes="$SLURM_NNODES" --ntasks-per-node="$2" --ntasks=$((SLURM_NNODES * $2)) \
        --cpus-per-task=$((cpus > 0 ? cpus : 1)) --kill-on-bad-exit=$kill --wait=0 \
        bash -c "$enter" "$1" "$passed" $((${#engine[@]} + 1)) "${engine[@]}" /usr/bin/env "${variables[@]}" \
        "$python" -m aam.node "$1" "${settings[@]}" "${mounts[@]}" --status "$status" -- "${@:3}"
}
status=0 cancelled=''
trap 'echo requeue >"$node/stop"' USR1 # scancel --signal=USR1 --batch JOB: save, continue later
trap 'echo end >"$node/stop"' USR2     # scancel --signal=USR2 --batch JOB: save, end
trap 'cancelled=yes' TERM
{ step prepare 1 "$@" && step run "$ranks" "$@"; } &
until wait $!; status=$?; ! kill -0 $! 2>/dev/null; do :; done
[ -z "$cancelled" ] || { rm -rf -- "$node"; fail 143 "cancelled; the last copied checkpoint is complete"; }
step finish 1 "$@"; status=$?
[ -e "$node/keep" ] || srun --ntasks-per-node=1 --ntasks="$SLURM_NNODES" rm -rf -- "$node"
if [ "$status" = 99 ]; then scontrol requeue "$SLURM_JOB_ID" && sleep 60; status=75; fi
exit "$status"
