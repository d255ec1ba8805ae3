import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** A name node and two data nodes below a directory, until standard input ends; prints the port. */
public class Hdfs {
    public static void main(String[] arguments) throws Exception {
        var builder = new MiniDFSCluster.Builder(new Configuration(), new File(arguments[0]));
        try (var cluster = builder.numDataNodes(2).build()) {
            cluster.waitActive();
            System.out.println("port " + cluster.getNameNodePort());
            while (System.in.read() >= 0) {}
        }
        System.exit(0); // threads of the cluster may still run
    }
}
