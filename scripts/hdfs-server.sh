#!/usr/bin/env bash
# HDFS for tests: a name node and three data nodes in one Java process, until it is stopped.
#   hdfs-server.sh PORT READY     READY: file that is written once files can be created
# Java and Maven are needed: apt install openjdk-17-jdk-headless maven. Hadoop's jars (bench/peers/hdfs/pom.xml) are
# copied into .cache/peers/hdfs from Maven Central.
set -euo pipefail
cd "$(dirname "$0")/.."
port=$1 ready=$2
peers=$PWD/.cache/peers/hdfs
if ! compgen -G "$peers/jars/hadoop-client-minicluster-*.jar" >/dev/null; then
    mvn -q -B -f bench/peers/hdfs/pom.xml -Dpeer.directory="$peers" package dependency:copy-dependencies
fi
data=$(mktemp -d) java=
trap 'kill "$java" 2>/dev/null || true; wait "$java" 2>/dev/null || true; rm -rf "$data" "$ready"' EXIT
trap 'exit 0' TERM INT
java -Xmx700m -cp "$peers/jars/*" org.apache.hadoop.test.MiniDFSClusterManager -format -datanodes 3 -nnport "$port" \
    -httpport 0 -D "hdfs.minidfs.basedir=$data" -D dfs.replication=3 -writeDetails "$ready" &
java=$!
wait "$java"
