"""Compaction and the deletion of old segments in a server: its threads, beside requests and syncs."""

from __future__ import annotations

import attrs
import pytest
import trio

from fencepost.broker.broker_settings import BrokerSettings
from fencepost.broker.sync_policy import SyncPolicy
from fencepost.journal.journal import JournalSettings
from fencepost.protocol import messages as m
from fencepost.protocol.errors import ErrorCode
from tests.broker.requests import COMMIT, ORDERS, body_of, end_request, identity_of, offset_request
from tests.broker.story import SETTINGS, transaction_log_of
from tests.broker.wire import PATIENCE_S, serving

pytestmark = pytest.mark.trio


# Each transaction adds about 600 bytes to the logs of both coordinators.
NODE = attrs.evolve(SETTINGS, coordinator_logs_dirty_bytes_max=2_000)


@pytest.mark.parametrize("sync", [SyncPolicy.NONE, SyncPolicy.COMMIT])
async def test_logs_are_compacted_while_transactions_go_on(sync: SyncPolicy) -> None:
    settings = BrokerSettings(sync=sync, journal=JournalSettings(segment_bytes=2_000))
    async with serving(settings, node=NODE) as (server, wires):
        wire = await wires.open()
        await wire.prepare()
        me = await wire.identity()
        journal = server.host.directory.journal(transaction_log_of("pay"))
        wanted = m.OffsetFetch(group_id="readers", require_stable=True, partitions=(ORDERS,))

        async def one_transaction(number: int) -> None:
            nonlocal me
            request = offset_request(me, "readers", {ORDERS: number})
            error = ErrorCode.CONCURRENT_TRANSACTIONS  # until the transaction before it is complete
            while error is ErrorCode.CONCURRENT_TRANSACTIONS:
                answer = body_of(await wire.ask(request), m.TxnOffsetCommitReply)
                error = answer.partitions[0].error
            assert error is ErrorCode.NONE
            me = identity_of(await wire.ask_until_done(end_request(me, COMMIT)))

        with trio.fail_after(PATIENCE_S):
            for number in range(60):
                await one_transaction(number)
            # A compaction leaves the segments that become full meanwhile to the next one, which is due after
            # 2,000 more bytes. If no compaction is under way then, it takes all of them.
            for number in range(60, 70):
                while server.host.upkeep.is_needed:
                    await wire.ask(wanted)  # the server has turns meanwhile
                await one_transaction(number)
        assert len(journal.segments.full) <= 4
        assert any(header.is_covering for header, _ in journal.segments.batches(0))
        (found,) = body_of(await wire.ask_until_done(wanted), m.OffsetFetchReply).offsets
        assert found.offset == 69
        assert server.host.troubles == []
