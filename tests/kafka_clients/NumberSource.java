import java.util.*;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.*;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.cli.ConnectDistributed;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.source.*;

/**
 * A source connector that counts 0, 1, 2, ... into each partition of `numbers`. Its tasks share the partitions. Each poll
 * returns the next number of each partition, and is a transaction of its own.
 *
 * <p>The program is a worker of Kafka Connect in distributed mode. Arguments: name=value for each setting. It prints the
 * address of its REST interface.
 */
public class NumberSource extends SourceConnector {
    private static final int PARTITIONS = 3;
    private static final long PAUSE_NS = 5_000_000; // so that the numbers do not take over the machine

    public static void main(String[] arguments) {
        var settings = Stream.of(arguments).map(each -> each.split("=", 2)).collect(Collectors.toMap(each -> each[0], each -> each[1]));
        System.out.println(new ConnectDistributed().startConnect(settings).rest().serverUrl());
    }

    @Override
    public List<Map<String, String>> taskConfigs(int maxTasks) {
        return IntStream.range(0, maxTasks)
            .mapToObj(task -> IntStream.range(0, PARTITIONS).filter(each -> each % maxTasks == task))
            .map(shared -> Map.of("partitions", shared.mapToObj(Integer::toString).collect(Collectors.joining(","))))
            .toList();
    }

    @Override
    public ExactlyOnceSupport exactlyOnceSupport(Map<String, String> settings) {
        return ExactlyOnceSupport.SUPPORTED;
    }

    @Override
    public Class<? extends Task> taskClass() {
        return NumberTask.class;
    }

    @Override
    public void start(Map<String, String> settings) {}

    @Override
    public void stop() {}

    @Override
    public ConfigDef config() {
        return new ConfigDef();
    }

    @Override
    public String version() {
        return "1";
    }

    public static class NumberTask extends SourceTask {
        private final Map<Integer, Long> next = new TreeMap<>();

        @Override
        public void start(Map<String, String> settings) {
            for (var text : settings.get("partitions").split(",")) {
                var partition = Integer.valueOf(text);
                var offset = context.offsetStorageReader().offset(Map.of("partition", partition));
                next.put(partition, offset == null ? 0 : (Long) offset.get("number") + 1);
            }
        }

        @Override
        public List<SourceRecord> poll() {
            LockSupport.parkNanos(PAUSE_NS);
            var records = next.entrySet().stream().map(each -> record(each.getKey(), each.getValue())).toList();
            next.replaceAll((partition, number) -> number + 1);
            return records;
        }

        private SourceRecord record(int partition, long number) {
            var place = Map.of("partition", partition);
            return new SourceRecord(place, Map.of("number", number), "numbers", partition, Schema.STRING_SCHEMA, String.valueOf(number));
        }

        @Override
        public void stop() {}

        @Override
        public String version() {
            return "1";
        }
    }
}
