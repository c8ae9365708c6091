#!/bin/bash
#SBATCH --job-name=stage_data
#SBATCH --partition=cluster
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --time=0:30:00
#SBATCH --no-requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out

# Copies files to a folder of a node's own disk, each checked: FOLDER FILE...
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

# --- inputs on the node's own disk: once for each node, each checked, none when they are too large

# Sums of the inputs that are files, as lines "SHA256 NUMBER"; nothing if they are not to be copied.
sum_inputs() {
    local total=0 number path sum
    for path in "$@"; do
        if [ -f "$path" ]; then total=$((total + $(stat -L -c %s -- "$path"))); fi
    done
    if [ "$total" -gt $((stage_most_gb * 1000000000)) ]; then
        say "Inputs of $total bytes stay where they are; up to $stage_most_gb GB are copied to a node."
        return
    fi
    for ((number = 1; number <= $#; number++)); do
        path=${!number}
        [ -f "$path" ] || continue
        sum=$(sha256sum <"$path") || return 66
        echo "${sum%% *} $number"
    done
}

# stage FOLDER SUMS FILE...: copies the files that have a sum to FOLDER/NUMBER.
stage() {
    local folder=$1 sums=$2 sum number path free
    shift 2
    [ -n "$sums" ] || return 0
    case $(stat -f -c %T -- "$folder") in
        tmpfs | ramfs) say "'$folder' on $(hostname) is memory, no disk; inputs stay where they are." && return ;;
    esac
    free=$(df --output=avail -B1 -- "$folder" | tail -n1)
    for path in "$@"; do
        if [ -f "$path" ]; then free=$((free - $(stat -L -c %s -- "$path"))); fi
    done
    if [ "$free" -lt 0 ]; then
        say "The disk of '$folder' on $(hostname) is too small; inputs stay where they are."
        return
    fi
    while read -r sum number; do
        stage_one "${!number}" "$folder/$number" "$sum" || return
    done <<<"$sums"
}

# Copies one file; one that changes meanwhile, or since its sum was taken, is refused.
stage_one() { # stage_one FILE COPY SHA256
    local found attempt
    for attempt in 1 2 3; do
        found=$(cat -- "$2" 2>/dev/null | sha256sum)
        if [ "${found%% *}" = "$3" ]; then return 0; fi
        if ! { cp -L -- "$1" "$2.part" && mv -- "$2.part" "$2"; }; then
            rm -f -- "$2.part"
            say "'$1' could not be copied to $(hostname)."
            return 74
        fi
        [ "$attempt" = 1 ] || sleep 1
    done
    found=$(sha256sum <"$2")
    if [ "${found%% *}" = "$3" ]; then return 0; fi
    rm -f -- "$2"
    say "'$1' changed while it was copied: $3 at the start of the job, ${found%% *} now. Submit again when it is finished."
    return 66
}

mkdir -p -- "$1" && stage "$1" "$(sum_inputs "${@:2}")" "${@:2}" || exit
for ((number = 2; number <= $#; number++)); do
    # By their own names, too.
    if [ -e "$1/$((number - 1))" ]; then ln -sfn -- "$((number - 1))" "$1/${!number##*/}"; fi
done
