# --- the tests: `aam check`, then those of the marker rocm, each on one GPU

run_job() {
    local status=0 found
    script=$(<"$0")
    export SLURM_EXPORT_ENV=ALL
    load_modules
    make_folders
    on_each_node prepare "$@" || finish $?
    say "aam check"
    AAM_ROLE=rank srun --ntasks=1 bash -c "$script" aam-job "$@" || status=$?
    say "tests of the marker rocm"
    AAM_ROLE=tests srun --ntasks=1 bash -c "$script" aam-job "$@" || {
        found=$?
        [ "$status" != 0 ] || status=$found
    }
    finish "$status"
}

# pytest is not in the image: cosmos_setup.sh puts it beside.
run_tests() {
    local pytest=${AAM_PYTEST:-${image%/*}/pytest} checkout=${AAM_CHECKOUT:-$SLURM_SUBMIT_DIR}
    [ -e "$checkout/tests/test_rocm_compatibility.py" ] || die 66 "No tests at '$checkout'; set AAM_CHECKOUT."
    if [ "$engine" = native ]; then
        native=(python -m pytest) words=(-m rocm -p no:cacheprovider -rs "$checkout/tests/test_rocm_compatibility.py")
    else
        [ -d "$pytest" ] || die 66 "No pytest at '$pytest'; slurm/cosmos_setup.sh puts it there."
        binds+=("$(bind "$checkout" "$checkout" ro)" "$(bind "$pytest" "$pytest" ro)")
        variables+=("PYTHONPATH=$pytest:$checkout" PYTHONDONTWRITEBYTECODE=1)
        instead=(python -m pytest -m rocm -p no:cacheprovider -rs --rootdir "$checkout" "$checkout/tests/test_rocm_compatibility.py")
    fi
    cd "$checkout" && run_rank
}
