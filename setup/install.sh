#!/usr/bin/env bash
# Installs packages into a virtual environment, each of them pinned, and compares every file with the lock.
#
#   usage: setup/install.sh VENV ARGUMENTS of pip install
set -euo pipefail

setup=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$1
shift
report=$venv/.hvdtrain-report.json
"$venv/bin/python" -m pip install -qq --disable-pip-version-check \
    -c "${HVDTRAIN_CONSTRAINTS:-$setup/constraints.txt}" --report "$report" "$@"
# Without site-packages: what was installed does not run before it is known.
if ! "$venv/bin/python" -I -S "$setup/locked.py" "$report"; then
    touch "$venv/.hvdtrain-refused" # the next set-up does not go on with what lies there
    exit 1
fi
rm -f "$report"
