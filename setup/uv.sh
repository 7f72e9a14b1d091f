# shellcheck shell=bash disable=SC2034,SC2154  # variables of the scripts that source this file
# pip and uv, as set-up uses them. The script that sources this file has `setup`, the folder of the locks.

# Of the user's settings of pip and uv, only those of setup/settings.py count from here on. $1: a Python that has pip.
use_settings() {
    local settings setting
    [[ -z ${HVDTRAIN_SETTINGS:-} ]] || return 0
    settings=$("$1" -I "$setup/settings.py") || exit
    unset "${!PIP_@}" "${!UV_@}"
    export HVDTRAIN_SETTINGS=kept
    while IFS= read -r setting; do export "${setting?}"; done <<<"$settings"
}

# Why pip or uv failed, as the file $1 has it, and what to do.
remedy() {
    local index="which index pip uses (pip config list)"
    if grep -q 'Hash mismatch\|DO NOT MATCH' "$1"; then
        echo "a file is not the one that was published: check $index, or update the lock (make lock)"
    elif grep -qi 'no space left\|disk quota exceeded' "$1"; then
        echo "the disk is full: free some space, or set VENV, XDG_CACHE_HOME and TMPDIR to folders on another one"
    elif grep -qi 'network was disabled' "$1"; then
        echo "UV_OFFLINE or uv's configuration forbids the network: unset it, or see PACKAGES in docs/install.md"
    elif grep -qi 'permission denied\|read-only file system' "$1"; then
        echo "make the folder that is named above writable for yourself, or set VENV and XDG_CACHE_HOME to others"
    elif grep -qi certificate "$1"; then
        echo "add your company's certificate to the system's, or name its file in PIP_CERT"
    elif grep -qi -e 'name resolution' -e 'dns error' -e 'error sending request' -e 'connection' -e 'timed out' \
        -e unreachable -e 'proxy error' -e 'HTTP error' -e 'status code' "$1"; then
        echo "check the network, and $index, and try again"
    else
        echo "no index that is used has what fits: check $index, and what you set of HVDTRAIN_CONSTRAINTS, HVDTRAIN_EXTRAS \
and STACK"
    fi
}

# Sets and exports HVDTRAIN_UV, uv at a pinned version, in the cache folder, unless it is set. It is empty where uv cannot
# be had: pip installs then, as it does where the user sets it to nothing. `python` has the pip that fetches uv.
find_uv() {
    local tool part cache=${XDG_CACHE_HOME:-$HOME/.cache}/hvdtrain
    use_settings "$python"
    [[ ! -v HVDTRAIN_UV ]] || return 0
    tool=$cache/uv-$(sha256sum <"$setup/uv.lock" | cut -c 1-16)-$(uname -m)
    if [[ ! -x $tool/bin/uv ]]; then
        mkdir -p "$cache"
        part=$(mktemp -d "$cache/uv.XXXXXX")
        "$python" -m pip install -qq --disable-pip-version-check --no-deps --no-compile --retries 1 --timeout 20 \
            --require-hashes --target "$part" -r "$setup/uv.lock" 2>/dev/null || true
        # A rename, so that an interruption leaves none or all of it.
        if "$part/bin/uv" --version >/dev/null 2>&1; then mv -T "$part" "$tool" 2>/dev/null || true; fi
        rm -rf "$part"
    fi
    export HVDTRAIN_UV=$tool/bin/uv
    if [[ ! -x $HVDTRAIN_UV ]]; then
        HVDTRAIN_UV=''
        printf '==> uv cannot be had here: pip installs, which takes longer\n'
    fi
}
