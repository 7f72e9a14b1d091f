# shellcheck shell=bash
# A script that sources this first ends with all that it has started, where SIGTERM, SIGINT or SIGHUP ends it: bash itself
# ends alone, and leaves the program that runs, such as a compiler. So the script runs in another bash, and this one waits.
[[ -z ${HVDTRAIN_SCRIPT:-} ]] || return 0

# A process that is stopped starts no other one meanwhile.
# shellcheck disable=SC2013,SC2329  # several numbers in a line; called by a trap
end_tree() {
    local child
    kill -STOP "$1" 2>/dev/null || return 0
    for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do end_tree "$child"; done
    kill -TERM "$1"
    kill -CONT "$1"
}

HVDTRAIN_SCRIPT=$$ bash "$0" "$@" <&0 &
script=$!
for number in 1 2 15; do
    # shellcheck disable=SC2064  # the numbers of now
    trap "trap '' 1 2 15; end_tree $script; wait $script || true; exit $((128 + number))" "$number"
done
wait "$script" && exit
exit $?
