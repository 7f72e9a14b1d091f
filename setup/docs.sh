#!/usr/bin/env bash
# Builds the site of the documentation of this version: build/site/VERSION, next to the versions that are there.
#
#   usage: setup/docs.sh [FOLDER]     FOLDER: of the site (default: build/site)
#
# A warning, such as a link without a target, is an error. Sphinx has an environment of its own in the cache folder, made with BASE_PYTHON
# (default: python3), with what `import hvdtrain` needs, as it reads docstrings: neither a framework nor Horovod.
set -euo pipefail
# shellcheck source=/dev/null
source "$(dirname "${BASH_SOURCE[0]}")/whole.sh"

setup=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${1:-build/site}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hvdtrain

die() { printf 'docs: %s\n' "$*" >&2; exit 1; }

# shellcheck source=setup/tool.sh
source "$setup/tool.sh"
python=$(type -P "${BASE_PYTHON:-python3}" || type -P "python${BASE_PYTHON:-}") || die "no Python is found: set BASE_PYTHON"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || die "needs Python 3.10 or later: set BASE_PYTHON"
ensure_tool docs
version=$("$tool/bin/python" -c 'import hvdtrain; print(hvdtrain.__version__)')
"$tool/bin/python" -m sphinx -q -W --keep-going -c docs -b html . "$folder/$version"
printf '==> %s\n' "$folder/$version/index.html"
