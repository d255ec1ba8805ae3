"""The blocking clients are made from the async ones, and the file is as fresh as its source."""

from __future__ import annotations

from tools.unasync import SOURCE, TARGET, blocking


def test_the_blocking_clients_are_fresh() -> None:
    assert TARGET.read_text() == blocking(SOURCE.read_text()), "run `python -m tools.unasync`"


def test_words_that_wait_are_left_out() -> None:
    source = '"""The async one."""\nasync def f(client: AsyncClient) -> None:\n    await client.close()\n'
    assert blocking('"""The async one.\n"""\n' + source.partition("\n")[2]).endswith(
        "def f(client: Client) -> None:\n    client.close()\n"
    )
