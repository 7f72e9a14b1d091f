#!/usr/bin/env bash
# Installs packages at pinned versions into a virtual environment, and compares every file with the lock.
#
#   usage: setup/install.sh VENV ARGUMENTS-OF-PIP-INSTALL...
set -euo pipefail

setup=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$1
shift
report=$venv/.hvdtrain-report.json
"$venv/bin/python" -m pip install -qq --disable-pip-version-check \
    -c "${HVDTRAIN_CONSTRAINTS:-$setup/constraints.txt}" --report "$report" "$@"
# Without site-packages: nothing that was installed runs before it is checked.
if ! "$venv/bin/python" -I -S "$setup/locked.py" "$report"; then
    touch "$venv/.hvdtrain-refused" # the next set-up starts with a new environment
    exit 1
fi
rm -f "$report"
