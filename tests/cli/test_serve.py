"""`fencepost serve --override`: the settings of a broker by their names in Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from fencepost import Broker
from fencepost.broker import lifecycle
from fencepost.broker.access.files import format_users, parse_acls
from fencepost.broker.access.session import AccessSettings
from fencepost.broker.broker_configs import CONNECTION_CONFIGS, NODE_CONFIGS, READ_ONLY_CONFIGS
from fencepost.broker.broker_settings import BrokerSettings
from fencepost.broker.embedded import users_of
from fencepost.broker.settings import ConnectionSettings, NodeSettings
from fencepost.cli.application import run
from fencepost.journal.data_directory import DataDirectory
from fencepost.journal.disk import DiskStorage
from tests.cli.tool import Output


def served(monkeypatch: pytest.MonkeyPatch, *overrides: str, options: Sequence[str] = ()) -> BrokerSettings:
    """The settings that `serve` starts a broker with; none is started."""
    taken: list[BrokerSettings] = []

    async def take(settings: BrokerSettings, **_: Any) -> None:
        taken.append(settings)

    monkeypatch.setattr(lifecycle, "serve_until_signalled", take)
    given = [word for each in overrides for word in ("--override", each)]
    assert run(["serve", "--memory", *given, *options]) == 0
    return taken[0]


def test_settings_of_the_node_and_of_its_connections_are_overridden(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = served(
        monkeypatch,
        "group.initial.rebalance.delay.ms=0",
        "auto.create.topics.enable=False",
        "log.cleaner.min.cleanable.ratio=0.1",
        "log.retention.ms=-1",
        "log.cleanup.policy=compact, delete",
        "max.connections=7",
    )
    assert settings.node == NodeSettings(
        group_initial_rebalance_delay_ms=0,
        auto_create_topics_enable=False,
        log_cleaner_min_cleanable_ratio=0.1,
        log_retention_ms=-1,
        log_cleanup_policy=("compact", "delete"),
    )
    assert settings.connections == ConnectionSettings(max_connections=7)


@pytest.mark.parametrize(
    "config",
    [each for each in NODE_CONFIGS.values() if each.name not in READ_ONLY_CONFIGS],
    ids=lambda config: config.name,
)
def test_each_setting_of_a_node_has_a_field_and_reads_its_default(config: Any) -> None:
    default = getattr(NodeSettings(), config.field)
    text = ",".join(cast("tuple[str, ...]", default)) if isinstance(default, tuple) else str(default).lower()
    assert config.parse(text) == default


@pytest.mark.parametrize("config", CONNECTION_CONFIGS.values(), ids=lambda config: config.name)
def test_each_setting_of_connections_has_a_field(config: Any) -> None:
    value = config.parse(str(config.lowest))
    assert getattr(ConnectionSettings(**{config.field: value}), config.field) == config.lowest
    with pytest.raises(ValueError, match="it must be an integer from"):
        config.parse(str(config.lowest - 1))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["num.partitions"], "--override num.partitions is not name=value"),
        (["num.partitions=1", "num.partitions=2"], "--override sets num.partitions twice"),
        (["num.partitions=many"], "num.partitions=many: it must be an integer from 1 to 10000"),
        (["auto.create.topics.enable=no"], "auto.create.topics.enable=no: it must be true or false"),
        (["log.cleaner.min.cleanable.ratio=2"], "it must be a number from 0 to 1"),
        (["group.initial.rebalance.delay=0"], 'did you mean "group.initial.rebalance.delay.ms"?'),
        (["min.insync.replicas=2"], "a broker has no setting min.insync.replicas"),
        (
            ["group.min.session.timeout.ms=1800001"],
            "group.min.session.timeout.ms=1800001 is too long for group.max.session.timeout.ms=1800000",
        ),
        (
            ["group.consumer.session.timeout.ms=5000"],
            "group.consumer.heartbeat.interval.ms=5000 is too long for",
        ),
        (["listeners=PLAINTEXT://:9092"], "give --host and --port"),
    ],
)
def test_what_cannot_be_set_is_refused_in_words(overrides: list[str], words: str, capsys: Output) -> None:
    options = [word for each in overrides for word in ("--override", each)]
    assert run(["serve", "--memory", *options]) == 2
    assert words in capsys.readouterr().err


@pytest.fixture(scope="module")
def pem_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with certificates and keys of two brokers, and files that are none."""
    place = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    for name in ("alice", "bob"):
        issued = authority.issue_cert(name)
        issued.cert_chain_pems[0].write_to_path(str(place / f"{name}.pem"))
        issued.private_key_pem.write_to_path(str(place / f"{name}.key"))
    key = serialization.load_pem_private_key((place / "alice.key").read_bytes(), password=None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (place / "encrypted.key").write_bytes(encrypted)
    text = (place / "alice.pem").read_text() + (place / "alice.key").read_text()
    (place / "damaged.pem").write_text(text.replace("-----\nM", "-----\n?"))
    (place / "notes.txt").write_text("no certificate")
    (place / "empty.pem").touch()
    (place / "directory").mkdir()
    return place


@pytest.fixture
def tls_files(pem_files: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, as the working directory."""
    monkeypatch.chdir(pem_files)
    return pem_files


TLS = {"--tls-cert": "alice.pem", "--tls-key": "alice.key", "--tls-client-ca": "alice.pem"}


@pytest.mark.parametrize("option", TLS)
@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("nowhere", "cannot read {option} nowhere: No such file or directory\n  check its path\n"),
        ("alice.p", "cannot read {option} alice.p: No such file or directory\n  did you mean alice.pem"),
        ("directory", "cannot read {option} directory: Is a directory\n  check its path\n"),
        ("a" * 300, "cannot read {option} " + "a" * 300 + ": File name too long\n  check its path\n"),
        ("notes.txt", "{option} notes.txt holds no "),
        ("empty.pem", "{option} empty.pem holds no "),
        ("damaged.pem", "{option} damaged.pem"),
    ],
)
def test_a_file_that_is_not_for_tls_is_named_with_its_option(
    option: str, file: str, words: str, tls_files: Path, capsys: Output
) -> None:
    given = [word for pair in (TLS | {option: file}).items() for word in pair]
    assert run(["serve", "--memory", "--port", "0", *given]) == 2
    assert words.format(option=option) in capsys.readouterr().err


def test_the_next_step_is_about_the_file_that_the_error_names(tls_files: Path, capsys: Output) -> None:
    assert run(["serve", "--memory", "--port", "0", "--tls-cert", "notes.txt", "--tls-key", "alice.ke"]) == 2
    assert capsys.readouterr().err == (
        "fencepost: --tls-cert notes.txt holds no certificate\n  give a file in PEM format\n"
    )


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (
            "bob.key",
            (
                "the private key in --tls-key bob.key does not belong to the certificate in "
                "--tls-cert alice.pem\n  give the key with which it was made\n"
            ),
        ),
        (
            "encrypted.key",
            "the private key in --tls-key encrypted.key is encrypted\n  give a key without a password\n",
        ),
        (
            "alice.pem",
            (
                "--tls-key alice.pem holds no private key, but a certificate\n"
                "  check that certificate and key are not swapped\n"
            ),
        ),
    ],
)
def test_a_key_that_does_not_fit(key: str, words: str, tls_files: Path, capsys: Output) -> None:
    assert run(["serve", "--memory", "--port", "0", "--tls-cert", "alice.pem", "--tls-key", key]) == 2
    assert capsys.readouterr().err == f"fencepost: {words}"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ('ssl_cafile = "nowhere"', "cannot read ssl_cafile nowhere: No such file or directory; check"),
        ('ssl_cafile = "notes.txt"', "ssl_cafile notes.txt holds no certificate; give a file in PEM format"),
        ('ssl_certfile = "directory"', "cannot read ssl_certfile directory: Is a directory; check its path"),
        (
            'ssl_certfile = "alice.pem"\nssl_keyfile = "bob.key"',
            "the private key in ssl_keyfile bob.key does not belong to the certificate in ssl_certfile alice",
        ),
    ],
)
def test_a_file_of_a_client_is_named_with_its_setting(
    settings: str, words: str, tls_files: Path, capsys: Output
) -> None:
    Path("client.toml").write_text(f'security_protocol = "SSL"\n{settings}')
    assert run(["topic", "list", "--command-config", "client.toml"]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.endswith("\n  correct client.toml; `fencepost help access` shows the settings\n")


@pytest.mark.parametrize("option", ["--users", "--acls"])
def test_a_file_of_users_or_rights_is_wrong_usage(option: str, tls_files: Path, capsys: Output) -> None:
    for file, words in {
        "notes.txt": f"{option} notes.txt: not TOML",
        "directory": f"cannot read {option} directory: Is a directory",
        "nowhere": f"cannot read {option} nowhere: No such file or directory",
    }.items():
        assert run(["serve", "--memory", "--port", "0", option, file]) == 2
        assert capsys.readouterr().err.startswith(f"fencepost: {words}")


USERS = "alice", "bob"


@pytest.mark.parametrize(
    ("acls", "has_users", "told"),
    [
        ('super_users = ["User:alice"]\n[[acl]]\nprincipal = ["User:*", "User:bob"]', True, []),
        (
            'super_users = ["User:alcie"]',
            True,
            ['names User:alcie, a user that --users {users} does not have; did you mean "alice"?'],
        ),
        (
            '[[acl]]\nprincipal = ["User:carol", "User:ANONYMOUS"]',
            True,
            [
                "names User:ANONYMOUS, a user that --users {users} does not have",
                "names User:carol, a user that --users {users} does not have",
            ],
        ),
        ('[[acl]]\nprincipal = ["User:ANONYMOUS", "User:*"]', False, []),
        ('super_users = ["User:alice"]', False, ["names User:alice, but every client is User:ANONYMOUS"]),
        (
            f"super_users = {[f'User:{number}' for number in range(9)]}",
            False,
            [f"names User:{number}, but every client is User:ANONYMOUS" for number in range(5)]
            + ["names 4 more such users"],
        ),
    ],
)
def test_a_principal_that_no_client_can_have_is_named(
    acls: str,
    told: list[str],
    tmp_path: Path,
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
    *,
    has_users: bool,
) -> None:
    """It is no error, because the user may be added later."""
    users, rights = tmp_path / "users.toml", tmp_path / "rights.toml"
    users.write_text(format_users(users_of(dict.fromkeys(USERS, "secret"))))
    rights.write_text(acls + '\ntopic = "*"\nallow = "Read"' * ("[[acl]]" in acls))
    served(monkeypatch, options=["--acls", str(rights), *(["--users", str(users)] if has_users else [])])
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("  ")]
    assert lines == [f"fencepost: --acls {rights} {each.format(users=users)}" for each in told]


def test_a_certificate_may_have_any_name() -> None:
    acls = parse_acls('super_users = ["User:CN=alice"]', "rights.toml")
    access = AccessSettings(tls_cert="a.pem", tls_key="a.key", tls_client_ca="ca.pem", acls=acls)
    assert access.unknown_principals == []
    users = users_of({"alice": "secret"})
    assert attrs.evolve(access, users=users).unknown_principals == ["User:CN=alice"]  # the login names users


def test_a_file_is_refused_as_the_place_of_the_data(tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    assert run(["serve", str(file)]) == 2
    assert capsys.readouterr().err == (
        f"fencepost: {file} is a file, and serve keeps its data in a directory\n"
        "  give the path of a directory; serve creates it if it does not exist\n"
    )


@pytest.mark.parametrize("command", [["serve"], ["demo", "--flights", "200", "--directory"]])
@pytest.mark.parametrize("is_link", [True, False])
def test_no_data_directory_begins_inside_another_one(
    command: list[str], tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, *, is_link: bool
) -> None:
    """`serve data/orders-9`: a path that another command would read."""
    DataDirectory.open(DiskStorage(tmp_path / "data")).close()
    if is_link:
        (tmp_path / "disk").mkdir()
        (tmp_path / "data" / "orders-9").symlink_to(tmp_path / "disk")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    then = "did you mean data?" if command == ["serve"] else "give a new or empty directory with --directory"
    assert run([*command, "data/orders-9"]) == 2
    assert capsys.readouterr().err == (
        f"fencepost: data/orders-9 lies in the data directory {tmp_path}/data, "
        f"which cannot hold another one\n  {then}\n"
    )
    assert sorted(tmp_path.rglob("*")) == before


def test_the_wrong_directory_is_named_even_if_its_broker_has_the_port(tmp_path: Path, capsys: Output) -> None:
    """Another port would not help."""
    with Broker(str(tmp_path / "data")) as broker:
        port = broker.address.rpartition(":")[2]
        assert run(["serve", str(tmp_path / "data" / "orders-9"), "--port", port]) == 2
    assert "which cannot hold another one" in capsys.readouterr().err
