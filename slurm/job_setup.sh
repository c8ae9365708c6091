#!/bin/bash
#SBATCH --job-name=job_setup
#SBATCH --partition=cluster
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --time=0:30:00
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out

# What a node looks like to a job: modules, interfaces, and the CPUs near each GPU.
# Written by aam-launch 0.1.0, a part of its job scripts.
# shellcheck disable=SC2016,SC2034,SC2329
set -uo pipefail

: "${USER:=$(id -un)}" "${SLURM_JOB_ID:=$$}"
home_of_runs="/cosmos/vast/scratch/$USER"
image="${AAM_IMAGE:-/cosmos/vast/scratch/$USER/containers/rocm63.sif}"
engine=${AAM_ENGINE:-singularity}
local_disk="/scratch/$USER/job_$SLURM_JOB_ID"
stage_most_gb=900
sync_seconds=10
sync_patience=300
modules=(singularitypro rocm)
interfaces=('hsn*' 'hsi*')

# --- what is said goes to the job's log

say() { printf 'aam-job: %s\n' "$*" >&2; }

die() { # die STATUS WORDS...
    local status=$1
    shift
    say "$*"
    exit "$status"
}

# --- a node: modules, folders of this job, network interfaces, the CPUs near a GPU

load_modules() {
    [ ${#modules[@]} -gt 0 ] || return 0
    if ! command -v module >/dev/null && [ -r /etc/profile ]; then
        set +u
        # shellcheck source=/dev/null
        . /etc/profile
        set -u
    fi
    command -v module >/dev/null || die 69 "This node has no 'module' command, and ${modules[*]} should be loaded."
    local name
    for name in "${modules[@]}"; do
        set +u
        module load "$name" || die 69 "module load $name failed; 'module avail $name' shows what there is."
        set -u
    done
}

# A folder of this job on this node's own disk.
choose_folder() {
    here=$local_disk
    if [ -z "$here" ] || [ ! -d "$here" ] || [ ! -w "$here" ]; then here=${SLURM_TMPDIR:-${TMPDIR:-/tmp}}; fi
    here=$here/aam-$UID-$SLURM_JOB_ID-${SLURMD_NODENAME:-$(hostname)}
}

make_folders() {
    (umask 077 && mkdir -p "$here"/{home,tmp,staged,run} "$here"/cache/{miopen,triton,inductor,numba,matplotlib}) ||
        die 73 "No folder could be made at '$here' on $(hostname)."
    [ -O "$here" ] || die 77 "'$here' on $(hostname) belongs to somebody else."
}

check_image() {
    [ "$engine" != native ] || return 0
    command -v "$engine" >/dev/null || die 69 "No $engine on $(hostname); is a module missing?"
    [ -r "$image" ] || die 66 "The image '$image' is not to be seen on $(hostname)."
}

# Network interfaces of this node that match the site's patterns; the first pattern that does wins.
find_interfaces() {
    local pattern path found
    for pattern in "${interfaces[@]}"; do
        found=''
        for path in "${AAM_SYS:-/sys}"/class/net/$pattern; do
            if [ -e "$path" ]; then found+=${found:+,}${path##*/}; fi
        done
        [ -z "$found" ] || { echo "$found" && return; }
    done
}

# CPUs of the NUMA node of GPU number $1, as taskset takes them; nothing where sysfs does not tell.
cpus_near_gpu() {
    local sys=${AAM_SYS:-/sys} wanted=$1 node name value simd domain location address numa
    for node in $(find "$sys/class/kfd/kfd/topology/nodes/" -mindepth 1 -printf '%f\n' 2>/dev/null | sort -n); do
        [ -r "$sys/class/kfd/kfd/topology/nodes/$node/properties" ] || continue
        simd=0 domain=0 location=0
        while read -r name value; do
            case $name in
                simd_count) simd=$value ;;
                domain) domain=$value ;;
                location_id) location=$value ;;
            esac
        done 2>/dev/null <"$sys/class/kfd/kfd/topology/nodes/$node/properties"
        [ "$simd" -gt 0 ] || continue # a processor
        if [ "$wanted" -gt 0 ]; then wanted=$((wanted - 1)) && continue; fi
        printf -v address '%04x:%02x:%02x.' "$domain" $((location >> 8 & 255)) $((location >> 3 & 31))
        # A partition of a card has its function, and maybe no device of its own.
        for numa in "$sys/bus/pci/devices/$address"{$((location & 7)),0}/numa_node; do
            if [ -r "$numa" ] && [ "$(<"$numa")" -ge 0 ]; then
                cat "$sys/devices/system/node/node$(<"$numa")/cpulist" 2>/dev/null
                return
            fi
        done
        return
    done
}

load_modules
say "node $(hostname), $(nproc) CPUs, modules ${modules[*]}"
say "interfaces $(find_interfaces)"
choose_folder
free=$(df --output=avail -B1G -- "$(dirname -- "$here")" | tail -n1)
say "folder of a job '$here', $free GB free"
for gpu in 0 1 2 3 4 5 6 7 8 9 10 11; do
    near=$(cpus_near_gpu "$gpu")
    [ -z "$near" ] || say "GPU $gpu: CPUs $near"
done
check_image
say "image '$image'"
