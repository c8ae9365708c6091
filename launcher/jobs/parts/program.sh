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
