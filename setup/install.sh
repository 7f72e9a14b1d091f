#!/usr/bin/env bash
# Installs packages at the versions of a virtual environment's stack, and compares every file with the stack's lock.
#
# pip writes its report before it installs anything, and a later pip does not report what it finds installed. So the
# report stays until it was compared, also if this script is killed, and set-up uses no environment that has one.
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
unset PYTHONPATH # to pip, what is there would count as installed, and so would not be compared
exec 7>"$venv/.hvdtrain-install.lock" # as `make wheel` installs, too
flock 7
if [[ -e $report ]]; then
    echo "set-up: $venv has packages that were not compared with the lock: run make setup" >&2
    exit 1
fi
"$venv/bin/python" -m pip install -qq --disable-pip-version-check \
    -c "${HVDTRAIN_CONSTRAINTS:-$constraints}" --report "$report" "$@"
# Without site-packages: nothing that was installed runs before it is checked.
"$venv/bin/python" -I -S "$setup/locked.py" "$stack/requirements.lock" "$report"
rm "$report"
