"""A broker process for conversations over a socket: `python -m tests.oracle.serving DIRECTORY SETTINGS`.

Rule: it is the server that `fencepost serve` runs, with the settings that a recording asks for, as JSON.
"""

from __future__ import annotations

import json
import sys
from functools import partial

import attrs
import trio

from fencepost.broker.server import BrokerSettings, Ready, serve_until_signalled
from fencepost.broker.settings import NodeSettings
from fencepost.broker.transactions.tables import TRANSACTION_VERSIONS


def settings_in_words(settings: NodeSettings) -> str:
    """What differs from the default, as JSON; the transaction version by its number."""
    plain = NodeSettings()
    names = [field.name for field in attrs.fields(NodeSettings) if field.name != "transaction_version"]
    words = {
        name: getattr(settings, name) for name in names if getattr(settings, name) != getattr(plain, name)
    }
    return json.dumps({"transaction_version": settings.transaction_version.number, **words})


def settings_from_words(words: str) -> NodeSettings:
    """The settings that `settings_in_words` wrote down."""
    fields = json.loads(words)
    return NodeSettings(transaction_version=TRANSACTION_VERSIONS[fields.pop("transaction_version")], **fields)


def _tell(ready: Ready) -> None:
    print(json.dumps({"port": ready.port}), flush=True)


def main(directory: str, words: str) -> None:
    """Serve until a signal comes."""
    settings = BrokerSettings(directory=directory, node=settings_from_words(words))
    trio.run(partial(serve_until_signalled, settings, on_ready=_tell))


if __name__ == "__main__":
    main(*sys.argv[1:])
