#!/usr/bin/env bash
# Prints variables that forbid tests to skip on this machine: `env $(scripts/test-demands.sh) cargo test`.
#   COPAL_TEST_REQUIRE_QEMU    always: install-deps.sh installs it
#   COPAL_TEST_KERNEL          the kernel of guest-kernel.sh, unless the variable is set already
#   COPAL_TEST_REQUIRE_GUEST   if a guest's kernel is there, or linux-image-cloud-amd64 is installed
#   COPAL_TEST_MOTO, COPAL_TEST_REQUIRE_MOTO  if install-clients.sh has installed moto_server
#   COPAL_TEST_REQUIRE_LOOP    if a loop device can be attached (root and losetup)
#   COPAL_TEST_REQUIRE_FUSE    if FUSE mounts are permitted (root and /dev/fuse); install-deps.sh installs fusermount3
#   COPAL_TEST_REQUIRE_MEMCG   if a memory cgroup can be made and limited (root and a writable /sys/fs/cgroup)
set -uo pipefail

echo COPAL_TEST_REQUIRE_QEMU=1
kernel=$(dirname "$0")/../.cache/kernel
if [ -z "${COPAL_TEST_KERNEL:-}" ] && [ -d "$kernel" ]; then
    COPAL_TEST_KERNEL=$(realpath "$kernel")
    echo "COPAL_TEST_KERNEL=$COPAL_TEST_KERNEL"
fi
if compgen -G "${COPAL_TEST_KERNEL:-}/boot/vmlinuz-*-cloud-amd64" >/dev/null; then
    echo COPAL_TEST_REQUIRE_GUEST=1
fi

moto=$(dirname "$0")/../.cache/clients/moto
if [ -f "$moto.versions" ]; then
    echo "COPAL_TEST_MOTO=$(realpath "$moto")/bin/moto_server"
    echo COPAL_TEST_REQUIRE_MOTO=1
fi

image=$(mktemp)
trap 'rm -f "$image"' EXIT
truncate -s 1M "$image"
if device=$(losetup --find --show "$image" 2>/dev/null); then
    losetup --detach "$device"
    echo COPAL_TEST_REQUIRE_LOOP=1
fi

if [ "$(id -u)" = 0 ] && { : <>/dev/fuse; } 2>/dev/null; then
    echo COPAL_TEST_REQUIRE_FUSE=1
fi

for limit in /sys/fs/cgroup/memory/copal-probe-$$/memory.limit_in_bytes /sys/fs/cgroup/copal-probe-$$/memory.max; do
    group=$(dirname "$limit")
    mkdir "$group" 2>/dev/null || continue
    if echo 16777216 2>/dev/null >"$limit"; then
        rmdir "$group"
        echo COPAL_TEST_REQUIRE_MEMCG=1
        break
    fi
    rmdir "$group"
done
