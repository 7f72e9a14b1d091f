#!/usr/bin/env bash
# Builds what is published of this version, a source distribution and a wheel, and checks both.
#
#   usage: setup/dist.sh VENV [FOLDER]     FOLDER: where they go (default: dist)
#
# build and twine have an environment of their own in the cache folder; the build itself runs in VENV, whose setuptools is
# pinned.
set -euo pipefail
# shellcheck source=/dev/null
source "$(dirname "${BASH_SOURCE[0]}")/whole.sh"

setup=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=$(cd "$1" && pwd)
folder=${2:-dist}
cache=$XDG_CACHE_HOME/hvdtrain

die() { printf 'dist: %s\n' "$*" >&2; exit 1; }

# shellcheck source=setup/tool.sh
source "$setup/tool.sh"
ensure_tool dist
work=$(mktemp -d "${TMPDIR:-/tmp}/hvdtrain-dist.XXXXXX")
trap 'rm -rf "$work"' EXIT
# Of the files in git only: not what lies in the checkout by chance.
git -C "$setup/.." archive HEAD | tar x -C "$work" 2>/dev/null || die "needs a git checkout: clone the repository"
packages=$("$tool/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
PYTHONPATH=$packages "$venv/bin/python" -m build -q --no-isolation --outdir "$work/built" "$work" >"$work/log" 2>&1 ||
    { cat "$work/log" >&2; die "the build failed"; }
"$tool/bin/python" -I -m twine check --strict "$work"/built/*
mkdir -p "$folder"
cp "$work"/built/* "$folder"
printf '==> %s\n' "$folder"/hvdtrain-*
