#!/usr/bin/env bash
# Checks the pinned packages of all stacks for known vulnerabilities, with pip-audit.
#
#   usage: setup/audit.sh VENV [OPTIONS-OF-PIP-AUDIT...]
#
# pip-audit has an environment of its own in the cache folder, with its own lock. Known vulnerabilities that cannot be
# fixed here are in setup/audit-known.txt, each with its reason.
set -euo pipefail
# shellcheck source=/dev/null
source "$(dirname "${BASH_SOURCE[0]}")/whole.sh"

setup=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$1
shift
cache=$XDG_CACHE_HOME/hvdtrain

die() { printf 'audit: %s\n' "$*" >&2; exit 1; }

# shellcheck source=setup/tool.sh
source "$setup/tool.sh"
ensure_tool audit

known=()
while read -r name _; do
    [[ -z $name || $name = \#* ]] || known+=(--ignore-vuln "$name")
done <"$setup/audit-known.txt"

# pip-audit leaves out what is for another Python, and reads only one version of a package from a file. So the locks
# become files without markers: the first of them has the first version of each package, and so on.
locks=$(mktemp -d)
trap 'rm -rf "$locks"' EXIT
awk -v folder="$locks" '
    /^[a-z0-9]/ {
        split($1, pin, "==")
        file = ($1 in seen) ? "" : folder "/" ++versions[pin[1]] ".txt"
        seen[$1]
        if (file) print $1 " \\" >file
        next
    }
    file && /--hash/ { print >file }
' "$setup"/stacks/*/requirements.lock
files=()
for file in "$locks"/*.txt; do files+=(-r "$file"); done

# Strict: a package that the service does not know counts as an error.
said=$("$tool/bin/python" -I -m pip_audit --strict --disable-pip --require-hashes "${files[@]}" \
    --progress-spinner off "${known[@]}" "$@" 2>&1) && status=0 || status=$?
if ((status)) && ! grep -q 'Found [0-9]* known vulnerabilit' <<<"$said"; then
    die "the advisories cannot be fetched (${said##*$'\n'}); try again where PyPI's own service can be reached," \
        "or use OSV's: make audit ARGS='-s osv'"
fi
printf '%s\n' "$said"
exit "$status"
