import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/**
 * HDFS with a NameNode and three DataNodes in this process, controlled by commands on standard input:
 * {@code write PREFIX BYTES SECONDS close|hsync} and {@code read PREFIX BYTES SECONDS}. It answers {@code done FILES SECONDS}.
 */
public final class HdfsPeer {
    private static final byte[] POOL = new byte[8 << 20];

    private final Configuration conf;
    private final FileSystem[] clients;
    private final ExecutorService threads;
    /** Files that each client has written below a prefix. */
    private final Map<String, int[]> written = new HashMap<>();

    private HdfsPeer(Configuration conf, int clients) throws Exception {
        this.conf = conf;
        this.clients = new FileSystem[clients];
        for (int at = 0; at < clients; at++) {
            this.clients[at] = FileSystem.newInstance(conf);
        }
        this.threads = Executors.newFixedThreadPool(clients);
    }

    public static void main(String[] arguments) throws Exception {
        new Random(1).nextBytes(POOL);
        Configuration conf = new HdfsConfiguration();
        conf.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, arguments[0]);
        conf.setInt("dfs.replication", 3);
        // As it ships; the default of this class skips the fsyncs of the journal.
        MiniDFSCluster cluster =
            new MiniDFSCluster.Builder(conf).numDataNodes(3).skipFsyncForTesting(false).build();
        cluster.waitActive();
        conf.set(FileSystem.FS_DEFAULT_NAME_KEY, cluster.getURI().toString());
        HdfsPeer peer = new HdfsPeer(conf, Integer.parseInt(arguments[1]));
        System.out.println("ready");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            System.out.println(peer.told(line.split(" ")));
        }
        cluster.shutdown();
        System.exit(0);
    }

    private String told(String[] words) throws Exception {
        String prefix = words[1];
        int bytes = Integer.parseInt(words[2]);
        double seconds = Double.parseDouble(words[3]);
        boolean writes = words[0].equals("write");
        boolean hsync = writes && words[4].equals("hsync");
        int[] counts = written.computeIfAbsent(prefix, of -> new int[clients.length]);
        long began = System.nanoTime();
        long end = began + (long) (seconds * 1e9);
        List<Callable<Integer>> all = new ArrayList<>();
        for (int at = 0; at < clients.length; at++) {
            int client = at;
            all.add(() -> writes
                ? write(client, prefix, bytes, end, hsync, counts)
                : read(client, prefix, bytes, end, counts[client]));
        }
        int files = 0;
        for (Future<Integer> one : threads.invokeAll(all)) {
            files += one.get();
        }
        return "done " + files + " " + (System.nanoTime() - began) / 1e9;
    }

    private static Path path(String prefix, int client, int number) {
        return new Path("/" + prefix + "/c" + client + "/f" + number);
    }

    private int write(int client, String prefix, int bytes, long end, boolean hsync, int[] counts) throws Exception {
        Random random = new Random(31L * counts[client] + client);
        int files = 0;
        while (System.nanoTime() < end) {
            int from = random.nextInt(POOL.length - bytes);
            try (FSDataOutputStream out = clients[client].create(path(prefix, client, counts[client]))) {
                out.write(POOL, from, bytes);
                if (hsync) {
                    out.hsync();
                }
            }
            counts[client]++;
            files++;
        }
        return files;
    }

    private int read(int client, String prefix, int bytes, long end, int there) throws Exception {
        byte[] body = new byte[bytes];
        int files = 0;
        while (files < there && System.nanoTime() < end) {
            try (FSDataInputStream in = clients[client].open(path(prefix, client, files))) {
                in.readFully(0, body);
            }
            files++;
        }
        return files;
    }
}
