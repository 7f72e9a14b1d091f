# shellcheck shell=bash
# For scripts that have `step` and `die`.

# Installs Debian packages, or prints the command that does.
apt_install() {
    if [[ $EUID -eq 0 ]] && command -v apt-get >/dev/null; then
        step "Installing with apt-get: $*"
        apt-get update -qq || true
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
    else
        die "missing: $*. Install them first; on Debian and Ubuntu: sudo apt-get install $*"
    fi
}
