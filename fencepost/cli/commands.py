"""The commands: where each is, its help, and its examples.

Rule: the list of commands must not import the commands, so their help stands here and not in the docstrings
of their functions: one sentence for the list and, after an empty line, more for the command itself. Every
command has an example; a test parses them all, and docs/cli.md shows them.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Command(NamedTuple):
    help: str
    place: str = ""
    """Module and function; empty for a group."""
    examples: tuple[str, ...] = ()
    alias: str = ""
    """A further name: that of Kafka's tools, where ours differs."""


COMMANDS: Final = {
    "serve": Command(
        """Run a broker until Ctrl-C or SIGTERM.

        When the broker is ready, it prints three lines: its address, an upper bound on the memory that
        clients can make it use, and both as JSON. With --fault, it also prints which faults wait, and for
        which clients.
        """,
        place="fencepost.cli.serve:serve",
        examples=("fencepost serve ./data", "fencepost serve --memory --port 0"),
    ),
    "status": Command(
        """Show the health of a broker: version, partitions, transactions, disks.

        The exit code is 1 if something is wrong: partitions that are not served, late or hanging
        transactions, or a disk that failed in the last five minutes.
        """,
        place="fencepost.cli.status:status",
        examples=("fencepost status", "fencepost status --json"),
    ),
    "top": Command(
        """Show the current load of a broker: topic and request rates, and open transactions.

        The display refreshes until Ctrl-C. RECORDS/S counts the records that producers and coordinators
        write, but not markers; LSO-LAG is the number of offsets that read_committed cannot read yet.
        """,
        place="fencepost.cli.top:top",
        examples=("fencepost top", "fencepost top --once --json"),
    ),
    "user": Command("Add users to the user file of a broker, or remove them."),
    "user add": Command(
        """Add a user to a user file, or change a user's password.

        The command asks for the password, or reads it from standard input. The file holds SCRAM credentials,
        from which the password cannot be computed.
        """,
        place="fencepost.cli.user:add_user",
        examples=("fencepost user add users.toml alice",),
    ),
    "user remove": Command(
        "Remove a user from a user file.",
        place="fencepost.cli.user:remove_user",
        examples=("fencepost user remove users.toml alice",),
    ),
    "fault": Command("Add faults to a running broker, for tests; list, end and remove them."),
    "fault add": Command(
        """Add faults to a running broker.

        A fault is "when POINT do ACTION [until POINT] [every N times] [at most N times]"; `fencepost help
        faults` lists the points and actions. A client is named by its client id, `broker` is the
        broker, and * matches any client or the broker. `#2` means the second time that the point is reached.
        """,
        place="fencepost.cli.fault:add_faults",
        examples=(
            'fencepost fault add "when broker sends EndTxn reply to * #2 do drop"',
            'fencepost fault add "when coordinator of till-1 appends PREPARE_COMMIT do crash broker"',
        ),
    ),
    "fault list": Command(
        """List the faults of a broker.

        STRUCK counts how often a fault struck, REACHED how often its point was reached while it
        could strike. LASTS is yes while its effect, such as a pause, has not ended.
        """,
        place="fencepost.cli.fault:list_faults",
        examples=("fencepost fault list",),
    ),
    "fault wait": Command(
        """Wait until faults have struck.

        The exit code is 1 if a fault has not struck in time; the output then shows similar points that were
        reached.
        """,
        place="fencepost.cli.fault:wait_for_faults",
        examples=("fencepost fault wait --timeout 30s",),
    ),
    "fault end": Command(
        "Undo what faults did: release messages, resume the broker, repair its disk.",
        place="fencepost.cli.fault:end_faults",
        examples=("fencepost fault end 1",),
    ),
    "fault remove": Command(
        "Undo what faults did, and remove them from the broker.",
        place="fencepost.cli.fault:remove_faults",
        examples=("fencepost fault remove",),
    ),
    "topic": Command("Create, list, describe, alter and delete topics; delete records."),
    "topic create": Command(
        "Create a topic.",
        place="fencepost.cli.topic:create_topic",
        examples=("fencepost topic create orders -p 6 -c cleanup.policy=compact",),
    ),
    "topic list": Command(
        "List topics.", place="fencepost.cli.topic:list_topics", examples=("fencepost topic list",)
    ),
    "topic describe": Command(
        """Show the settings of a topic, and its partitions with offsets and open transactions.

        LAST-STABLE-OFFSET is where read_committed stops; HIGH-WATERMARK is where read_uncommitted stops.
        """,
        place="fencepost.cli.topic:describe_topic",
        examples=("fencepost topic describe orders",),
    ),
    "topic alter": Command(
        """Change settings of a topic, or add partitions.

        If one setting change is refused, no setting is changed. Changes take effect at once.
        """,
        place="fencepost.cli.topic:alter_topic",
        examples=("fencepost topic alter orders -c retention.ms=3600000",),
    ),
    "topic delete": Command(
        "Delete a topic and all its records.",
        place="fencepost.cli.topic:delete_topic",
        examples=("fencepost topic delete orders",),
    ),
    "topic delete-records": Command(
        """Delete the records of a partition before an offset.

        The remaining records keep their offsets.
        """,
        place="fencepost.cli.topic:delete_records",
        examples=("fencepost topic delete-records orders -p 0 --before end",),
    ),
    "group": Command("List, describe and delete consumer groups; reset and delete their offsets."),
    "group list": Command(
        "List consumer groups.",
        place="fencepost.cli.group:list_groups",
        examples=("fencepost group list --state Stable",),
    ),
    "group describe": Command(
        """Show the members, offsets and lag of a group.

        LAG is the log end offset minus the committed offset. It counts markers and aborted records too.
        """,
        place="fencepost.cli.group:describe_group",
        examples=("fencepost group describe billing",),
    ),
    "group delete": Command(
        "Delete an empty group and its offsets.",
        place="fencepost.cli.group:delete_group",
        examples=("fencepost group delete billing",),
    ),
    "group reset-offsets": Command(
        """Change the committed offsets of a group that has no members.

        The command prints the new offsets, and commits them only with --execute.
        An offset outside the range of a log is replaced by the nearest offset inside it, as in Kafka. Give
        the partitions with --topic or --all-topics, and
        one target: --to-earliest, --to-latest, --to-offset, --to-datetime, --by-duration or --shift-by.
        """,
        place="fencepost.cli.reset_offsets:reset_offsets",
        examples=(
            "fencepost group reset-offsets billing -t orders --to-earliest",
            "fencepost group reset-offsets billing --all-topics --by-duration 1h30m --execute",
        ),
    ),
    "group delete-offsets": Command(
        "Delete the offsets of a group for a topic.",
        place="fencepost.cli.group:delete_offsets",
        examples=("fencepost group delete-offsets billing -t orders",),
    ),
    "produce": Command(
        """Write lines of text, JSON or CSV, or whole files, as records.

        Each line is a value, or a key and a value separated by a tab. With --format the command reads what
        `fencepost consume` writes in that format. The command reports what it has written even if it
        fails or Ctrl-C ends it; an open transaction is then aborted.
        """,
        place="fencepost.cli.produce:produce",
        examples=(
            "fencepost produce orders orders.tsv",
            "fencepost produce orders orders.csv -f csv --key-column id",
            "fencepost produce orders --transactional-id till-1 < orders.tsv",
            "fencepost consume orders --json | fencepost produce copy -f jsonl --repartition",
        ),
    ),
    "consume": Command(
        """Print records as lines of text, JSON or CSV, or in a format of your own.

        Each line is a value, or a key and a value separated by a tab. The command stops at the current end of
        the topic, unless --follow is given; a read_committed reader stops before the first open transaction.
        """,
        place="fencepost.cli.consume:consume",
        examples=(
            "fencepost consume orders --from -10",
            "fencepost consume orders --from 2026-11-22T13:00 --until 2026-11-22T14:00 -f csv",
            "fencepost consume orders -F -f '%d %p:%o %k=%s\\n'",
            "fencepost consume orders -g billing -n 100 --json",
        ),
    ),
    "transactions": Command("List and describe transactions; find and abort hanging ones."),
    "transactions list": Command(
        "List transactional ids.",
        place="fencepost.cli.transactions:list_transactions",
        examples=("fencepost transactions list --state Ongoing",),
    ),
    "transactions describe": Command(
        "Show one transactional id.",
        place="fencepost.cli.transactions:describe_transaction",
        examples=("fencepost transactions describe till-1",),
    ),
    "transactions describe-producers": Command(
        "Show the producer state of a partition.",
        place="fencepost.cli.transactions:describe_producers",
        examples=("fencepost transactions describe-producers -t orders -p 0",),
    ),
    "transactions find-hanging": Command(
        """Find hanging transactions: open, but unknown to every coordinator.

        They block read_committed readers until `fencepost transactions abort` ends them.
        """,
        place="fencepost.cli.transactions:find_hanging",
        examples=("fencepost transactions find-hanging -t orders",),
    ),
    "transactions late": Command(
        """Show partitions whose oldest open transaction is more than five minutes past the maximum timeout.

        Kafka reports the number of these partitions as the metric PartitionsWithLateTransactionsCount. The
        metric is above 0 when transactions hang, or when coordinators are slow to end them.
        """,
        place="fencepost.cli.transactions:find_late",
        examples=("fencepost transactions late",),
    ),
    "transactions abort": Command(
        """Abort a hanging transaction in one partition.

        It writes an ABORT marker to the partition without asking the coordinator.
        """,
        place="fencepost.cli.transactions:abort_transaction",
        examples=("fencepost transactions abort -t orders -p 0 --start-offset 42",),
    ),
    "transactions force-terminate": Command(
        "Fence the producer of a transactional id and abort its open transaction.",
        place="fencepost.cli.transactions:force_terminate_transaction",
        examples=("fencepost transactions force-terminate till-1",),
        alias="forceTerminateTransaction",
    ),
    "dump": Command(
        """Describe the contents of a log file or data directory.

        It shows batches, markers, transactions, committed offsets, indexes and snapshots. The broker may be
        running or stopped.
        """,
        place="fencepost.cli.dump:dump",
        examples=("fencepost dump ./data", "fencepost dump ./data/orders-0 --records"),
    ),
    "check": Command(
        """Check every file of a data directory. The broker must be stopped.

        The check verifies the batches and sequences of each log, and compares indexes, snapshots and
        manifests with the log, and the transaction log with the markers. A problem is a broken guarantee
        (exit code 1). A note is a leftover that the next start repairs, or a change that an administrator
        made.
        """,
        place="fencepost.cli.check:check",
        examples=("fencepost check ./data",),
    ),
    "audit": Command(
        """Look for broken guarantees in the logs, with Spark. The broker may be running or stopped.

        The audit finds duplicates and gaps in sequences, records written with fenced epochs, markers that
        contradict the coordinator or each other, transactions that hang or are overdue, a last stable offset
        that does not move, and damage. With --acks it also finds acknowledged records that are missing; with
        --input, --output and --by it compares the input topic of an application with its output topic. The
        exit code is 1 if it finds a problem. It needs PySpark and Java: pip install 'fencepost[spark,java]'
        adds them.
        """,
        place="fencepost.cli.audit:audit",
        examples=(
            "fencepost audit ./data",
            "fencepost audit ./data --acks acks.jsonl",
            "fencepost audit ./data --input orders --output totals --by key",
        ),
    ),
    "export": Command(
        """Copy each committed record to Parquet files exactly once, with Spark. The broker may be running.

        Each export adds a directory with the records committed since the last one; manifest.json, next to the
        directories, lists the offsets. If an export is killed, the next one repeats it. It needs PySpark
        and Java: pip install 'fencepost[spark,java]' adds them.
        """,
        place="fencepost.cli.export:export",
        examples=("fencepost export ./data ./lake --to parquet --topic orders",),
    ),
    "repair": Command(
        """List the damage in a data directory; repair it with --write. The broker must be stopped.

        A repair keeps every intact batch at its offset, aborts transactions whose outcome is lost, sets the
        damaged originals aside, and writes a report to the directory. Without --write nothing is changed,
        and the exit code is 1 if there is damage.
        """,
        place="fencepost.cli.repair:repair",
        examples=("fencepost repair ./data", "fencepost repair ./data --write"),
    ),
    "fuzz": Command(
        """Run random simulated clusters until one violates a rule.

        Each seed determines its own nodes, clients and faults; the real broker and real clients run in
        virtual time. If a rule is violated, the exit code is 1, and the output says how to replay and how to
        shrink that seed. Known anomalies of Apache Kafka are counted by name and are not violations. In
        transaction versions 0 and 1, a run also ends at the first anomaly of that version; the search
        continues with the next seed.
        """,
        place="fencepost.cli.fuzz:fuzz",
        examples=(
            "fencepost fuzz --seeds 500",
            "fencepost fuzz --first-seed 33 --seeds 1 --break fencing",
            "fencepost fuzz --for 10m --shrink --output found --junit report.xml",
        ),
    ),
    "shrink": Command(
        """Reduce a failing run to a small scenario.

        Ctrl-C ends the search and writes the smallest scenario found so far.
        """,
        place="fencepost.cli.shrink:shrink",
        examples=("fencepost shrink --seed 33 --break fencing",),
    ),
    "run": Command(
        """Run scenarios: scripted clients, nodes and faults.

        A scenario is a TOML file with the participants, the faults and the expected outcome. The exit code
        is 1 if a scenario does not meet its expectations, or if --for ends the command before
        every scenario has run.
        """,
        place="fencepost.cli.run:run",
        examples=(
            "fencepost run --list",
            "fencepost run late_end_txn --variant 1 --text",
            "fencepost run late_end_txn --slide --svg late.svg",
            "fencepost run late_end_txn --variant 1 --html late.html --beside transaction_version=2",
            "fencepost run late_end_txn --step",
            "fencepost run my-scenarios --output failed --junit report.xml",
        ),
    ),
    "explore": Command(
        """Check every reachable state of a small cluster.

        The cluster consists of the real broker and real producers. Each producer runs its transactions one
        after the other. A transaction writes one record to every partition, and then commits or aborts; the
        search explores both. The exit code is 1 if a violation is found or if the search ends before it has
        checked all states.
        """,
        place="fencepost.cli.explore:explore",
        examples=(
            "fencepost explore",
            "fencepost explore --transaction-version 0 --text",
            "fencepost explore --transaction-version 0 --output found",
        ),
    ),
    "lab": Command(
        """Serve a web page for watching runs, stepping through them and adding faults to them.

        The page has the bundled scenarios with their lessons, and an editor for others. A click on a message,
        a node or a client adds a fault, and the scenario runs again.
        The server listens on the loopback interface only. The command needs Starlette and Hypercorn:
        pip install 'fencepost[lab]' adds them.
        """,
        place="fencepost.cli.lab:lab",
        examples=("fencepost lab", "fencepost lab --port 0 --no-browser"),
    ),
    "help": Command(
        """Print a page of the documentation, or list the pages.

        The pages are part of the package, so they describe this version.
        """,
        place="fencepost.cli.help:print_page",
        examples=("fencepost help", "fencepost help operations"),
    ),
    "demo": Command(
        "Run a transactional pipeline on real data, kill it repeatedly, and check the result.",
        place="fencepost.cli.demo:demo",
        examples=("fencepost demo --flights 20000", "fencepost demo --break fencing"),
    ),
    "--install-completion": Command(
        """Install shell completion of commands and options.

        The Tab key then completes them in new shells. The command writes to the startup file of bash or zsh.
        """,
        place="fencepost.cli.completion:install_completion",
        examples=("fencepost --install-completion",),
    ),
}
"""By their words."""
