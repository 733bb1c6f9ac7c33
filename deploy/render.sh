#!/usr/bin/env bash
# Prints an overlay as kubectl renders it. Without arguments it prints deploy/install.yaml, the overlay kubernetes-v1.
#
#   deploy/render.sh [OVERLAY [DEPLOY]]       DEPLOY is another copy of this folder
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
overlay=${1:-kubernetes-v1} deploy=${2:-deploy}
PATH="$(tests/install-go-tools.sh --path):$PATH"
case $overlay in
kubernetes-v1) made='make generate' ;;
*) made='make release' ;;
esac
cat <<TEXT
# Made by \`$made\` from deploy/overlays/$overlay; do not edit.
# The names of its images begin with those of a registry that may not be yours: deploy/README.md has the command for it.
TEXT
kubectl kustomize "$deploy/overlays/$overlay"
