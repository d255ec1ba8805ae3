"""The decision of an authorizer: may this principal do this to this resource?

Rule: a deny wins; without a rule that allows, access is denied (StandardAuthorizer, and its setting
`allow.everyone.if.no.acl.found` = false).
"""

# The rules of Kafka's authorizer (AclEntry, StandardAuthorizerData), in the order in which they decide:
#
#     1. a super user may do everything
#     2. a rule denies the operation, or All                                             -> no
#     3. a rule allows the operation, or All, or an operation that includes it           -> yes
#     4. nothing was said                                                                -> no
#
# Describe is included in Read, Write, Delete and Alter; DescribeConfigs in AlterConfigs. A denial includes
# nothing else.
#
# One difference is on purpose. ClusterAction lets a client speak as a broker: it may commit anyone's open
# transaction, and take producer ids. So neither All nor `super_users` includes it: a rule must name it.

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import product
from typing import Final

import attrs

from fencepost.protocol.messages import DescribedAcl
from fencepost.protocol.terms import OPERATION_BITS, OPERATION_CODES, RESOURCE_TYPES, IdentityEnum
from fencepost.protocol.values import value

ANYONE: Final = "User:*"
ANONYMOUS: Final = "User:ANONYMOUS"
"""KafkaPrincipal.ANONYMOUS: a connection that did not authenticate."""
WILDCARD: Final = "*"
CLUSTER_NAME: Final = "kafka-cluster"


class Operation(IdentityEnum):
    """Kafka's operations on resources (org.apache.kafka.common.acl.AclOperation)."""

    ALL = "All"
    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DELETE = "Delete"
    ALTER = "Alter"
    DESCRIBE = "Describe"
    CLUSTER_ACTION = "ClusterAction"
    DESCRIBE_CONFIGS = "DescribeConfigs"
    ALTER_CONFIGS = "AlterConfigs"
    IDEMPOTENT_WRITE = "IdempotentWrite"


class Resource(IdentityEnum):
    """Kafka's types of resources; a rule names one by the same words in lower case."""

    TOPIC = "Topic"
    GROUP = "Group"
    TRANSACTIONAL_ID = "TransactionalId"
    CLUSTER = "Cluster"


_O = Operation

OPERATIONS: Final = {
    Resource.TOPIC: (
        _O.ALL, _O.READ, _O.WRITE, _O.CREATE, _O.DELETE, _O.ALTER, _O.DESCRIBE, _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
    ),
    Resource.GROUP: (_O.ALL, _O.READ, _O.DELETE, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
    Resource.TRANSACTIONAL_ID: (_O.ALL, _O.WRITE, _O.DESCRIBE),
    Resource.CLUSTER: (
        _O.ALL, _O.CREATE, _O.ALTER, _O.DESCRIBE, _O.CLUSTER_ACTION, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS,
        _O.IDEMPOTENT_WRITE,
    ),
}  # fmt: skip
"""The operations that a resource has (AclEntry.supportedOperations)."""


def bits(operations: Iterable[Operation]) -> int:
    """Operations as a bit field of Kafka's responses, in which All has no place (AclOperation, KIP-430)."""
    return sum(OPERATION_BITS[each.value] for each in operations if each is not _O.ALL)


INCLUDED_IN: Final = {
    _O.DESCRIBE: frozenset({_O.READ, _O.WRITE, _O.DELETE, _O.ALTER}),
    _O.DESCRIBE_CONFIGS: frozenset({_O.ALTER_CONFIGS}),
}
"""The operations whose permission includes this one."""


@value(kw_only=True)
class Pattern:
    """Resources of a type by name: the one of that name, those with a prefix, or, with `*`, all of them."""

    resource: Resource
    name: str
    is_prefix: bool = False

    def covers(self, other: Pattern) -> bool:
        """Whether this pattern matches every name that the other one matches."""
        if self.resource is not other.resource:
            return False
        if self.name == WILDCARD and not self.is_prefix:
            return True
        if self.is_prefix:
            # The literal `*` stands for every name, so no prefix covers it.
            return other.name.startswith(self.name) and (other.is_prefix or other.name != WILDCARD)
        return not other.is_prefix and other.name == self.name


@value(kw_only=True)
class AclEntry:
    """One rule: these principals may, or may not, perform these operations on the pattern's resources."""

    principals: frozenset[str]
    pattern: Pattern
    operations: frozenset[Operation]
    is_allowed: bool

    def is_about(self, principal: str) -> bool:
        return principal in self.principals or ANYONE in self.principals


@attrs.define(eq=False)
class _Permissions:
    """What all rules with one pattern allow and deny one principal."""

    allowed: set[Operation] = attrs.field(factory=set)
    denied: set[Operation] = attrs.field(factory=set)


@attrs.define(eq=False)
class _Patterns:
    """The patterns of one type of resource in the rules about one principal, by name. So a decision takes one
    look-up per distinct prefix length, however many rules there are: a request may name 20,000 resources.
    """

    literal: dict[str, _Permissions] = attrs.field(factory=dict)
    prefixed: dict[str, _Permissions] = attrs.field(factory=dict)
    prefix_lengths: set[int] = attrs.field(factory=set)

    def add(self, rule: AclEntry) -> None:
        name = rule.pattern.name
        if rule.pattern.is_prefix:
            self.prefix_lengths.add(len(name))
        by_name = self.prefixed if rule.pattern.is_prefix else self.literal
        found = by_name.setdefault(name, _Permissions())
        (found.allowed if rule.is_allowed else found.denied).update(rule.operations)

    def matching(self, name: str) -> list[_Permissions]:
        found = [self.literal.get(name), self.literal.get(WILDCARD)]
        found += [self.prefixed.get(name[:length]) for length in self.prefix_lengths if length <= len(name)]
        return [permissions for permissions in found if permissions is not None]


@attrs.frozen(kw_only=True)
class Acls:
    """All rules of a broker."""

    rules: tuple[AclEntry, ...] = ()
    super_users: frozenset[str] = frozenset()
    _patterns: dict[tuple[str, Resource], _Patterns] = attrs.field(
        default=attrs.Factory(lambda acls: _indexed(acls.rules), takes_self=True),
        init=False,
        eq=False,
        repr=False,
    )

    def allows(self, principal: str, operation: Operation, resource: Resource, name: str) -> bool:
        """Whether the principal may perform the operation on the resource of this name."""
        return self._decides(principal, operation, self._found(principal, resource, name))

    def operations(self, principal: str, resource: Resource, name: str) -> list[Operation]:
        """The operations that the principal may perform on the resource of this name."""
        found = self._found(principal, resource, name)
        return [each for each in OPERATIONS[resource] if self._decides(principal, each, found)]

    def _found(self, principal: str, resource: Resource, name: str) -> list[_Permissions]:
        return [
            permissions
            for who in (principal, ANYONE)
            if (patterns := self._patterns.get((who, resource))) is not None
            for permissions in patterns.matching(name)
        ]

    def _decides(self, principal: str, operation: Operation, found: list[_Permissions]) -> bool:
        if principal in self.super_users and operation is not _O.CLUSTER_ACTION:
            return True
        if any(operation in each.denied or _O.ALL in each.denied for each in found):
            return False
        granting = _granting(operation)
        return any(not granting.isdisjoint(each.allowed) for each in found)

    def allows_any(self, principal: str, operation: Operation, resource: Resource) -> bool:
        """Whether there may be a resource of this type on which the principal may perform the operation
        (Authorizer.authorizeByResourceType).
        """
        if principal in self.super_users:
            return True
        found = [
            rule
            for rule in self.rules
            if rule.is_about(principal)
            and rule.pattern.resource is resource
            and rule.operations & {operation, _O.ALL}
        ]
        # A denial of some of the names that a rule allows leaves others; only one that covers all of them
        # counts.
        denied = [rule.pattern for rule in found if not rule.is_allowed]
        return any(
            rule.is_allowed and not any(pattern.covers(rule.pattern) for pattern in denied) for rule in found
        )

    def allows_all(self, principal: str, operation: Operation, resource: Resource) -> bool:
        """Whether the principal may perform the operation on all resources of this type."""
        if principal in self.super_users:
            return True
        denies_some = any(
            rule.is_about(principal)
            and rule.pattern.resource is resource
            and not rule.is_allowed
            and rule.operations & {operation, _O.ALL}
            for rule in self.rules
        )
        # `*` as a name matches literal rules for all names only: a prefix allows some.
        return not denies_some and self.allows(principal, operation, resource, WILDCARD)

    @property
    def principals(self) -> frozenset[str]:
        """Every principal that a rule or the list of super users names."""
        return self.super_users.union(*(rule.principals for rule in self.rules))

    def described(self) -> tuple[DescribedAcl, ...]:
        """The rules as Kafka's ACLs, each of which is about one principal and one operation."""
        found = (
            DescribedAcl(
                resource_type=RESOURCE_TYPES[rule.pattern.resource.value],
                name=rule.pattern.name,
                is_prefix=rule.pattern.is_prefix,
                principal=principal,
                operation=OPERATION_CODES[operation.value],
                is_allowed=rule.is_allowed,
            )
            for rule in self.rules
            for principal, operation in product(sorted(rule.principals), OPERATIONS[rule.pattern.resource])
            if operation in rule.operations
        )
        return tuple(dict.fromkeys(found))  # two entries may say the same


def _indexed(rules: tuple[AclEntry, ...]) -> dict[tuple[str, Resource], _Patterns]:
    found: dict[tuple[str, Resource], _Patterns] = {}
    for rule in rules:
        for principal in rule.principals:
            found.setdefault((principal, rule.pattern.resource), _Patterns()).add(rule)
    return found


@cache
def _granting(operation: Operation) -> frozenset[Operation]:
    """The operations whose permission is enough for this one."""
    by_name = frozenset({operation})
    if operation is _O.CLUSTER_ACTION:
        return by_name
    return by_name | {_O.ALL} | INCLUDED_IN.get(operation, frozenset())
