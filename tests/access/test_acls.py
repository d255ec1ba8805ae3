"""The decision against a naive model, and the two files: what they mean, and what their errors say."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.broker.access.acls import OPERATIONS, AclEntry, Acls, Operation, Pattern, Resource
from fencepost.broker.access.files import AccessFileError, format_users, parse_acls, parse_users
from fencepost.protocol.scram import Users, make_credential

# --- the decision -------------------------------------------------------------------------------------------

PRINCIPALS = ["User:alice", "User:bob", "User:*"]
NAMES = ["a", "ab", "abc", "b"]

operations = st.sampled_from([*Operation])
resources = st.sampled_from([*Resource])
patterns = st.builds(
    Pattern, resource=resources, name=st.sampled_from([*NAMES, "*"]), is_prefix=st.booleans()
).filter(lambda pattern: not (pattern.is_prefix and pattern.name == "*"))
rules = st.builds(
    AclEntry,
    principals=st.frozensets(st.sampled_from(PRINCIPALS), min_size=1),
    pattern=patterns,
    operations=st.frozensets(operations, min_size=1, max_size=3),
    is_allowed=st.booleans(),
)
few = settings(max_examples=100, deadline=None)

# Which permissions are enough for an operation, written out.
ENOUGH = {
    "Describe": ["Describe", "Read", "Write", "Delete", "Alter", "All"],
    "DescribeConfigs": ["DescribeConfigs", "AlterConfigs", "All"],
    "ClusterAction": ["ClusterAction"],
}


def naive(
    given_rules: list[AclEntry],
    is_super: bool,
    principal: str,
    operation: Operation,
    resource: Resource,
    name: str,
) -> bool:
    """The documentation as a loop: one line per rule, one after the other."""
    if is_super and operation.value != "ClusterAction":
        return True
    allowed = denied = False
    for rule in given_rules:
        if principal not in rule.principals and "User:*" not in rule.principals:
            continue
        glob = rule.pattern.name + ("*" if rule.pattern.is_prefix else "")
        if rule.pattern.resource is not resource or not fnmatchcase(name, glob):
            continue
        names = [each.value for each in rule.operations]
        if rule.is_allowed:
            allowed = allowed or any(
                each in names for each in ENOUGH.get(operation.value, [operation.value, "All"])
            )
        else:
            denied = denied or operation.value in names or "All" in names
    return allowed and not denied


@few
@given(
    given_rules=st.lists(rules, max_size=5),
    is_super=st.booleans(),
    principal=st.sampled_from(["User:alice", "User:carol"]),
    operation=operations,
    resource=resources,
    name=st.sampled_from(NAMES),
)
def test_the_decision_is_that_of_a_naive_model(
    given_rules: list[AclEntry],
    is_super: bool,
    principal: str,
    operation: Operation,
    resource: Resource,
    name: str,
) -> None:
    acls = Acls(rules=tuple(given_rules), super_users=frozenset({principal} if is_super else ()))
    expected = naive(given_rules, is_super, principal, operation, resource, name)
    assert acls.allows(principal, operation, resource, name) is expected
    if operation in OPERATIONS[resource]:
        assert (operation in acls.operations(principal, resource, name)) is expected


@few
@given(given_rules=st.lists(rules, max_size=4))
def test_any_resource_means_that_some_name_is_allowed(given_rules: list[AclEntry]) -> None:
    """The other direction does not hold: denials may add up to cover a prefix, which Kafka does not see."""
    acls = Acls(rules=tuple(given_rules))
    some = any(
        acls.allows("User:alice", Operation.WRITE, Resource.TOPIC, name + more)
        for name in NAMES
        for more in ("", "zzz")
    )
    if some:
        assert acls.allows_any("User:alice", Operation.WRITE, Resource.TOPIC)


def test_a_denied_topic_alone_does_not_count_as_any() -> None:
    text = """
    [[acl]]
    principal = "User:alice"
    topic_prefix = "orders-"
    allow = ["Write"]
    [[acl]]
    principal = "User:*"
    topic_prefix = "orders"
    deny = ["Write"]
    """
    assert not parse_acls(text, "acls.toml").allows_any("User:alice", Operation.WRITE, Resource.TOPIC)


lookups: list[str] = []


class Counted(str):
    """The name of a resource that counts how often it, or a part of it, is looked up or compared."""

    __slots__ = ()

    def __hash__(self) -> int:
        lookups.append("hash")
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        lookups.append("==")
        return super().__eq__(other)

    def __getitem__(self, key: Any) -> Counted:
        return Counted(super().__getitem__(key))

    def startswith(self, *parts: Any) -> bool:
        lookups.append("startswith")
        return super().startswith(*parts)


def test_a_decision_costs_as_little_with_many_rules_as_with_two() -> None:
    """A request names up to 20,000 resources."""

    def cost(count: int) -> int:
        acls = Acls(
            rules=tuple(
                AclEntry(
                    principals=frozenset({"User:alice"}),
                    pattern=Pattern(resource=Resource.TOPIC, name=f"{1000 + number}-", is_prefix=is_prefix),
                    operations=frozenset({Operation.READ}),
                    is_allowed=number % 10 != 0,
                )
                for number in range(count)
                for is_prefix in (False, True)
            )
        )
        lookups.clear()
        assert not acls.allows("User:alice", Operation.READ, Resource.TOPIC, Counted("nowhere"))
        return len(lookups)

    assert 0 < cost(2) == cost(200)


# --- the file of ACLs ---------------------------------------------------------------------------------------


def test_a_file_of_acls() -> None:
    acls = parse_acls(
        """
        super_users = ["User:root"]

        [[acl]]
        principal = ["User:alice", "User:CN=bob,O=Acme"]
        topic_prefix = "orders-"
        allow = ["Read", "Write"]

        [[acl]]
        principal = "User:*"
        cluster = true
        allow = "Describe"
        deny = "Create"
        """,
        "acls.toml",
    )
    assert acls.super_users == {"User:root"}
    assert [rule.is_allowed for rule in acls.rules] == [True, True, False]
    assert acls.allows("User:CN=bob,O=Acme", Operation.DESCRIBE, Resource.TOPIC, "orders-1")
    assert not acls.allows("User:alice", Operation.READ, Resource.TOPIC, "order")
    assert acls.allows("User:anyone", Operation.DESCRIBE, Resource.CLUSTER, "kafka-cluster")


ENTRY = '[[acl]]\nprincipal = "User:a"\n'

WRONG = [
    ("x = ", "acls.toml: not TOML: Invalid value (at end"),
    ("acls = []", "unknown key 'acls': write super_users or [[acl]]"),
    ("acl = 3", "write each rule as an entry [[acl]]"),
    ('super_users = ["root"]', "super_users 'root' has no type: write \"User:root\""),
    ("[[acl]]\ntopic = 'a'\nallow = 'Read'", "entry 1 (line 1): no principal: write principal ="),
    (f"{ENTRY}topic = 'a'\n", "neither allow nor deny: write for example allow = ["),
    (f"{ENTRY}allow = 'Read'", "an entry needs one resource, but this one has none: write one of topic,"),
    (f"{ENTRY}topic = 'a'\ngroup = 'b'\nallow = 'Read'", "this one has topic and group"),
    (
        f"\n\n{ENTRY}topic = 'a'\nallow = 'Reed'",
        "entry 1 (line 3): allow: 'Reed' is not an operation on a Topic",
    ),
    (f"{ENTRY}group = 'a'\nallow = 'Write'", "write All, Read, Delete, Describe"),
    (f"{ENTRY}topic = 'a'\nallow = []", 'allow is empty: write for example allow = ["Read"]'),
    (f"{ENTRY}topic = 'a-*'\nallow = 'Read'", 'write topic_prefix = "a-"'),
    (f"{ENTRY}topic = 3\nallow = 'Read'", "topic must be a name, not 3"),
    (f"{ENTRY}cluster = 'x'\nallow = 'Alter'", "write cluster = true"),
    (f"{ENTRY}topik = 'a'\nallow = 'Read'", "unknown key 'topik'"),
    (
        f"{ENTRY}topic='a'\nallow='Read'\n{ENTRY}topic='a'\nallow=3",
        "entry 2 (line 5): allow must be a string",
    ),
]


@pytest.mark.parametrize(("text", "words"), WRONG, ids=[words for _, words in WRONG])
def test_an_error_in_a_file_says_where_it_is_and_what_to_write(text: str, words: str) -> None:
    with pytest.raises(AccessFileError) as found:
        parse_acls(text, "acls.toml")
    assert str(found.value).startswith("acls.toml: ")
    assert words in str(found.value)


def test_each_operation_is_one_of_some_resource() -> None:
    assert {each for possible in OPERATIONS.values() for each in possible} == set(Operation)


# --- the file of users --------------------------------------------------------------------------------------


def test_a_file_of_users_holds_what_was_written() -> None:
    users = Users(
        credentials={name: make_credential("secret", name.encode()) for name in ("alice", "b@x.org")},
        decoy_key=b"d" * 32,
    )
    text = format_users(users)
    assert "secret" not in text
    assert parse_users(text, "users.toml") == users


@pytest.mark.parametrize(
    ("old", "new"),
    [("iterations = 4096", "iterations = 1"), ("salt", "sold"), ("decoy_key", "key"), ('"alice"', '"a,b"'),
     ('stored_key = "', 'stored_key = "AAAA'), ("[users]", "users = 3\n[x]"), ("iterations = 4096", "")],
)  # fmt: skip
def test_a_changed_file_of_users_is_refused(old: str, new: str) -> None:
    text = format_users(Users(credentials={"alice": make_credential("x", b"s")}, decoy_key=b"d" * 32))
    assert old in text
    with pytest.raises(AccessFileError, match=r"^users\.toml: "):
        parse_users(text.replace(old, new), "users.toml")
