#!/usr/bin/env bash
# Installs packages at the versions of a virtual environment's stack, and compares every file with the stack's lock.
#
#   usage: setup/install.sh VENV ARGUMENTS-OF-PIP-INSTALL...
set -euo pipefail

setup=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$1
shift
stack=$setup/stacks/$(<"$venv/.hvdtrain-stack")
constraints=$venv/.hvdtrain-constraints # of an environment with the system's PyTorch
[[ -f $constraints ]] || constraints=$stack/constraints.txt
report=$venv/.hvdtrain-report.json
"$venv/bin/python" -m pip install -qq --disable-pip-version-check \
    -c "${HVDTRAIN_CONSTRAINTS:-$constraints}" --report "$report" "$@"
# Without site-packages: nothing that was installed runs before it is checked.
if ! "$venv/bin/python" -I -S "$setup/locked.py" "$stack/requirements.lock" "$report"; then
    touch "$venv/.hvdtrain-refused" # the next set-up starts with a new environment
    exit 1
fi
rm -f "$report"
