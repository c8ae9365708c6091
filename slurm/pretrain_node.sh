#!/bin/bash
#SBATCH --job-name=pretrain_node
#SBATCH --partition=cluster
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@600
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out

# aam pretrain: 1 node, 4 ranks each, SDSC Cosmos, 42 nodes of four MI300A.
# Submit it with the options of `aam pretrain`:
#     sbatch THIS_FILE --table TABLE --output-dir OUTPUT_DIR
# Options of sbatch before the file's name replace those above.
# Written by aam-launch 0.1.0; it needs the image and Slurm, nothing else.
# shellcheck disable=SC2016
set -uo pipefail

# --- what runs

command=pretrain
flags=(--distributed)
input_flags='--table --sequences --tree --unifrac-matrix --resume-from --splits --metadata --pretrained-encoder'
output_flags='--output-dir'
writes_folder=yes
resumable=yes
requeue=yes

# --- with what

engine=${AAM_ENGINE:-singularity} # or native: aam as the nodes have it
image="${AAM_IMAGE:-/cosmos/vast/scratch/$USER/containers/rocm63.sif}"
native=(aam)
engine_flags=(exec --contain --cleanenv --no-eval --no-home --no-mount 'tmp,hostfs' --no-rocm --no-nv)
devices=(/dev/kfd /dev/dri)
mask=ROCR_VISIBLE_DEVICES
variables=()
binds=()
carried_patterns='@(SLURM_*|SLURMD_*|PMI*|MASTER_ADDR|MASTER_PORT|WORLD_SIZE|RANK|LOCAL_RANK|LOCAL_WORLD_SIZE|NODE_RANK|GROUP_RANK|TORCHELASTIC_*|NCCL_*|RCCL_*|GLOO_*|FI_*|OMP_*|MKL_NUM_THREADS|HSA_*|PYTORCH_*|TORCH_*|MIOPEN_*|TZ|TERM|COLORTERM|NO_COLOR|COLUMNS|AAM_*)'
never_carried='@(AAM_LAUNCH_*|AAM_IMAGE_DIR|ROCR_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|CUDA_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|AMD_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES|ZE_AFFINITY_MASK|ONEAPI_DEVICE_SELECTOR|AAM_ROLE|AAM_SUMS|AAM_SYS|AAM_ENGINE|AAM_IMAGE)'

# --- where: SDSC Cosmos, 42 nodes of four MI300A

ranks_per_node=4
whole_nodes=yes
modules=(singularitypro rocm)
local_disk="/scratch/$USER/job_$SLURM_JOB_ID"
stage_most_gb=900
local_run=yes
sync_seconds=10
sync_patience=300
interfaces=('hsn*' 'hsi*')
plugin=(/opt/cray/libfabric/1.20.1/lib64)
network=(NCCL_CROSS_NIC=1 NCCL_NET_GDR_LEVEL=PHB FI_CXI_DEFAULT_CQ_SIZE=131072 FI_CXI_DISABLE_HOST_REGISTER=1 FI_MR_CACHE_MONITOR=userfaultfd)

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

# --- the program: its words, its variables, its mounts

# Sorts the words: paths become absolute, what is read and what is written is noted.
read_options() {
    local word flag=''
    words=("$command" "${flags[@]}") inputs=() outputs=() run_folder=''
    for word in "$@"; do
        case $word in
            # Every rank writes a part of it: the folder must be one that all nodes see.
            --fsdp-sharded-checkpoint | --fsdp_sharded_checkpoint) local_run=no ;;
        esac
        case $word in
            --*=*) flag=${word%%=*} && words+=("$flag") && note "$flag" "${word#*=}" ;;
            --*) flag=$word && words+=("$word") ;;
            *) note "$flag" "$word" ;;
        esac
    done
}

note() { # note FLAG VALUE
    local flag=${1//_/-} value=$2
    case " $input_flags $output_flags " in
        *" $flag "*) [[ $value == None || ($flag == --resume-from && $value == auto) ]] || value=$(realpath -ms -- "$value") ;;
    esac
    words+=("$value")
    [ "$value" != None ] && [ "$value" != auto ] || return 0
    case " $input_flags " in *" $flag "*) inputs+=("$value") ;; esac
    case " $output_flags " in *" $flag "*) outputs+=("$value") ;; esac
    if [ "$flag" = --output-dir ] && [ "$resumable" = yes ]; then run_folder=$value; fi
}

# An output that is a folder; else its folder is what the program writes to.
is_folder() { [ -n "$run_folder" ] || [ -d "$1" ] || [ "$writes_folder" = yes ]; }

# The variables of this process that ranks, libraries and terminals need, as NAME=VALUE.
carry_variables() {
    local name
    carried=(PYTHONNOUSERSITE=1 LC_ALL=C.UTF-8)
    for name in $(compgen -e); do
        # shellcheck disable=SC2053  # patterns on purpose
        if [[ $name == $carried_patterns && $name != $never_carried ]]; then carried+=("$name=${!name}"); fi
    done
    # All GPUs of a whole node go in and each rank takes its own; elsewhere Slurm's mask counts.
    if [ "$whole_nodes" = no ] && [ -n "$mask" ] && [ -n "${!mask-}" ]; then carried+=("$mask=${!mask}"); fi
    carried+=("HOME=$here/home" TMPDIR=/tmp "XDG_CACHE_HOME=$here/cache"
        "MIOPEN_USER_DB_PATH=$here/cache/miopen" "MIOPEN_CUSTOM_CACHE_DIR=$here/cache/miopen"
        "TRITON_CACHE_DIR=$here/cache/triton" "TORCHINDUCTOR_CACHE_DIR=$here/cache/inductor"
        "NUMBA_CACHE_DIR=$here/cache/numba" "MPLCONFIGDIR=$here/cache/matplotlib" "${variables[@]}")
}

# What would change what the engine does, or get into the image beside the list above.
drop_variables() {
    local name
    for name in $(compgen -e); do
        case $name in
            APPTAINER_CACHEDIR | APPTAINER_TMPDIR | SINGULARITY_CACHEDIR | SINGULARITY_TMPDIR) ;;
            APPTAINER* | SINGULARITY* | *_proxy | *_PROXY) unset "$name" ;;
        esac
    done
}

# Several nodes: RCCL or NCCL over the fast network, where it is found.
set_network() {
    local found folder
    [ "${SLURM_NNODES:-1}" -gt 1 ] || return 0
    found=$(find_interfaces)
    if [ -n "$found" ]; then
        export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-$found} GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-${found%%,*}}
    fi
    [ "${#network[@]}" -eq 0 ] || export "${network[@]}"
    for folder in "${plugin[@]}"; do
        [ -d "$folder" ] || continue
        binds+=("$(bind "$folder" "$folder" ro)") plugin_path+=${plugin_path:+:}$folder
        for found in "$folder"/lib{rccl,nccl}-net.so; do
            if [ -e "$found" ]; then export NCCL_NET_PLUGIN=${NCCL_NET_PLUGIN:-$found}; fi
        done
    done
}

# The words that start aam: in the image, or as it is installed here.
program() {
    local number mounts=() path
    if [ "$engine" = native ]; then
        started=(env PYTHONSAFEPATH=1 "${variables[@]}" ${record:+"AAM_PLAN=$record"} "${native[@]}" "${words[@]}")
        return
    fi
    carry_variables
    mounts+=("$(bind "$here" "$here")" "$(bind "$here/tmp" /tmp)")
    for path in "${outputs[@]}"; do
        if [ "$path" = "$run_folder" ] && [ "$local_run" = yes ]; then
            mounts+=("$(bind "$here/run" "$path")")
        else
            is_folder "$path" || path=$(dirname -- "$path")
            mkdir -p -- "$path" && mounts+=("$(bind "$(realpath -- "$path")" "$path")")
        fi
    done
    for ((number = 0; number < ${#inputs[@]}; number++)); do
        [[ -z $run_folder || ${inputs[number]}/ != "$run_folder"/* ]] || continue # there already
        path=$here/staged/$((number + 1))
        [ -f "$path" ] || path=$(realpath -- "${inputs[number]}")
        mounts+=("$(bind "$path" "${inputs[number]}" ro)")
    done
    mounts+=("${binds[@]}")
    for path in "${devices[@]}"; do
        if [ -e "$path" ]; then mounts+=("$(bind "$path" "$path")"); fi
    done
    started=("$engine" "${engine_flags[@]}" --pwd "$here/home")
    for path in "${mounts[@]}"; do started+=(--mount "$path"); done
    [ -z "$record" ] || carried+=("AAM_PLAN=$record")
    started+=("$image")
    # shellcheck disable=SC2016  # for the shell inside: the image's own libraries stay first
    [ -z "$plugin_path" ] || started+=(/bin/sh -c 'LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$0 exec "$@"' "$plugin_path")
    started+=(/usr/bin/env "${carried[@]}")
    if [ ${#instead[@]} -gt 0 ]; then started+=("${instead[@]}"); else started+=(aam "${words[@]}"); fi
}

bind() { # bind SOURCE TARGET [ro]: a value of --mount, whose fields are read as CSV
    printf 'type=bind,%s,%s%s' "$(field "source=$1")" "$(field "destination=$2")" "${3:+,$3}"
}

field() {
    case $1 in
        *[,\"]*) printf '"%s"' "${1//\"/\"\"}" ;;
        *) printf '%s' "$1" ;;
    esac
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

# --- the run folder: worked on at the node's own disk, copied to where it belongs at every save

declare -A copied=()

# Files of a folder by their relative names; hidden ones are being written.
files_of() { find "$1" -mindepth 1 -name '.*' -prune -o -type f -printf '%P\0' 2>/dev/null; }

# sync_run FROM TO: makes TO the same as FROM. At any moment each file of TO is whole, and what is
# written before a checkpoint (metrics.csv) is there before it.
sync_run() {
    local from=$1 to=$2 name held=$1/.held failed=0
    local -a plain=() checkpoints=() there=()
    mkdir -p -- "$to" || return
    mapfile -d '' -t there < <(files_of "$from")
    [ ${#there[@]} -gt 0 ] || return 0
    for name in "${there[@]}"; do
        if [[ $name == *.ckpt ]]; then checkpoints+=("$name"); else plain+=("$name"); fi
    done
    rm -rf -- "$held"
    for name in "${checkpoints[@]}"; do
        mkdir -p -- "$held/$(dirname -- "$name")" && ln -- "$from/$name" "$held/$name" 2>/dev/null
    done
    for name in "${plain[@]}"; do copy_whole "$from/$name" "$to/$name" || failed=1; done
    for name in "${checkpoints[@]}"; do
        if [ -e "$held/$name" ]; then copy_whole "$held/$name" "$to/$name" || failed=1; fi
    done
    rm -rf -- "$held"
    [ "$failed" = 0 ] || return 73
    # What the program removed of the run as it was left: that of a run that is replaced.
    [ -e "$from/.restored" ] && [ -e "$from/run.json" ] || return 0
    while IFS= read -r -d '' name; do
        [ -e "$from/$name" ] || rm -f -- "$to/$name"
    done <"$from/.restored"
}

copy_whole() { # copy_whole FILE TARGET
    local aside now
    now=$(stat -c '%s %i %.Y' -- "$1" 2>/dev/null) || return 0 # gone meanwhile
    [ "${copied[$2]-}" != "$now" ] || return 0
    if [ ! -e "$2" ] || ! cmp -s -- "$1" "$2"; then
        aside=$(dirname -- "$2")/.$(basename -- "$2").$SLURM_JOB_ID.part
        if ! { mkdir -p -- "$(dirname -- "$2")" && cp -p -- "$1" "$aside" && sync -- "$aside" && mv -f -- "$aside" "$2"; }; then
            rm -f -- "$aside"
            return 1
        fi
    fi
    copied[$2]=$now
}

# restore_run FROM TO: the run as it was left, on the node's own disk.
restore_run() {
    local name
    [ -d "$1" ] || return 0
    rm -rf -- "$2" && mkdir -p -- "$2" || return 73
    while IFS= read -r -d '' name; do
        mkdir -p -- "$2/$(dirname -- "$name")" && cp -p -- "$1/$name" "$2/$name" || return 73
        printf '%s\0' "$name" >>"$2/.restored"
    done < <(files_of "$1")
}

keep_syncing() { # keep_syncing FROM TO
    local told=no
    while sleep "$sync_seconds"; do
        if sync_run "$1" "$2" 2>"$here/sync.err"; then
            told=no
        elif [ "$told" = no ]; then
            say "The run could not be copied to '$2': $(tail -n1 "$here/sync.err"). Tried again every $sync_seconds s."
            told=yes
        fi
    done
}

# The last copy; a full disk is given time, so that a person can free some.
sync_last() { # sync_last FROM TO
    local waited=0
    until sync_run "$1" "$2" 2>"$here/sync.err"; do
        if [ "$waited" -ge "$sync_patience" ]; then
            say "The run could not be copied to '$2': $(tail -n1 "$here/sync.err"). What was copied before is whole; the rest is at '$1' on $(hostname)."
            return 73
        fi
        [ "$waited" -gt 0 ] || say "The run cannot be copied to '$2': $(tail -n1 "$here/sync.err"). Waiting $sync_patience s for room."
        sleep 5 && waited=$((waited + 5))
    done
}

# --- the job: prepare each node, start a rank for each GPU, stop before the limit, go on afterwards

main() {
    : "${USER:=$(id -un)}"
    read_options "$@"
    choose_folder
    notes=${run_folder:-$here}/.aam-job-$SLURM_JOB_ID # what this job knows of itself
    case ${AAM_ROLE:-job} in
        prepare) prepare_node ;;
        rank) run_rank ;;
        tests) run_tests ;;
        clean) rm -rf -- "$here" ;;
        job) run_job "$@" ;;
    esac
}

# Signals reach this shell only (--signal=B:...). It asks rank 0, which runs on this node; the ranks
# agree among themselves. Slurm's own way would signal every process of a rank: squashfuse, which
# holds the image, would end, and the program with a bus error.
step='' asked='' interrupted=no left=no plugin_path='' instead=()
stop() {
    asked=${asked:-$1} interrupted=yes
    if [ -n "$step" ]; then ask_program & fi
}

# A program that does not hear signals yet would end by this one.
ask_program() {
    while [ ! -e "$here/hears" ] && kill -0 "$step" 2>/dev/null; do sleep 0.2; done
    [ ! -e "$here/hears" ] || kill -s USR1 "$(cat "$here/rank.pid")" 2>/dev/null
}

# Waits for a process and returns its status, whatever signals come meanwhile.
wait_for() {
    local status=127 found
    while :; do
        interrupted=no
        wait "$1"
        found=$?
        [ "$found" = 127 ] || status=$found
        [ "$interrupted" = yes ] || return "$status"
    done
}

# Every node gets this script as a text, so it needs no file there.
on_each_node() { # on_each_node ROLE WORDS...
    AAM_ROLE=$1 srun --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 \
        bash -c "$script" aam-job "${@:2}"
}

prepare_node() {
    load_modules
    make_folders
    check_image
    stage "$here/staged" "${AAM_SUMS-}" "${inputs[@]}" || exit
    [ "$local_run" = no ] || restore_run "$run_folder" "$here/run" || exit
}

run_job() {
    local status=0 before syncing='' cpus
    script=$(<"$0")
    export SLURM_EXPORT_ENV=ALL AAM_SUMS=''
    cpus=$((SLURM_CPUS_ON_NODE / ranks_per_node))
    export SRUN_CPUS_PER_TASK=$((cpus > 0 ? cpus : 1))
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$SRUN_CPUS_PER_TASK}
    trap 'stop USR1' USR1 # save and go on later
    trap 'stop USR2' USR2 # save and end
    trap 'stop TERM' TERM
    say "job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, start $((${SLURM_RESTART_COUNT:-0} + 1)), $(date -u +%FT%TZ)"
    go_on "$@"
    set -- "${options[@]}"
    load_modules
    make_folders
    if [ "$stage_most_gb" -gt 0 ]; then AAM_SUMS=$(sum_inputs "${inputs[@]}") || finish 66; fi
    on_each_node prepare "$@" &
    wait_for $! || finish $?
    if [ -n "$asked" ]; then
        say "The time was up before the program could start; give the job more." && asked=''
        finish 75
    fi
    set_ranks
    before=$(saved)
    if [ "$local_run" = yes ]; then keep_syncing "$here/run" "$run_folder" & syncing=$!; fi
    AAM_ROLE=rank srun --kill-on-bad-exit=1 --wait=0 bash -c "$script" aam-job "$@" &
    step=$!
    if [ -n "$asked" ]; then ask_program & fi
    wait_for "$step"
    status=$?
    step=''
    status=$(first_status "$status")
    if [ -n "$syncing" ]; then
        kill "$syncing" 2>/dev/null
        wait "$syncing" 2>/dev/null
        trap '' TERM # the last copy is not to be cut short
        sync_last "$here/run" "$run_folder" || { status=73 && left=yes; }
    fi
    if [ "$status" = 75 ] && [ "$asked" = USR1 ] && [ "$(saved)" = "$before" ]; then
        say "Nothing was saved since the job started, so it would not get further; not queued again."
        asked=''
    fi
    finish "$status"
}

# A job that starts again goes on with its run: no --overwrite, and the last whole checkpoint.
go_on() {
    local word skip=no
    options=()
    if [ "${SLURM_RESTART_COUNT:-0}" -eq 0 ] || [ "$resumable" = no ] || [ ! "$run_folder/run.json" -nt "$notes.began" ]; then
        options=("$@")
        [ -z "$run_folder" ] || { mkdir -p -- "$run_folder" && touch -d "@$(date +%s)" -- "$notes.began"; }
        return 0
    fi
    for word in "$@"; do
        case $word in
            --overwrite | --resume-from=*) ;;
            --resume-from) skip=yes ;;
            *) if [ "$skip" = yes ]; then skip=no; else options+=("$word"); fi ;;
        esac
    done
    options+=(--resume-from auto)
    read_options "${options[@]}"
}

# Where the ranks meet: the first node, by the address that Slurm itself uses.
set_ranks() {
    local address
    address=$(scontrol show node "$SLURMD_NODENAME" --oneliner | grep -o 'NodeAddr=[^ ]*')
    export MASTER_ADDR=${address#NodeAddr=} MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
    rm -f -- "$notes.status"
}

saved() { stat -c '%s %i %.Y' -- "$run_folder/checkpoints/last.ckpt" 2>/dev/null; }

# The status of the rank that failed first; those that were stopped because of it do not count.
first_status() {
    local found=''
    [ ! -e "$notes.status" ] || read -r found _ <"$notes.status"
    echo "${found:-$1}"
}

run_rank() {
    local cpus='' status told=no pid
    local -a bound=() started=()
    load_modules
    set_network
    drop_variables
    if [ "$whole_nodes" = yes ] && [ "$ranks_per_node" -gt 1 ]; then cpus=$(cpus_near_gpu "$SLURM_LOCALID"); fi
    [ -z "$cpus" ] || bound=(taskset -c "$cpus")
    if [ "$SLURM_PROCID" = 0 ]; then
        rm -f -- "$here/hears"
        variables+=("AAM_HEARS=$here/hears")
    fi
    program
    trap 'interrupted=yes told=yes; kill -s TERM "$pid" 2>/dev/null' TERM
    "${bound[@]}" "${started[@]}" &
    pid=$!
    [ "$SLURM_PROCID" != 0 ] || echo "$pid" >"$here/rank.pid"
    wait_for "$pid"
    status=$?
    if [ "$status" -ne 0 ] && [ "$told" = no ]; then
        (set -o noclobber && echo "$status rank $SLURM_PROCID" >"$notes.status") 2>/dev/null
    fi
    # A rank that has stopped on request leaves the others time to do so.
    if [ "$status" = 75 ]; then exit 0; fi
    exit "$status"
}

finish() { # finish STATUS
    local status=$1
    if [ "$status" = 75 ] && [ "$asked" = USR1 ] && [ "$requeue" = yes ]; then
        on_each_node clean "${options[@]}"
        say "stopped before the time limit; queued again"
        # What the job knows of itself stays for the next start, which Slurm prepares by ending this one.
        if scontrol requeue "$SLURM_JOB_ID"; then sleep 60 && exit "$status"; fi
        say "Slurm did not queue it again."
    elif [ "$left" = no ]; then
        on_each_node clean "${options[@]}"
    fi
    rm -f -- "$notes".*
    say "ended with status $status, $(date -u +%FT%TZ)"
    exit "$status"
}

# --- the plan, for run.json

record=''

main "$@"
