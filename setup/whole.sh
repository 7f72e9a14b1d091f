# shellcheck shell=bash
# A script that sources this first runs in another bash, and this one waits.
#
# - What the user set for other work changes nothing in it: where cd looks, what bash and make read first, options of tools,
#   all of Python's variables. (The settings of pip and uv: setup/uv.sh.)
# - It ends with all that it has started, where SIGTERM, SIGINT or SIGHUP ends it: bash itself ends alone, and leaves the
#   program that runs, such as a compiler.

clean_surroundings() {
    unset BASH_ENV CDPATH ENV GNUMAKEFLAGS GREP_OPTIONS MAKEFILES POSIXLY_CORRECT TAR_OPTIONS "${!PYTHON@}"
    # Messages that are read are English then, and Python takes all names for UTF-8.
    export LC_ALL=C
    umask u+rwx
    [[ -n ${HOME:-} ]] || { unset HOME && export HOME=~; }
    [[ ${XDG_CACHE_HOME:-} = /* ]] || XDG_CACHE_HOME=$HOME/.cache
    if ! mkdir -p "$XDG_CACHE_HOME" 2>/dev/null || [[ ! -w $XDG_CACHE_HOME ]]; then
        XDG_CACHE_HOME=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/.cache
    fi
    for TMPDIR in "${TMPDIR:-}" /tmp /var/tmp "$XDG_CACHE_HOME"; do
        [[ $TMPDIR = /* && -d $TMPDIR && -w $TMPDIR && -x $TMPDIR ]] && break
    done
    export XDG_CACHE_HOME TMPDIR
}

if [[ -n ${HVDTRAIN_SCRIPT:-} ]]; then
    # A script that another one has started has its surroundings.
    [[ $HVDTRAIN_SCRIPT != "$PPID" ]] || clean_surroundings
    return 0
fi

# A process that is stopped starts no other one meanwhile.
# shellcheck disable=SC2013,SC2329  # several numbers in a line; called by a trap
end_tree() {
    local child
    kill -STOP "$1" 2>/dev/null || return 0
    for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do end_tree "$child"; done
    kill -TERM "$1"
    kill -CONT "$1"
}

# -p: without the user's exported functions.
HVDTRAIN_SCRIPT=$$ bash -p "$0" "$@" <&0 &
script=$!
for number in 1 2 15; do
    # shellcheck disable=SC2064  # the numbers of now
    trap "trap '' 1 2 15; end_tree $script; wait $script || true; exit $((128 + number))" "$number"
done
wait "$script" && exit
exit $?
