# shellcheck shell=bash disable=SC2154  # a variable of the scripts that source this file
# Takes other virtual environments than `venv` off PATH: an MPI that one of them has is not the system's. A Python that is
# one of them sets OPAL_PREFIX for its Open MPI.
is_other() { [[ -e $1/pyvenv.cfg && ! $1 -ef $venv ]]; }

path=''
while IFS= read -r -d : part; do is_other "${part:-.}/.." || path+=${path:+:}$part; done <<<"$PATH:"
PATH=$path
! is_other "${OPAL_PREFIX:-}" || unset OPAL_PREFIX
