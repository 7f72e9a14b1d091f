#!/usr/bin/env bash
# Builds the site of the documentation of this version: build/site/VERSION, next to the versions that are there.
#
#   usage: setup/docs.sh VENV [FOLDER]     FOLDER: of the site (default: build/site)
#
# A warning, such as a link without a target, is an error. Sphinx has an environment of its own in the cache folder.
set -euo pipefail
# shellcheck source=/dev/null
source "$(dirname "${BASH_SOURCE[0]}")/whole.sh"

setup=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$(cd "$1" && pwd)
folder=${2:-build/site}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hvdtrain

die() { printf 'docs: %s\n' "$*" >&2; exit 1; }

# shellcheck source=setup/tool.sh
source "$setup/tool.sh"
ensure_tool docs
version=$("$venv/bin/python" -c 'import hvdtrain; print(hvdtrain.__version__)')
# Python's docstrings are read by import, which needs the packages of the environment.
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
HVDTRAIN_PACKAGES=$packages "$tool/bin/sphinx-build" -q -W --keep-going -c docs -b html . "$folder/$version"
printf '==> %s\n' "$folder/$version/index.html"
