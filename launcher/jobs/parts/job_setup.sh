# --- a node: modules, folders of this job, what goes into the container, which CPUs are near a GPU

say() { printf 'aam-job: %s\n' "$*" >&2; }

die() { # die STATUS WORDS...
    local status=$1
    shift
    say "$*"
    exit "$status"
}

# Sorts the words: paths become absolute, what is read and what is written is noted.
read_options() {
    local word flag=''
    words=("$command" "${flags[@]}") inputs=() outputs=() run_folder=''
    for word in "$@"; do
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
