#!/bin/bash
#SBATCH --job-name=cosmos_setup
#SBATCH --partition=cluster
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --time=0:30:00
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out

# Makes folders and links, checks modules, builds or pulls the image. On a login node.
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

# --- folders, links, modules and the image, once for each user; on a login node, without sbatch

setup() {
    local name free built=no
    say "folders in '$home_of_runs'"
    for name in data checkpoints logs containers; do
        mkdir -p -- "$home_of_runs/$name" || die 73 "'$home_of_runs/$name' cannot be made."
        if [ ! -e "$HOME/aam-$name" ]; then ln -s -- "$home_of_runs/$name" "$HOME/aam-$name"; fi
    done
    free=$(df --output=avail -B1G -- "$home_of_runs" | tail -n1)
    [ "$free" -ge 45 ] || die 73 "Only $free GB are free at '$home_of_runs'; the image takes 43 GB while it is made."
    load_modules
    command -v "$engine" >/dev/null || die 69 "No $engine after 'module load ${modules[*]}'."
    say "$("$engine" --version)"
    if [ -e "$image" ]; then
        say "'$image' is there"
    else
        export SINGULARITY_TMPDIR=$home_of_runs/containers/tmp SINGULARITY_CACHEDIR=$home_of_runs/containers/cache
        export APPTAINER_TMPDIR=$SINGULARITY_TMPDIR APPTAINER_CACHEDIR=$SINGULARITY_CACHEDIR
        mkdir -p -- "$SINGULARITY_TMPDIR" "$SINGULARITY_CACHEDIR"
        if [ -n "${AAM_IMAGE_URI-}" ]; then
            "$engine" pull "$image.part" "$AAM_IMAGE_URI" && built=yes
        else
            [ -e containers/rocm63.def ] || die 66 "Run this at the top of the checkout, or set AAM_IMAGE_URI."
            "$engine" build "$image.part" containers/rocm63.def && built=yes
        fi
        [ "$built" = yes ] || die 69 "The image was not made; where users may not build, set AAM_IMAGE_URI to pull it."
        mv -- "$image.part" "$image" || die 73 "The image could not be put at '$image'."
    fi
    if command -v aam-launch >/dev/null; then
        aam-launch images lock rocm63 --site cosmos
        aam-launch site check cosmos
    else
        say "'pip install .' gives aam-launch, which records the image and checks the site"
    fi
    if [ ! -d "$home_of_runs/containers/pytest" ]; then
        python3 -m pip install --quiet --target "$home_of_runs/containers/pytest" pytest ||
            say "pytest was not installed; only test_runner.sh needs it"
    fi
    "$engine" exec --contain --cleanenv --no-home --no-rocm --no-nv "$image" aam --version ||
        die 69 "The image does not start; 'aam-launch doctor' may say why."
    say "ready; next: docs/cosmos_quickstart.md"
}

setup
