import java.util.*;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;

/**
 * Counts the words of `lines` with exactly_once_v2. Each word leads to a record in `counts`, with how often it has come:
 * without a cache no count is left out.
 *
 * <p>Arguments: the address of a broker, a directory for its state, and commit.interval.ms.
 */
public class WordCount {
    public static void main(String[] arguments) {
        var settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "word-count");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[1]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, arguments[2]);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        // Only the successor of a killed process aborts its transaction, and it need not wait for its membership to end.
        settings.put("producer.transaction.timeout.ms", 600_000);
        settings.put("consumer.session.timeout.ms", 1_000);
        settings.put("consumer.heartbeat.interval.ms", 100);

        var builder = new StreamsBuilder();
        builder.<String, String>stream("lines")
            .flatMapValues(line -> List.of(line.split(" ")))
            .groupBy((key, word) -> word)
            .count()
            .toStream()
            .to("counts", Produced.with(Serdes.String(), Serdes.Long()));
        new KafkaStreams(builder.build(), settings).start();
    }
}
