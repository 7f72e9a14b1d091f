# shellcheck shell=bash disable=SC2034,SC2154  # variables of the scripts that source this file
# A tool in an environment of its own, in the cache folder, with a lock of its own. The script that sources this file has
# `setup`, the folder of the locks, `python`, or `venv`, whose Python makes the environment, `cache` and `die`.

# shellcheck source=setup/uv.sh
source "$setup/uv.sh"

# ensure_tool NAME sets `tool` to the environment of setup/NAME.lock, and makes it where it is missing or not complete.
ensure_tool() {
    local lock=$setup/$1.lock maker=${python:-${venv:-}/bin/python}
    tool=$cache/$1-$(cat "$lock" <("$maker" -V) | sha256sum | cut -c 1-16)
    mkdir -p "$cache"
    exec 9>"$cache/tools.lock"
    flock 9
    if [[ ! -f $tool/complete ]]; then
        rm -rf "$tool"
        "$maker" -m venv "$tool"
        use_settings "$tool/bin/python"
        "$tool/bin/python" -m pip install -q --disable-pip-version-check --retries 1 --timeout 20 \
            --require-hashes -r "$lock" >"$tool/said" 2>&1 ||
            die "the packages of ${lock##*/} cannot be installed ($(tail -n 1 "$tool/said")); $(remedy "$tool/said")"
        touch "$tool/complete"
    fi
    exec 9>&-
}
