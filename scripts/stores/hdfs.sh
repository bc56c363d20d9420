# HDFS: a name node and three data nodes in one Java process. See with-store.sh. Needs Java and Maven (apt install
# openjdk-17-jdk-headless maven) and a build with --features hdfs. Hadoop's jars (bench/peers/hdfs/pom.xml) are copied
# into .cache/peers/hdfs from Maven Central.
port=$(free_ports 1)
peers=$PWD/.cache/peers/hdfs
url="hdfs://127.0.0.1:$port/vms/office"
if ! compgen -G "$peers/jars/hadoop-client-minicluster-*.jar" >/dev/null; then
    mvn -q -B -f bench/peers/hdfs/pom.xml -Dpeer.directory="$peers" package dependency:copy-dependencies
fi
java -Xmx700m -cp "$peers/jars/*" org.apache.hadoop.test.MiniDFSClusterManager -format -datanodes 3 -nnport "$port" \
    -httpport 0 -D "hdfs.minidfs.basedir=$dir/data" -D dfs.replication=3 -writeDetails "$dir/ready" >"$dir/log" 2>&1 &
# The first write makes its directories. Java starts slowly.
make_bucket() { [ -s "$dir/ready" ] || { sleep 0.8; return 1; }; }
