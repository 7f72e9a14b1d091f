#!/usr/bin/env bash
# Removes the virtual environment VENV (default: .venv in the checkout), if set-up made it.
set -euo pipefail
# shellcheck source=/dev/null
source "$(dirname "${BASH_SOURCE[0]}")/whole.sh"

# shellcheck source=setup/stack.sh
source "$(dirname "${BASH_SOURCE[0]}")/stack.sh"

[[ -e $venv || -L $venv ]] || exit 0
[[ -f $marker ]] || die "$venv is not an environment that set-up made: set VENV to one, or remove the folder yourself"
remove_environment
