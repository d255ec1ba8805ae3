"""Plays a conversation on a stage: every question is asked, every answer is told as Kafka's was recorded.

Rule: what cannot be asked or is not answered is an answer of its own, that differs from Kafka's; a
conversation is always played to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs

from fencepost.broker.contract import Reply
from fencepost.protocol.messages import InitProducerId, InitProducerIdReply, Request
from fencepost.protocol.terms import TopicPartition
from tests.oracle.conversation import Control, Conversation, Fields, Question
from tests.oracle.phrasing import Asking, Telling, Told, partition_of
from tests.oracle.speech import NOT_SERVED, SPEECH
from tests.oracle.stage import NoAnswer, Stage
from tests.oracle.symbols import NeverBound, Symbols

# The recorder waited for the end of whatever these may have ended, or begun to end.
ENDING: Final = frozenset(
    {"InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "Produce", "TxnOffsetCommit", "EndTxn"}
)
SETTLING_MS: Final = 2_000  # the recorder's patience after a request
EPOCHS_ASKED: Final = 3  # at each end, where thousands would say no more
RECOVERY_MS: Final = 30_000  # and after a restart, or the end of a hold


@attrs.frozen(kw_only=True)
class Answer:
    """One recorded answer beside ours."""

    conversation: Conversation
    question: Question
    ours: Told

    @property
    def agrees(self) -> bool:
        return self.ours == self.question.reply


def play(conversation: Conversation, stage: Stage) -> list[Answer]:
    """Our answers to all that Kafka answered, in order."""
    player = _Player(stage)
    answers: list[Answer] = []
    for step in conversation.steps:
        question = player.question(step)
        if question is not None:
            ours = player.answer(question)
            answers.append(Answer(conversation=conversation, question=question, ours=ours))
    return answers


@attrs.define(eq=False)
class _Player:
    """One play: its symbols, and what went wrong for good."""

    stage: Stage
    symbols: Symbols = attrs.Factory(Symbols)
    listed: dict[str, list[Any]] = attrs.Factory(dict[str, list[Any]])
    settling_ms: int = SETTLING_MS
    waiting: dict[str, tuple[Question, int]] = attrs.Factory(dict[str, tuple[Question, int]])
    """What was asked and is answered later, by its name, with its number on the stage."""
    broken: str | None = None
    """Why the rest of the conversation cannot be played."""

    def question(self, step: Question | Control) -> Question | None:
        """The question whose answer is due in this step, if any."""
        if isinstance(step, Control):
            if step.control == "answer":
                return self.waiting[step.args["of"]][0]
            self.control(step)
            return None
        if step.later is None:
            return step
        self.waiting[step.later] = step, self._begin(step)
        return None

    # --- questions

    def answer(self, question: Question) -> Told:
        if self.broken is not None:
            return {"not asked": self.broken}
        if question.request in NOT_SERVED:
            return {"not asked": f"Fencepost does not serve {question.request}"}
        try:
            reply = self._ask(question)
        except NeverBound as problem:
            return {"not asked": str(problem)}
        except NoAnswer as problem:
            self.broken = f"no answer in step {question.number}: {problem}"
            return {"not answered": str(problem)}
        if reply is None:
            return None
        telling = Telling(question=question, symbols=self.symbols, listed=self.listed)
        told = SPEECH[question.request].tell(reply, telling)
        if question.request in ENDING:
            self._settle(self.settling_ms)
        return told

    def _ask(self, question: Question) -> Reply | None:
        if question.later is not None:
            return self.stage.finish(self.waiting.pop(question.later)[1])
        request = self._request(question)
        return self.stage.ask(request, version=question.version, about=_partition(question.args))

    def _begin(self, question: Question) -> int:
        request = self._request(question)
        return self.stage.begin(request, version=question.version, about=_partition(question.args))

    def _request(self, question: Question) -> Request:
        asking = Asking(question, self.symbols, self.stage.now_ms, self.stage.is_kafka)
        return SPEECH[question.request].ask(asking)

    def _settle(self, patience_ms: int) -> None:
        if not self.stage.is_settled:
            self.stage.let_pass(patience_ms, until_settled=True)

    # --- controls

    def control(self, control: Control) -> None:
        """A control that fails is told by every answer after it."""
        if self.broken is not None:
            return
        try:
            _CONTROLS[control.control](self, control.args)
        except (NoAnswer, NeverBound) as problem:
            self.broken = f"{control.control!r} failed in step {control.number}: {problem}"

    def create_topic(self, args: Fields) -> None:
        held = args.get("held", False)
        topic_id = self.stage.create_topic(args["topic"], args["partitions"], held=held)
        self.symbols.bind_topic(args["topic"], topic_id)

    def settle(self, _args: Fields) -> None:
        self._settle(self.settling_ms)

    def may_be_stuck(self, args: Fields) -> None:
        self.settling_ms = args["wait_ms"]

    def hold(self, _args: Fields) -> None:
        self.stage.hold()

    def release(self, _args: Fields) -> None:
        self.stage.release()
        self._settle(RECOVERY_MS)

    def wait(self, args: Fields) -> None:
        self.stage.let_pass(args["ms"])

    def kill_and_restart(self, _args: Fields) -> None:
        self.stage.kill_and_restart()
        self._settle(RECOVERY_MS)

    def raise_epoch(self, args: Fields) -> None:
        """InitProducerId with the producer's own epoch, again and again; of thousands, only both ends."""
        first, last = args["from"], args["to"]
        if last - first <= 2 * EPOCHS_ASKED:
            self._ask_for_epochs(args, range(first, last))
            return
        self._ask_for_epochs(args, range(first, first + EPOCHS_ASKED))
        self.stage.skip_to_epoch(args["transactional_id"], last - EPOCHS_ASKED)
        self._ask_for_epochs(args, range(last - EPOCHS_ASKED, last))

    def _ask_for_epochs(self, args: Fields, owned: range) -> None:
        producer_id = self.symbols.producer_id(args["producer"])
        for epoch in owned:
            request = InitProducerId(
                transactional_id=args["transactional_id"],
                transaction_timeout_ms=60_000,
                producer_id=producer_id,
                producer_epoch=epoch,
            )
            reply = self.stage.ask(request, version=5)
            body = None if reply is None else reply.body
            if not isinstance(body, InitProducerIdReply) or body.producer_epoch != epoch + 1:
                raise NoAnswer(f"epoch {epoch} is not raised by one: {reply}")


_CONTROLS: Final[dict[str, Callable[[_Player, Fields], None]]] = {
    "create topic": _Player.create_topic,
    "settle": _Player.settle,
    "hold": _Player.hold,
    "release": _Player.release,
    "wait": _Player.wait,
    "kill and restart": _Player.kill_and_restart,
    "may be stuck": _Player.may_be_stuck,
    "raise epoch": _Player.raise_epoch,
}


def _partition(args: Fields) -> TopicPartition | None:
    """The partition whose leader is asked; requests about several go to the leader of the first."""
    if "partition" in args:
        return partition_of(args["partition"])
    if "parts" in args:
        return partition_of(next(iter(args["parts"])))
    marker = args["markers"][0] if "markers" in args else args
    if "coordinator_epoch" in marker:
        return partition_of(marker["partitions"][0])
    return None
