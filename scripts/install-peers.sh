#!/usr/bin/env bash
# Installs the programs that the suites compare Copal with into .cache/peers (or $COPAL_PEERS); existing ones
# are kept.
# For `cargo xtask bench backup-peers`:
#   restic   the one in PATH, else Debian's package
#   rustic   crates.io, built here (about 10 minutes on two cores)
#   borg     PyPI in a virtual environment, else Debian's package
# For `scale-cores`; `install-peers.sh restic` installs restic alone.
# For the comparisons of key-value engines (`elasticbf-*`, `kv-*`); `install-peers.sh kv` installs these
# alone:
#   LevelDB  Debian's libleveldb-dev, used through its C API
#   RocksDB, fjall  crates.io, built with the suites (RocksDB's C++ takes half an hour on two cores)
# For `beanfs-fig8a`; `install-peers.sh cluster` installs these alone:
#   HDFS     Hadoop's jars from Maven Central, with a driver of our own (bench/peers/hdfs)
#   Garage   crates.io, built here (about 15 minutes on two cores)
# versions.txt records the version of each backup program.
set -uo pipefail
cd "$(dirname "$0")/.."
peers=${COPAL_PEERS:-$PWD/.cache/peers}
mkdir -p "$peers/bin"
peers=$(cd "$peers" && pwd)
export DEBIAN_FRONTEND=noninteractive
sudo=
[ "$(id -u)" = 0 ] || sudo="sudo -E"

apt_updated=
apt_install() {
    [ -n "$apt_updated" ] || { $sudo apt-get update -qq && apt_updated=1; }
    $sudo apt-get install -y -qq --no-install-recommends "$@" </dev/null >/dev/null
}

install_restic() {
    [ -x "$peers/bin/restic" ] && return
    command -v restic >/dev/null || apt_install restic
    ln -sf "$(command -v restic)" "$peers/bin/restic"
}

if [ "${1:-}" = restic ]; then
    install_restic
    "$peers/bin/restic" version
    exit
fi

if [ "${1:-}" = cluster ]; then
    command -v javac >/dev/null || apt_install openjdk-17-jdk-headless
    command -v mvn >/dev/null || apt_install maven
    if [ ! -f "$peers/hdfs/hdfs-peer.jar" ]; then
        mvn -q -B -f bench/peers/hdfs/pom.xml -Dpeer.directory="$peers/hdfs" package dependency:copy-dependencies || exit 1
    fi
    if [ ! -x "$peers/bin/garage" ]; then
        cargo install garage --version 2.5.0 --locked --no-default-features --features bundled-libs,lmdb --root "$peers" \
            >"$peers/garage.log" 2>&1 || { echo "Garage: building failed, see $peers/garage.log"; exit 1; }
    fi
    "$peers/bin/garage" --version
    exit 0
fi

# libclang-cpp, which other packages install, is a different library.
has_libclang() { compgen -G '/usr/lib/llvm*/lib/libclang.so*' || compgen -G '/usr/lib/llvm*/lib/libclang-[0-9]*.so*'; }
if [ ! -f /usr/include/leveldb/c.h ] || ! command -v g++ >/dev/null || ! has_libclang >/dev/null; then
    apt_install libleveldb-dev build-essential libclang-dev
fi
if [ "${1:-}" = kv ]; then
    dpkg-query --show --showformat '${Package} ${Version}\n' libleveldb-dev
    exit 0
fi

install_restic

if [ ! -x "$peers/bin/rustic" ]; then
    cargo install rustic-rs --locked --root "$peers" >"$peers/rustic.log" 2>&1 ||
        echo "rustic: building failed, see $peers/rustic.log"
fi

if [ ! -x "$peers/bin/borg" ]; then
    apt_install python3-venv python3-dev build-essential pkg-config \
        libssl-dev libacl1-dev liblz4-dev libzstd-dev libxxhash-dev
    if python3 -m venv "$peers/borg" >"$peers/borg.log" 2>&1 &&
        "$peers/borg/bin/pip" install -q borgbackup >>"$peers/borg.log" 2>&1; then
        ln -sf "$peers/borg/bin/borg" "$peers/bin/borg"
    else
        echo "borg: PyPI's did not build (borg.log); taking Debian's package"
        command -v borg >/dev/null || apt_install borgbackup
        ln -sf "$(command -v borg)" "$peers/bin/borg"
    fi
fi

{
    "$peers/bin/restic" version
    "$peers/bin/rustic" --version
    "$peers/bin/borg" --version
} | tee "$peers/versions.txt"
