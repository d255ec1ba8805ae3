"""The examples in the help of each command, and on docs/cli.md.

Rule: every command has one, and a test parses them all.
"""

from __future__ import annotations

from typing import Final

EXAMPLES: Final = {
    "serve": ("fencepost serve ./data", "fencepost serve --memory --port 0"),
    "status": ("fencepost status", "fencepost status --json"),
    "top": ("fencepost top", "fencepost top --once --json"),
    "user add": ("fencepost user add users.toml alice",),
    "user remove": ("fencepost user remove users.toml alice",),
    "topic create": ("fencepost topic create orders -p 6 -c cleanup.policy=compact",),
    "topic list": ("fencepost topic list",),
    "topic describe": ("fencepost topic describe orders",),
    "topic alter": ("fencepost topic alter orders -c retention.ms=3600000",),
    "topic delete": ("fencepost topic delete orders",),
    "topic delete-records": ("fencepost topic delete-records orders -p 0 --before end",),
    "fault add": (
        'fencepost fault add "when broker sends EndTxn reply to * #2 do drop"',
        'fencepost fault add "when coordinator of till-1 appends PREPARE_COMMIT do crash broker"',
    ),
    "fault list": ("fencepost fault list",),
    "fault wait": ("fencepost fault wait --timeout 30",),
    "fault end": ("fencepost fault end 1",),
    "fault remove": ("fencepost fault remove",),
    "group list": ("fencepost group list --state Stable",),
    "group describe": ("fencepost group describe billing",),
    "group delete": ("fencepost group delete billing",),
    "group reset-offsets": (
        "fencepost group reset-offsets billing -t orders --to-earliest",
        "fencepost group reset-offsets billing --all-topics --by-duration 1h30m --execute",
    ),
    "group delete-offsets": ("fencepost group delete-offsets billing -t orders",),
    "produce": (
        "fencepost produce orders orders.tsv",
        "fencepost produce orders orders.csv -f csv --key-column id",
        "fencepost produce orders --transactional-id till-1 < orders.tsv",
        "fencepost consume orders --json | fencepost produce copy -f jsonl --repartition",
    ),
    "consume": (
        "fencepost consume orders --from -10",
        "fencepost consume orders --from 2026-11-22T13:00 --until 2026-11-22T14:00 -f csv",
        "fencepost consume orders -F -f '%d %p:%o %k=%s\\n'",
        "fencepost consume orders -g billing -n 100 --json",
    ),
    "transactions list": ("fencepost transactions list --state Ongoing",),
    "transactions describe": ("fencepost transactions describe till-1",),
    "transactions describe-producers": ("fencepost transactions describe-producers -t orders -p 0",),
    "transactions find-hanging": ("fencepost transactions find-hanging -t orders",),
    "transactions late": ("fencepost transactions late",),
    "transactions abort": ("fencepost transactions abort -t orders -p 0 --start-offset 42",),
    "transactions force-terminate": ("fencepost transactions force-terminate till-1",),
    "dump": ("fencepost dump ./data", "fencepost dump ./data/orders-0 --records"),
    "check": ("fencepost check ./data",),
    "audit": (
        "fencepost audit ./data",
        "fencepost audit ./data --acks acks.jsonl",
        "fencepost audit ./data --input orders --output totals --by key",
    ),
    "export": ("fencepost export ./data ./lake --to parquet --topic orders",),
    "repair": ("fencepost repair ./data", "fencepost repair ./data --write"),
    "fuzz": (
        "fencepost fuzz --seeds 500",
        "fencepost fuzz --first-seed 33 --seeds 1 --break fencing",
        "fencepost fuzz --for 10m --shrink --output found --junit report.xml",
    ),
    "shrink": ("fencepost shrink --seed 33 --break fencing",),
    "run": (
        "fencepost run --list",
        "fencepost run late_end_txn --variant 1 --text",
        "fencepost run late_end_txn --slide --svg late.svg",
        "fencepost run late_end_txn --variant 1 --html late.html --beside transaction_version=2",
        "fencepost run late_end_txn --step",
        "fencepost run my-scenarios --output failed --junit report.xml",
    ),
    "explore": (
        "fencepost explore",
        "fencepost explore --transaction-version 0 --text",
        "fencepost explore --transaction-version 0 --output found",
    ),
    "--install-completion": ("fencepost --install-completion",),
    "lab": ("fencepost lab", "fencepost lab --port 0 --no-browser"),
    "help": ("fencepost help", "fencepost help operations"),
    "demo": ("fencepost demo --flights 20000", "fencepost demo --break fencing"),
}
