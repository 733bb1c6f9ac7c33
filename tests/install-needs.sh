#!/usr/bin/env bash
# Installs the packages that a command of the Makefile needs on Debian 12 and that this machine lacks, and prints their
# names.
#
#   tests/install-needs.sh build|check|image|demo|demo-kubernetes|demo-controllers|e2e|test|bench ...
#   tests/install-needs.sh --packages     the packages of all commands, and nothing else
#
# Packages come from apt, the toolchain and its musl target from rustup (rust-toolchain.toml names the version). Go
# programs (install-go-tools.sh) and cargo-deny (install-cargo-deny.sh) are built in ~/.cache/calico-tests. The
# repository does not change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Command or file whose presence shows that a package is installed, and the Debian package.
declare -A NEEDS=(
    [build]="cc:gcc /usr/include/stdio.h:libc6-dev musl-gcc:musl-tools protoc:protobuf-compiler
            /usr/include/google/protobuf/empty.proto:libprotobuf-dev"
    [check]="ip:iproute2 unshare:util-linux jq:jq"
    [image]="git:git pip3:python3-pip"
    [demo]="ip:iproute2 ping:iputils-ping unshare:util-linux jq:jq sysctl:procps"
    [demo-kubernetes]="ip:iproute2 ping:iputils-ping unshare:util-linux jq:jq sysctl:procps etcd:etcd-server openssl:openssl
            pip3:python3-pip"
    [demo-controllers]="ip:iproute2 unshare:util-linux jq:jq sysctl:procps etcd:etcd-server etcdctl:etcd-client openssl:openssl
            pip3:python3-pip curl:curl"
    [test]="ip:iproute2 ping:iputils-ping unshare:util-linux jq:jq sysctl:procps etcd:etcd-server etcdctl:etcd-client
            podman:podman runc:runc /bin/busybox:busybox-static /usr/lib/cni/host-local:containernetworking-plugins
            openssl:openssl sqlite3:sqlite3 pip3:python3-pip strace:strace zstd:zstd script:bsdutils
            tinyproxy:tinyproxy-bin microsocks:microsocks stunnel4:stunnel4 iptables:iptables"
    [e2e]="ip:iproute2 ping:iputils-ping unshare:util-linux jq:jq sysctl:procps etcd:etcd-server openssl:openssl pip3:python3-pip
            runc:runc /bin/busybox:busybox-static iptables:iptables curl:curl"
    [bench]="ip:iproute2 unshare:util-linux etcd:etcd-server strace:strace pip3:python3-pip"
)

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else
        echo "need root for: $*" >&2
        return 1
    fi
}

present() {
    case $1 in
    /*) [ -e "$1" ] ;;
    *) command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] ;;
    esac
}

install_packages() {
    local missing=() need
    for need in "$@"; do
        present "${need%:*}" || missing+=("${need##*:}")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || { echo "please install: ${missing[*]} (Debian's names)" >&2; return 1; }
    echo "installing from Debian: ${missing[*]}"
    as_root apt-get -qq update
    # Services are not started, because the suites run their own.
    as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
        apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
}

install_toolchain() {
    command -v cargo >/dev/null || { echo "please install rustup first: https://rustup.rs" >&2; return 1; }
    command -v rustup >/dev/null || return 0
    local channel musl
    channel=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
    musl=$(uname -m)-unknown-linux-musl
    if ! rustup toolchain list | grep -q "^$channel-"; then
        echo "installing Rust $channel"
        rustup toolchain install --no-self-update "$channel"
    fi
    if ! rustup target list --installed --toolchain "$channel" | grep -qx "$musl"; then
        echo "installing the Rust target $musl"
        rustup target add --toolchain "$channel" "$musl" || echo "note: $musl cannot be installed" >&2
    fi
}

# Without these programs, the tests that need them are reported as skipped, and the tables of `make bench` name the
# missing parts.
install_go_tools() {
    case $1 in
    test)
        tests/install-go-tools.sh cnitool || echo "note: cnitool could not be built; its tests cannot run" >&2
        tests/install-go-tools.sh cni-tests || echo "note: the plugins of tests/cni could not be built; their tests cannot run" >&2
        tests/install-go-tools.sh kube-apiserver kubectl kube-controller-manager || echo "note: the control plane could not be built; its tests cannot run" >&2
        tests/install-go-tools.sh containerd || echo "note: containerd could not be built; its tests cannot run" >&2
        tests/install-go-tools.sh oldest-kube-apiserver || echo "note: kube-apiserver of the oldest supported Kubernetes could not be built; its test cannot run" >&2
        tests/install-go-tools.sh helm kubeconform kustomize || echo "note: helm, kubeconform or kustomize could not be built; their tests cannot run" >&2
        tests/install-go-tools.sh promtool || echo "note: promtool could not be built; its tests cannot run" >&2
        tests/install-go-tools.sh images "cni-plugins-$(dpkg --print-architecture)" || echo "note: the image tools could not be built; their tests cannot run" >&2
        tests/install-go-tools.sh crane govulncheck minisign oras || echo "note: crane, govulncheck, minisign or oras could not be built; their tests cannot run" >&2
        tests/install-cargo-deny.sh >/dev/null || echo "note: cargo-deny could not be built; its tests cannot run" >&2
        ;;
    e2e)
        tests/install-go-tools.sh kube-apiserver kubectl kube-controller-manager kube-scheduler
        tests/install-go-tools.sh helm || echo "note: helm could not be built; its step is skipped" >&2
        tests/install-go-tools.sh kubelet containerd || echo "note: kubelet or containerd could not be built; their steps are skipped" >&2
        ;;
    demo-kubernetes | demo-controllers) tests/install-go-tools.sh kube-apiserver kubectl ;;
    bench) tests/install-go-tools.sh kube-apiserver || echo "note: kube-apiserver could not be built; its tables are skipped" >&2 ;;
    esac
}

if [ "${1:-}" = --packages ]; then
    # shellcheck disable=SC2048,SC2086 # the entries are words
    mapfile -t all < <(printf '%s\n' ${NEEDS[*]} | sort -u)
    install_packages "${all[@]}"
    exit
fi
for group in "$@"; do
    # shellcheck disable=SC2086 # the entries are words
    install_packages ${NEEDS[$group]}
    [ "$group" != build ] || install_toolchain
    install_go_tools "$group"
done
