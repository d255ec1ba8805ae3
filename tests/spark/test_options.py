"""Options: what each value means, and that whatever is not understood is refused with a hint."""

from typing import Any

import attrs
import pytest

from fencepost.protocol.terms import METADATA_PARTITION, IsolationLevel, TopicPartition
from fencepost.spark_bridge.option_values import UnusableOption
from fencepost.spark_bridge.options import ReadOptions, Timestamps, check_batch, check_stream, parse_options
from fencepost.spark_bridge.task_sizes import TaskSizes
from fencepost.spark_bridge.topics import choose_partitions

NEEDED = {"path": "/data", "subscribe": "orders"}


def meaning(**fields: Any) -> ReadOptions:
    """The options of NEEDED, and these."""
    return attrs.evolve(ReadOptions(paths=("/data",), subscribe=("orders",)), **fields)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({}, meaning()),
        ({"subscribe": "b, a ,b"}, meaning(subscribe=("a", "b"))),
        ({"includeheaders": "TRUE"}, meaning(include_headers=True)),
        ({"includeTransactions": "true"}, meaning(include_transactions=True)),
        (
            {"kafka.isolation.level": "read_uncommitted"},
            meaning(isolation_level=IsolationLevel.READ_UNCOMMITTED),
        ),
        (
            {"startingOffsets": ' {"orders":{"0":23,"1":-2}}', "endingOffsets": '{"orders":{"0":-1}}'},
            meaning(
                starting={TopicPartition("orders", 0): 23, TopicPartition("orders", 1): -2},
                ending={TopicPartition("orders", 0): -1},
            ),
        ),
        ({"startingOffsets": "Earliest", "endingOffsets": "latest"}, meaning(starting="earliest")),
        (
            {"startingOffsetsByTimestamp": '{"orders":{"0":1000}}', "startingOffsets": "earliest"},
            meaning(starting=Timestamps({TopicPartition("orders", 0): 1000})),
        ),
        (
            {
                "startingTimestamp": "5",
                "startingOffsetsByTimestamp": '{"orders":{"0":1000}}',
                "endingTimestamp": "9",
                "startingOffsetsByTimestampStrategy": "latest",
            },
            meaning(
                starting=Timestamps(everywhere=5), ending=Timestamps(everywhere=9), latest_if_unmatched=True
            ),
        ),
        (
            {"kafka.bootstrap.servers": "localhost:9092", "groupIdPrefix": "g", "kafka.group.id": "g"},
            meaning(ignored=("kafka.bootstrap.servers", "groupIdPrefix", "kafka.group.id")),
        ),
        ({"maxOffsetsPerTrigger": "7"}, meaning(max_offsets_per_trigger=7)),
        (
            {"minPartitions": "8", "maxRecordsPerPartition": "1000", "failOnDataLoss": "false"},
            meaning(fail_on_data_loss=False, sizes=TaskSizes(min_partitions=8, max_records=1000)),
        ),
    ],
)
def test_options_are_understood(given: dict[str, str], meant: ReadOptions) -> None:
    assert parse_options({**NEEDED, **given}) == meant


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"path": ""}, "set option path to the data directory of a broker"),
        (
            {"subscribePattern": "o.*"},
            "exactly one of subscribe, assign, subscribePattern; got subscribe, subscribePattern",
        ),
        ({"subscribe": " , "}, "names no topic"),
        ({"startingOffset": "earliest"}, "option startingOffset is unknown; did you mean startingOffsets?"),
        ({"startingTimestmap": "5"}, "did you mean startingTimestamp?"),
        ({"kafka.isolation.levl": "read_uncommitted"}, "did you mean kafka.isolation.level?"),
        ({"table": "transaction"}, "not transaction; did you mean transactions?"),
        ({"isolation.level": "read_commited"}, "not read_commited; did you mean read_committed?"),
        ({"colour": "red"}, "option colour is unknown; the options are path, paths, subscribe"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp must be a whole number from 0 on"),
        ({"startingOffsetsByTimestamp": '{"orders":{"0":-1}}'}, "must be JSON like"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "must be error or latest, not earliest"),
        ({"path": "ftp://host/data"}, "abfs://, abfss://, gcs://, gs://, hdfs://, s3://, s3a://, s3n://"),
        ({"path": "s3:bucket/data"}, "neither a directory of this machine nor a URI of a file system"),
        ({"path": "file://elsewhere/data"}, "neither a directory of this machine nor a URI"),
        ({"paths": "[1]"}, "option paths must be JSON like"),
        ({"paths": "[]"}, "set option path"),
        ({"startingOffsets": '{"orders":{"0":-3}}'}, "must be JSON like"),
        ({"startingOffsets": '{"orders":{"0":true}}'}, "must be JSON like"),
        ({"startingOffsets": '{"orders":[0]}'}, "must be JSON like"),
        ({"startingOffsets": "[" * 20_000}, "must be JSON like"),
        ({"startingOffsets": '{"orders":{"x":1}}'}, "must be JSON like"),
        ({"startingOffsets": "[1]"}, "must be JSON like"),
        ({"startingOffsets": "23"}, "must be JSON like"),
        ({"isolation.level": "serializable"}, "read_committed or read_uncommitted, not serializable"),
        (
            {"isolation.level": "read_committed", "kafka.isolation.level": "read_uncommitted"},
            "isolation.level differ",
        ),
        ({"includeHeaders": "yes"}, "must be true or false, not yes"),
        ({"minPartitions": "0"}, "a whole number from 1 on, not 0"),
        ({"minPartitions": "-1"}, "a whole number from 1 on"),
    ],
)
def test_what_is_not_understood_is_refused(given: dict[str, str], hint: str) -> None:
    with pytest.raises(UnusableOption) as refused:
        parse_options({**NEEDED, **given})
    assert hint in str(refused.value)


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ('{"a":[1,0],"b":[2]}', [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 2)]),
        ('{"a":[1,1]}', [TopicPartition("a", 1)]),
    ],
)
def test_assign(value: str, meant: list[TopicPartition]) -> None:
    assert list(parse_options({"path": "/data", "assign": value}).assign or ()) == meant


@pytest.mark.parametrize("value", ['{"a":1}', '{"a":["0"]}', '{"a":[-1]}', "a", "{}", "null", '{"a":[]}'])
def test_assign_is_refused(value: str) -> None:
    with pytest.raises(UnusableOption, match="assign"):
        parse_options({"path": "/data", "assign": value})


@pytest.mark.parametrize(
    ("given", "paths"),
    [
        ({"path": "/data"}, ["/data"]),
        ({"path": "data/100%25"}, ["data/100%25"]),  # not a URI: taken as it is
        ({"path": "file:/data"}, ["/data"]),
        ({"path": "file:///data/a%20b%25"}, ["/data/a b%"]),
        ({"path": "FILE://localhost/data"}, ["/data"]),
        ({"paths": '["/data/1","file:/data/2"]'}, ["/data/1", "/data/2"]),
        ({"path": "C:\\data"}, ["C:\\data"]),
    ],
)
def test_paths(given: dict[str, str], paths: list[str]) -> None:
    assert list(parse_options({"subscribe": "orders", **given}).paths) == paths


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets cannot be latest: nothing would be left"),
        ({"endingOffsets": "earliest"}, "endingOffsets cannot be earliest: nothing would be left"),
        ({"startingOffsets": '{"orders":{"0":-1}}'}, "would leave a batch nothing to read"),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, "would leave a batch nothing to read"),
    ],
)
def test_a_batch_refuses_to_read_nothing(given: dict[str, str], hint: str) -> None:
    with pytest.raises(UnusableOption, match=hint):
        check_batch(parse_options({**NEEDED, **given}))


def test_a_stream_refuses_an_end_and_tables() -> None:
    with pytest.raises(UnusableOption, match="a stream reads records: read table batches"):
        check_stream(parse_options({**NEEDED, "table": "batches"}))
    with pytest.raises(UnusableOption, match="a stream has no end"):
        check_stream(parse_options({**NEEDED, "endingTimestamp": "5"}))


@pytest.mark.filterwarnings("ignore:.*does not hold c")
def test_topics_that_are_gone_may_be_left_out() -> None:
    options = parse_options({"path": "/data", "subscribe": "a,c", "failOnDataLoss": "false"})
    assert [str(each) for each in choose_partitions(EXISTING, options, "/data")] == ["a-0", "a-1"]


EXISTING = [
    TopicPartition(topic, number) for topic in ("__transaction_state", "a", "a-b", "b") for number in (0, 1)
]


@pytest.mark.parametrize(
    ("option", "value", "chosen"),
    [
        ("subscribe", "a", ["a-0", "a-1"]),
        ("subscribe", "b,a", ["a-0", "a-1", "b-0", "b-1"]),
        ("assign", '{"b":[1]}', ["b-1"]),
        ("subscribePattern", "a.*", ["a-0", "a-1", "a-b-0", "a-b-1"]),
        ("subscribePattern", ".*", ["a-0", "a-1", "a-b-0", "a-b-1", "b-0", "b-1"]),
        ("subscribePattern", "x.*", []),
        ("subscribePattern", "__transaction_state", ["__transaction_state-0", "__transaction_state-1"]),
        ("subscribe", "__transaction_state", ["__transaction_state-0", "__transaction_state-1"]),
    ],
)
def test_partitions_are_chosen(option: str, value: str, chosen: list[str]) -> None:
    options = parse_options({"path": "/data", option: value})
    assert [str(partition) for partition in choose_partitions(EXISTING, options, "/data")] == chosen


@pytest.mark.parametrize(
    ("option", "value", "hint"),
    [
        ("subscribe", "a,c,d", "/data does not hold c, d; its topics are a, a-b, b"),
        ("assign", '{"b":[1,2]}', "does not hold b-2; the partitions there are b-0, b-1"),
        ("assign", '{"x":[0]}', "does not hold x-0; its topics are a, a-b, b"),
    ],
)
def test_what_does_not_exist_is_named(option: str, value: str, hint: str) -> None:
    with pytest.raises(UnusableOption) as refused:
        choose_partitions(EXISTING, parse_options({"path": "/data", option: value}), "/data")
    assert hint in str(refused.value)


def test_internal_topics_are_not_offered() -> None:
    existing = [METADATA_PARTITION]
    with pytest.raises(UnusableOption, match=r"^/data does not hold a; it has no topics yet$"):
        choose_partitions(existing, parse_options({"path": "/data", "subscribe": "a"}), "/data")


def test_a_pattern_that_is_none() -> None:
    with pytest.raises(UnusableOption, match="is not a regular expression"):
        choose_partitions(EXISTING, parse_options({"path": "/data", "subscribePattern": "a["}), "/data")
