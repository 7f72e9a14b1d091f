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
cache=$XDG_CACHE_HOME/hvdtrain

step() { printf '==> %s\n' "$*"; }
die() { printf 'docs: %s\n' "$*" >&2; exit 1; }

# shellcheck source=setup/apt.sh
source "$setup/apt.sh"
# shellcheck source=setup/tool.sh
source "$setup/tool.sh"
find_python() { type -P "${BASE_PYTHON:-python3}" || type -P "python${BASE_PYTHON:-}"; }
[[ -n ${BASE_PYTHON:-} ]] || find_python >/dev/null || apt_install python3 python3-venv
python=$(find_python) || die "no Python is found: set BASE_PYTHON"
minor=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2]); sys.exit(sys.version_info < (3, 10))') ||
    die "needs Python 3.10 or later: set BASE_PYTHON"
# Debian has them in a package of their own.
"$python" -c 'import ensurepip, venv' 2>/dev/null || apt_install "python$minor-venv"
ensure_tool docs
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' hvdtrain/__init__.py)
# Not by the user's settings: without docstrings (PYTHONOPTIMIZE) there is nothing to read.
"$tool/bin/python" -I -X utf8 -m sphinx -q -W --keep-going -c docs -b html . "$folder/$version"
step "$folder/$version/index.html"
