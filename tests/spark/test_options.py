"""Options: what each value means, and that whatever is not understood is refused with a hint."""

import pytest

from fencepost.protocol.terms import IsolationLevel, TopicPartition
from fencepost.spark_bridge.options import ReadOptions, UnusableOption, parse_options
from fencepost.spark_bridge.planning import choose_partitions

NEEDED = {"path": "/data", "subscribe": "orders"}


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({}, ReadOptions(path="/data", subscribe=("orders",))),
        ({"subscribe": "b, a ,b"}, ReadOptions(path="/data", subscribe=("a", "b"))),
        ({"path": "file:///data"}, ReadOptions(path="/data", subscribe=("orders",))),
        ({"includeheaders": "TRUE"}, ReadOptions(path="/data", subscribe=("orders",), include_headers=True)),
        (
            {"kafka.isolation.level": "read_uncommitted"},
            ReadOptions(path="/data", subscribe=("orders",), isolation_level=IsolationLevel.READ_UNCOMMITTED),
        ),
        (
            {"startingOffsets": ' {"orders":{"0":23,"1":-2}}', "endingOffsets": '{"orders":{"0":-1}}'},
            ReadOptions(
                path="/data",
                subscribe=("orders",),
                starting_offsets={TopicPartition("orders", 0): 23, TopicPartition("orders", 1): -2},
                ending_offsets={TopicPartition("orders", 0): -1},
            ),
        ),
        (
            {"startingOffsets": "Earliest", "endingOffsets": "latest"},
            ReadOptions(path="/data", subscribe=("orders",)),
        ),
        (
            {"minPartitions": "8", "maxRecordsPerPartition": "1000", "failOnDataLoss": "false"},
            ReadOptions(
                path="/data",
                subscribe=("orders",),
                fail_on_data_loss=False,
                min_partitions=8,
                max_records_per_partition=1000,
            ),
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
        ({"startingOffset": "earliest"}, "option startingoffset is unknown; the options are path, subscribe"),
        ({"kafka.bootstrap.servers": "localhost:9092"}, "remove it and set path"),
        ({"kafka.group.id": "g"}, "is for a Kafka client"),
        ({"startingTimestamp": "5"}, "use startingOffsets"),
        ({"startingOffsets": "latest"}, "in a batch, startingOffsets must be earliest or offsets like"),
        ({"endingOffsets": "earliest"}, "in a batch, endingOffsets must be latest or offsets like"),
        ({"startingOffsets": '{"orders":{"0":-1}}'}, "would leave a batch nothing to read"),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, "would leave a batch nothing to read"),
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
        ({"minPartitions": "0"}, "a whole number above 0, not 0"),
        ({"minPartitions": "-1"}, "a whole number above 0"),
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
        ("subscribe", "a,c,d", "/data does not hold c, d; its topics are __transaction_state, a, a-b, b"),
        ("assign", '{"b":[1,2]}', "does not hold b-2"),
        ("subscribePattern", "x.*", "does not hold any topic matching x.*"),
    ],
)
def test_what_does_not_exist_is_named(option: str, value: str, hint: str) -> None:
    with pytest.raises(UnusableOption) as refused:
        choose_partitions(EXISTING, parse_options({"path": "/data", option: value}), "/data")
    assert hint in str(refused.value)


def test_a_pattern_that_is_none() -> None:
    with pytest.raises(UnusableOption, match="is not a regular expression"):
        choose_partitions(EXISTING, parse_options({"path": "/data", "subscribePattern": "a["}), "/data")
