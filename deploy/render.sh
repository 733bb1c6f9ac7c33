#!/usr/bin/env bash
# Prints a folder as kubectl renders it. Without arguments it prints deploy/install.yaml.
#
#   deploy/render.sh [overlays/OVERLAY|workloads [DEPLOY]]       DEPLOY is another copy of this folder
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=${1:-overlays/kubernetes-v1} deploy=${2:-deploy}
PATH="$(tests/install-go-tools.sh --path):$PATH"
case $folder in
overlays/kubernetes-v1 | workloads) made='make generate' ;;
*) made='make release' ;;
esac
cat <<TEXT
# Made by \`$made\` from deploy/$folder; do not edit.
# The names of its images begin with those of a registry that may not be yours: docs/install.md has the command for it.
TEXT
kubectl kustomize "$deploy/$folder"
