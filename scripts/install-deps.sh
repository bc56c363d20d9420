#!/usr/bin/env bash
# Installs the programs for building, testing and `make run` through apt; with all of them present it does
# nothing.
#   install-deps.sh            compiler, file-system and disk-image tools, a database server for tests
#   install-deps.sh dataset    the same and the tools of `cargo xtask dataset`
#   install-deps.sh chaos      the same and the tools of `cargo xtask cluster-chaos`
#   install-deps.sh callpath   the same and the tool of `cargo xtask callpath`
set -euo pipefail

export DEBIAN_FRONTEND=noninteractive
PATH=$PATH:/usr/sbin:/sbin

# command:package
wanted=(cc:build-essential mke2fs:e2fsprogs debugfs:e2fsprogs qemu-img:qemu-utils qemu-nbd:qemu-utils qemu-storage-daemon:qemu-system-common qemu-system-x86_64:qemu-system-x86 busybox:busybox-static nbdinfo:libnbd-bin nbdkit:nbdkit fusermount3:fuse3 jq:jq curl:curl ip:iproute2 unshare:util-linux mariadbd:mariadb-server-core)
if [ "${1:-}" = dataset ]; then
    wanted+=(mmdebstrap:mmdebstrap losetup:mount mount:mount fstrim:util-linux)
fi
if [ "${1:-}" = chaos ]; then
    wanted+=(ip:iproute2 tc:iproute2 unshare:util-linux nsenter:util-linux mount:mount)
fi
if [ "${1:-}" = callpath ]; then
    wanted+=(valgrind:valgrind)
fi

missing=()
for pair in "${wanted[@]}"; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
done
# For install-clients.sh; the module venv is a package of its own, which contains ensurepip.
python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
if ! command -v cargo >/dev/null; then
    echo "Rust is missing: install it from https://rustup.rs, then run this again." >&2
    exit 1
fi
[ ${#missing[@]} -eq 0 ] && exit 0

mapfile -t packages < <(printf '%s\n' "${missing[@]}" | sort -u)
if ! command -v apt-get >/dev/null; then
    echo "Please install these (no apt-get here): ${packages[*]}" >&2
    exit 1
fi
sudo=
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "Please install as root: ${packages[*]}" >&2; exit 1; }
    sudo="sudo -E"
fi
echo "installing ${packages[*]}"
$sudo apt-get update -qq
$sudo apt-get install -y -qq --no-install-recommends "${packages[@]}" </dev/null >/dev/null
