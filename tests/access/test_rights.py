"""Each row of the table of rights on a real server: with just that right, and without it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple, cast

import attrs
import pytest

from fencepost.broker.access.acls import CLUSTER_NAME, AclEntry, Acls, Operation, Pattern, Resource
from fencepost.broker.access.authorize import REFUSALS, Verdict, authorize
from fencepost.broker.access.session import AccessSettings, Session
from fencepost.broker.access.table import ERRORS, RIGHTS, Filter, Need, Right
from fencepost.broker.broker_settings import BrokerSettings
from fencepost.broker.contract import Reply
from fencepost.broker.limits import ENTRIES
from fencepost.client.reply_errors import CLUSTER_RIGHTS
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from fencepost.protocol.messages import API_BY_REQUEST, APIS, OWN_APIS, Request
from fencepost.protocol.scram import Users, make_credential, plain_message
from fencepost.protocol.terms import NEWEST_VERSION, NO_TOPIC_ID, GroupState, TopicPartition
from tests.access.samples import PAY, SAMPLES, TOPIC
from tests.broker.requests import add_request
from tests.broker.wire import Wire, Wires, serving

PASSWORD = "secret"
ALICE = "User:alice"
DENIALS = frozenset(ERRORS.values())


def rule(right: Right, *, principal: str = ALICE, is_allowed: bool = True) -> AclEntry:
    name = CLUSTER_NAME if right.resource is Resource.CLUSTER else "*"
    return AclEntry(
        principals=frozenset({principal}),
        pattern=Pattern(resource=right.resource, name=name),
        operations=frozenset({right.operation}),
        is_allowed=is_allowed,
    )


CHANGES = 2  # the order of the cases that may change something


class Case(NamedTuple):
    """A request with exactly these rights, and the error that it must get; None: none of the denials."""

    name: str
    request: Request
    version: int
    rights: tuple[Right, ...]
    denied: ErrorCode | None
    shown: bool | None = None
    """Whether the reply has entries; None: that is not the question."""

    @property
    def order(self) -> int:
        """What is denied comes first, and what may change something last."""
        return 0 if self.denied is not None else 1 if self.shown is not None else CHANGES


def versions_of(kind: type[Any]) -> tuple[int, ...]:
    """AddPartitionsToTxn is the one request whose rights depend on the version."""
    return (3, NEWEST_VERSION) if kind is m.AddPartitionsToTxn else (NEWEST_VERSION,)


def effective(kind: type[Any], version: int) -> int:
    return min(version, API_BY_REQUEST[kind].maximum)


def cases_of(kind: type[Any]) -> Iterator[Case]:
    """With each alternative of each need; without each need; with and without the right of each filter."""
    for number, sample in enumerate(SAMPLES[kind]):
        for version in versions_of(kind):
            request = sample()
            asked = effective(kind, version)
            needs = [need for need in RIGHTS[kind].needs if need.when.holds(request, asked)]
            filters = [hidden for hidden in RIGHTS[kind].filters if hidden.when.holds(request, asked)]
            name = f"{kind.__name__}.{number}.v{asked}"
            yield from needs_cases(name, request, version, needs)
            yield from filter_cases(name, request, version, needs, filters)


def needs_cases(name: str, request: Request, version: int, needs: list[Need]) -> Iterator[Case]:
    firsts = [need.rights[0] for need in needs]
    yield Case(f"{name} with all", request, version, tuple(firsts), None)
    for at, need in enumerate(needs):
        others = tuple(firsts[:at] + firsts[at + 1 :])
        error = ERRORS[need.rights[0].resource]
        yield Case(f"{name} without {need.rights[0].operation.value}", request, version, others, error)
        for right in need.rights[1:]:
            words = f"{name} with {right.resource.value} {right.operation.value} instead"
            yield Case(words, request, version, (*others, right), None)


def filter_cases(
    name: str, request: Request, version: int, needs: list[Need], filters: list[Filter]
) -> Iterator[Case]:
    firsts = tuple(need.rights[0] for need in needs)
    for hidden in (each for each in filters if each.names is None):
        yield Case(f"{name} hides {hidden.entries}", request, version, firsts, None, shown=False)
        for right in hidden.rights:
            words = f"{name} shows {hidden.entries} with {right.resource.value} {right.operation.value}"
            yield Case(words, request, version, (*firsts, right), None, shown=True)


CASES = [case for api in (*APIS, *OWN_APIS) for case in cases_of(api.request)]


def errors_in(reply: Reply) -> set[ErrorCode]:
    """Every error in a reply, however deep."""
    found = {reply.error}

    def look(part: object) -> None:
        kind: type[Any] = type(part)
        if isinstance(part, ErrorCode):
            found.add(part)
        elif attrs.has(kind):
            for field in attrs.fields(kind):
                look(getattr(part, field.name))
        elif isinstance(part, tuple):
            for inner in cast("tuple[object, ...]", part):
                look(inner)

    look(reply.body)
    return found


def entries_in(reply: Reply, hidden: Filter) -> list[Any]:
    entries = list(getattr(reply.body, hidden.entries))
    if not hidden.inner:
        return entries
    return [inner for entry in entries for inner in getattr(entry, hidden.inner)]


async def log_in(wires: Wires, user: str) -> Wire:
    wire = await wires.open()
    assert (await wire.ask(m.SaslHandshake(mechanism="PLAIN"))).error is ErrorCode.NONE
    reply = await wire.ask(m.SaslAuthenticate(auth_bytes=plain_message(user, PASSWORD)))
    assert reply.error is ErrorCode.NONE
    return wire


async def fill(root: Wire) -> None:
    """A topic with an open transaction of `pay`, and a group with an offset."""
    await root.prepare()
    who = await root.identity(PAY)
    assert errors_in(await root.ask(add_request(who, TopicPartition(TOPIC, 0), name=PAY))) == {ErrorCode.NONE}
    assert errors_in(await root.ask_until_done(SAMPLES[m.OffsetCommit][0]())) == {ErrorCode.NONE}


@pytest.mark.trio
async def test_every_row_on_a_real_server() -> None:
    """One user for each case. What is denied changes nothing."""
    credential = make_credential(PASSWORD, b"salt")
    users = {f"u{number}": credential for number in range(len(CASES))}
    rules = tuple(
        rule(right, principal=f"User:u{number}") for number, case in enumerate(CASES) for right in case.rights
    )
    access = AccessSettings(
        users=Users(credentials={"root": credential, **users}, decoy_key=b""),
        acls=Acls(
            rules=(*rules, rule(Right(Resource.CLUSTER, Operation.CLUSTER_ACTION), principal="User:root")),
            super_users=frozenset({"User:root"}),
        ),
    )
    async with serving(BrokerSettings(access=access)) as (_, wires):
        root = await log_in(wires, "root")
        await fill(root)
        before = await picture(root)
        wrong: list[str] = []
        ordered = sorted(enumerate(CASES), key=lambda found: found[1].order)
        for order, cases in groupby(ordered, key=lambda found: found[1].order):
            for number, case in cases:
                wire = await log_in(wires, f"u{number}")
                wire.versions = {type(case.request): case.version}
                wrong += judged(case, await wire.ask(case.request))
                await wire.stream.aclose()
            assert order == CHANGES or await picture(root) == before, "what was denied changed something"
        assert wrong == []


def judged(case: Case, reply: Reply) -> list[str]:
    found = errors_in(reply) & DENIALS
    if case.denied is not None:
        return [] if found == {case.denied} else [f"{case.name}: {errors_in(reply)}"]
    if found:
        return [f"{case.name}: denied with {found}"]
    if case.shown is None:
        return []
    shown = [entries_in(reply, hidden) for hidden in RIGHTS[type(case.request)].filters]
    return [] if bool(shown[0]) is case.shown else [f"{case.name}: {shown}"]


async def picture(root: Wire) -> list[object]:
    """What an administrator sees."""
    questions: list[Request] = [
        m.Metadata(topics=None),
        SAMPLES[m.DescribeTransactions][0](),
        SAMPLES[m.OffsetFetch][1](),
        SAMPLES[m.ListGroups][0](),
        SAMPLES[m.ListOffsets][0](),
    ]
    return [(await root.ask(question)).body for question in questions]


# --- the table, and the decision without a server -----------------------------------------------------------


def test_every_message_has_a_row_and_a_sample_for_each_need() -> None:
    kinds = {api.request for api in (*APIS, *OWN_APIS)}
    assert RIGHTS.keys() == kinds, "a new message needs a row in broker/access/table.py"
    assert SAMPLES.keys() == kinds, "a new message needs a sample in tests/access/samples.py"
    for kind, row in RIGHTS.items():
        asked = [
            need
            for sample in SAMPLES[kind]
            for version in versions_of(kind)
            for need in row.needs
            if need.when.holds(sample(), effective(kind, version))
        ]
        assert set(asked) == set(row.needs), f"no sample of {kind.__name__} meets each need"
    with_entries = {kind for kind, row in RIGHTS.items() if any(n.entries for n in row.needs)}
    assert REFUSALS.keys() == with_entries - {m.ConsumerGroupHeartbeat}  # its reply has no entries


# Kafka's documentation, "Protocols: operations and resources" (4.3), for the requests that Fencepost has.
DOCUMENTED = {
    "Produce": {"TransactionalId Write", "Topic Write"},
    "Fetch": {"Topic Read"},
    "ListOffsets": {"Topic Describe"},
    "Metadata": {"Topic Describe"},
    "OffsetCommit": {"Group Read", "Topic Read"},
    "OffsetFetch": {"Group Describe", "Topic Describe"},
    "FindCoordinator": {"Group Describe", "TransactionalId Describe"},
    "JoinGroup": {"Group Read"},
    "Heartbeat": {"Group Read"},
    "LeaveGroup": {"Group Read"},
    "SyncGroup": {"Group Read"},
    "DescribeGroups": {"Group Describe"},
    "ListGroups": {"Cluster Describe", "Group Describe"},
    "SaslHandshake": set[str](),
    "ApiVersions": set[str](),
    "CreateTopics": {"Cluster Create", "Topic Create"},
    "DeleteTopics": {"Topic Delete"},
    "DeleteRecords": {"Topic Delete"},
    "InitProducerId": {"TransactionalId Write", "Cluster IdempotentWrite", "Topic Write"},
    "AddPartitionsToTxn": {"TransactionalId Write", "Topic Write", "Cluster ClusterAction"},
    "AddOffsetsToTxn": {"TransactionalId Write", "Group Read"},
    "EndTxn": {"TransactionalId Write"},
    "WriteTxnMarkers": {"Cluster Alter", "Cluster ClusterAction"},
    "TxnOffsetCommit": {"TransactionalId Write", "Group Read", "Topic Read"},
    "DescribeAcls": {"Cluster Describe"},
    "DescribeConfigs": {"Cluster DescribeConfigs", "Group DescribeConfigs", "Topic DescribeConfigs"},
    "SaslAuthenticate": set[str](),
    "DeleteGroups": {"Group Delete"},
    "ElectLeaders": {"Cluster Alter"},
    "AlterPartitionReassignments": {"Cluster Alter"},
    "ListPartitionReassignments": {"Cluster Describe"},
    "IncrementalAlterConfigs": {"Cluster AlterConfigs", "Group AlterConfigs", "Topic AlterConfigs"},
    "CreatePartitions": {"Topic Alter"},
    "OffsetForLeaderEpoch": {"Topic Describe", "Cluster ClusterAction"},
    "OffsetDelete": {"Group Delete", "Topic Read"},
    "DescribeProducers": {"Topic Read"},
    "BrokerRegistration": {"Cluster ClusterAction"},
    "DescribeTransactions": {"TransactionalId Describe", "Topic Describe"},
    "ListTransactions": {"TransactionalId Describe"},
    "AllocateProducerIds": {"Cluster ClusterAction"},
    "ConsumerGroupHeartbeat": {"Group Read", "Topic Describe"},
    "ConsumerGroupDescribe": {"Group Describe", "Topic Describe"},
}
OWN = {
    "AddFaults": {"Cluster Alter"},
    "ListFaults": {"Cluster Describe"},
    "RemoveFaults": {"Cluster Alter"},
    "Follow": {"Cluster ClusterAction"},
}
"""Of requests that Kafka does not have."""


def test_the_table_is_kafkas() -> None:
    found = {
        kind.__name__: {
            f"{right.resource.value} {right.operation.value}"
            for part in (*row.needs, *row.filters)
            for right in part.rights
        }
        for kind, row in RIGHTS.items()
        if kind is not m.BrokerStatus  # Fencepost's own
    }
    assert found == DOCUMENTED | OWN


def two_topics() -> m.Produce:
    parts = [
        m.ProducePartition(topic=topic, topic_id=NO_TOPIC_ID, partition=0, records=b"")
        for topic in (TOPIC, "secret")
    ]
    return m.Produce(transactional_id=None, acks=1, timeout_ms=0, partitions=tuple(parts))


def only(right: Right, name: str) -> Acls:
    found = rule(right)
    return Acls(rules=(attrs.evolve(found, pattern=attrs.evolve(found.pattern, name=name)),))


SENT_BY_BROKERS = {m.AddPartitionsToTxn, m.AllocateProducerIds, m.BrokerRegistration}


def test_a_client_names_the_right_to_the_cluster_that_its_request_needs() -> None:
    needed = {
        request: need.rights[0].operation.value
        for request, row in RIGHTS.items()
        for need in reversed(row.needs)  # the first one, if there are several
        if need.rights[0].resource is Resource.CLUSTER
    }
    assert needed == CLUSTER_RIGHTS | dict.fromkeys(SENT_BY_BROKERS, Operation.CLUSTER_ACTION.value)


def test_allowed_partitions_continue_and_the_others_are_refused_in_the_same_reply() -> None:
    verdict = authorize(only(Right(Resource.TOPIC, Operation.WRITE), TOPIC), ALICE, two_topics(), 12)
    assert isinstance(verdict.request, m.Produce)
    assert [part.topic for part in verdict.request.partitions] == [TOPIC]
    done = m.ProducedPartition(
        topic=TOPIC, partition=0, error=ErrorCode.NONE, base_offset=7, log_start_offset=0
    )
    assert verdict.amendment is not None
    reply = verdict.amendment.apply(m.ProduceReply(partitions=(done,)))
    assert isinstance(reply, m.ProduceReply)
    assert [(part.topic, part.error) for part in reply.partitions] == [
        (TOPIC, ErrorCode.NONE),
        ("secret", ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ]
    assert str(verdict.denial) == "Write on Topic 'secret'"


def test_a_group_is_looked_at_even_if_none_of_its_topics_may_be_read() -> None:
    """Whoever may delete the group is told that there is none."""
    request = m.OffsetDelete(group_id="absent", partitions=(TopicPartition(TOPIC, 0),))
    verdict = authorize(only(Right(Resource.GROUP, Operation.DELETE), "absent"), ALICE, request, 0)
    assert verdict.request == attrs.evolve(request, partitions=())
    assert verdict.amendment is not None
    (refused,) = verdict.amendment.refused
    assert refused.error is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_transaction_gets_all_of_its_partitions_or_none() -> None:
    request = m.AddPartitionsToTxn(
        transactional_id=PAY,
        producer_id=0,
        producer_epoch=0,
        verify_only=False,
        partitions=(TopicPartition(TOPIC, 0), TopicPartition("secret", 0)),
    )
    acls = Acls(
        rules=(
            *only(Right(Resource.TOPIC, Operation.WRITE), TOPIC).rules,
            *only(Right(Resource.TRANSACTIONAL_ID, Operation.WRITE), PAY).rules,
        )
    )
    verdict = authorize(acls, ALICE, request, 3)
    assert verdict.request is None
    assert isinstance(verdict.body, m.AddPartitionsToTxnReply)
    assert [part.error for part in verdict.body.partitions] == [
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ]


def test_an_administrator_aborts_and_never_commits() -> None:
    abort, commit = (sample() for sample in SAMPLES[m.WriteTxnMarkers])
    administrator = Right(Resource.CLUSTER, Operation.ALL)
    for acls in (Acls(super_users=frozenset({ALICE})), Acls(rules=(rule(administrator),))):
        assert authorize(acls, ALICE, abort, 2).request is abort
        assert authorize(acls, ALICE, commit, 2).error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        ids = SAMPLES[m.AllocateProducerIds][0]()
        assert authorize(acls, ALICE, ids, 0).error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_a_denial_does_not_tell_whether_a_topic_exists() -> None:
    def told(names: Iterable[str]) -> object:
        verdict = authorize(Acls(), ALICE, m.Metadata(topics=tuple(names)), 8)
        assert verdict.request == m.Metadata(topics=())
        assert verdict.amendment is not None
        return [entry.error for entry in verdict.amendment.refused]

    assert told([TOPIC]) == told(["nowhere"]) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]


def test_limits_are_compared_before_rights() -> None:
    """Otherwise a request that is refused anyway would cost a decision for each of its entries."""
    names = tuple(f"secret{number}" for number in range(ENTRIES.value + 1))
    session = Session("nonce", users=None, acls=Acls())
    assert session.authorize(m.DescribeGroups(groups=names[:-1]), 0).denial is not None
    assert session.authorize(m.DescribeGroups(groups=names), 0) == Verdict(error=ErrorCode.INVALID_REQUEST)


def described_group(group_id: str, *topics: str) -> m.DescribedConsumerGroup:
    """A group with a member for each topic."""
    members = tuple(
        m.DescribedConsumer(
            member_id=topic, instance_id=None, rack_id=None, member_epoch=1, client_id="", client_host="",
            subscribed_topic_names=(topic,), subscribed_topic_regex="", target_assignment=(),
            assignment=(m.NamedTopic(topic_id=bytes(16), topic=topic, partitions=(0,)),),
        )
        for topic in topics
    )  # fmt: skip
    return m.DescribedConsumerGroup(
        group_id=group_id, error=ErrorCode.NONE, state=GroupState.STABLE, group_epoch=1, assignment_epoch=1,
        assignor_name="uniform", members=members,
    )  # fmt: skip


def test_a_group_with_a_topic_that_is_hidden_is_not_described() -> None:
    describe_groups, describe_topics = (
        Right(Resource.GROUP, Operation.DESCRIBE),
        Right(Resource.TOPIC, Operation.DESCRIBE),
    )
    acls = Acls(rules=(rule(describe_groups), *only(describe_topics, TOPIC).rules))
    verdict = authorize(acls, ALICE, m.ConsumerGroupDescribe(groups=("a", "b")), 1)
    assert verdict.amendment is not None
    body = m.ConsumerGroupDescribeReply(
        groups=(described_group("a", TOPIC), described_group("b", TOPIC, "secret"))
    )
    seen = verdict.amendment.apply(body)
    assert isinstance(seen, m.ConsumerGroupDescribeReply)
    assert [(group.error, len(group.members)) for group in seen.groups] == [
        (ErrorCode.NONE, 1),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0),
    ]


@pytest.mark.parametrize(
    ("rules", "error"),
    [
        ([("*", True)], ErrorCode.NONE),
        ([("orders", True)], ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ([("*", True), ("secret", False)], ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ],
)
def test_an_expression_needs_every_topic(rules: list[tuple[str, bool]], error: ErrorCode) -> None:
    entries = [rule(Right(Resource.GROUP, Operation.READ))]
    for name, is_allowed in rules:
        found = rule(Right(Resource.TOPIC, Operation.DESCRIBE), is_allowed=is_allowed)
        entries.append(attrs.evolve(found, pattern=attrs.evolve(found.pattern, name=name)))
    request = SAMPLES[m.ConsumerGroupHeartbeat][1]()
    assert authorize(Acls(rules=tuple(entries)), ALICE, request, 1).error is error
