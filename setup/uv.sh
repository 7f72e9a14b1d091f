# shellcheck shell=bash disable=SC2034,SC2154  # variables of the scripts that source this file
# uv, at a pinned version, in the cache folder. The script that sources this file has `setup`, the folder of the locks, and
# `python`, whose pip fetches uv.

# Sets and exports HVDTRAIN_UV, unless it is set. It is empty where uv cannot be had: pip installs then, as it does where
# the user sets it to nothing. uv gets what pip is configured to use: indexes, folders of wheels, a proxy.
find_uv() {
    local name value tool part cache=${XDG_CACHE_HOME:-$HOME/.cache}/hvdtrain
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
        return
    fi
    while IFS='=' read -r name value; do
        [[ -v $name ]] || export "$name=$value"
    done < <("$python" -m pip config list | "$python" -I -S "$setup/uv_settings.py")
}
