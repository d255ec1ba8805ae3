"""DescribeAcls: the rules of the broker's ACL file as Kafka's ACLs (KIP-140, KIP-290).

Rule: the node lists all of them; Kafka's filter is applied here.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from fencepost.kafka_bridge.exchange import Answer, Exchange, Values, explained, one
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ProtocolViolation

UNKNOWN, ANY = 0, 1  # ResourceType, PatternType, AclOperation, AclPermissionType
MATCH, LITERAL, PREFIXED = 2, 3, 4  # PatternType
DENY, ALLOW = 2, 3  # AclPermissionType
ANY_HOST: Final = "*"  # no rule is about a host
ALL_NAMES: Final = "*"  # ResourcePattern.WILDCARD_RESOURCE


def describe_acls(request: Any, _: int) -> Exchange:
    filtered = (request.resource_type_filter, request.pattern_type_filter)
    if UNKNOWN in (*filtered, request.operation, request.permission_type):
        raise ProtocolViolation("a DescribeAcls with an element that is UNKNOWN")  # as in Kafka

    def respond(answer: Answer) -> Values:
        resources: defaultdict[tuple[int, str, int], list[Values]] = defaultdict(list)
        for acl in () if answer.body is None else answer.body.acls:
            if _is_asked_for(acl, request):
                resources[acl.resource_type, acl.name, _pattern_type(acl)].append(_values(acl))
        return {
            "throttle_time": 0,
            **explained(answer.error),
            "resources": [
                {"resource_type": kind, "resource_name": name, "pattern_type": pattern_type, "acls": acls}
                for (kind, name, pattern_type), acls in resources.items()
            ],
        }

    return one(m.DescribeAcls(), respond)


def _values(acl: m.DescribedAcl) -> Values:
    return {
        "principal": acl.principal,
        "host": ANY_HOST,
        "operation": acl.operation,
        "permission_type": _permission_type(acl),
    }


def _pattern_type(acl: m.DescribedAcl) -> int:
    return PREFIXED if acl.is_prefix else LITERAL


def _permission_type(acl: m.DescribedAcl) -> int:
    return ALLOW if acl.is_allowed else DENY


def _is_asked_for(acl: m.DescribedAcl, request: Any) -> bool:
    """AclBindingFilter.matches."""
    return (
        request.resource_type_filter in (ANY, acl.resource_type)
        and request.pattern_type_filter in (ANY, MATCH, _pattern_type(acl))
        and _is_named(acl, request.resource_name_filter, matches=request.pattern_type_filter == MATCH)
        and request.principal_filter in (None, acl.principal)
        and request.host_filter in (None, ANY_HOST)
        and request.operation in (ANY, acl.operation)
        and request.permission_type in (ANY, _permission_type(acl))
    )


def _is_named(acl: m.DescribedAcl, name: str | None, *, matches: bool) -> bool:
    """Whether an ACL has this name, or `matches` a resource of this name."""
    if name is None or name == acl.name:
        return True
    return matches and (name.startswith(acl.name) if acl.is_prefix else acl.name == ALL_NAMES)
