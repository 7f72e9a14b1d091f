"""Which variables hold credentials, and texts without them; the tokens of ranks on one host and on a network."""

from __future__ import annotations

import os

import pytest

from hvdtrain.collectives.ring import start
from hvdtrain.errors import UserError
from hvdtrain.system import credentials, rank_info

PRIVATE = [
    ("HVDTRAIN_MIRROR", "https://ada:correct-horse@mirror/data"),
    ("https_proxy", "http://ada:p%40ss@proxy:3128"),
    ("HVDTRAIN_MIRROR", "https://ghp_0123456789abcdefghij@mirror"),
    ("HVDTRAIN_MIRROR", "https://mirror/data?X-Amz-Signature=abcdef"),
    ("HVDTRAIN_MIRROR", "https://mirror/data?sv=1&sig=abcdef"),
    ("HVDTRAIN_HEADER", "Authorization: Bearer abcdefgh12345678"),
    ("HVDTRAIN_X", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln"),
    ("HVDTRAIN_X", "AKIAIOSFODNN7EXAMPLE"),
    ("HVDTRAIN_X", "hf_abcdefghijklmnopqrst"),
    ("HVDTRAIN_X", "-----BEGIN OPENSSH PRIVATE KEY-----"),
    ("HVDTRAIN_DSN", "host=db user=ada password=x"),
    ("WANDB_API_KEY", "x"),
    ("MY_PASSPHRASE", ""),
]
PUBLIC = [
    ("PATH", "/opt/venv/bin:/usr/bin"),
    ("PYTHONPATH", "/home/ada/my code"),
    ("HVDTRAIN_MIRROR", "https://mirror:8080/data/v1@2"),
    ("http_proxy", "http://proxy:3128"),
    ("NO_PROXY", "localhost,10.0.0.0/8,.cluster"),
    ("HOROVOD_FUSION_THRESHOLD", "67108864"),
    ("SLURM_JOB_ID", "1234567890"),
    ("LS_COLORS", "rs=0:di=01;34"),
    ("TF_CONFIG", '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'),
]


def test_variables_with_and_without_credentials():
    assert [pair for pair in PRIVATE if not credentials.holds(*pair)] == []
    assert [pair for pair in PUBLIC if credentials.holds(*pair)] == []


def test_texts_without_credentials():
    text = "GET https://ada:p@ss@mirror/x?sig=abc (Caused by http://me:pw@proxy:1), then https://b/c"
    assert credentials.removed(text) == "GET https://mirror/x?... (Caused by http://proxy:1), then https://b/c"


TWO, HERE = rank_info.RankInfo("torchrun", 1, 2, 1), ("127.0.0.1", 9)


def test_ranks_on_a_network_need_a_token(monkeypatch, tmp_path):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "192.0.2.1"), ("MASTER_PORT", "9")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r"set no HVDTRAIN_TOKEN, and 192.0.2.1 is not loopback.*set HVDTRAIN_TOKEN"):
        start()
    file = tmp_path / "token"
    file.write_text("a secret\n")
    file.chmod(0o644)
    monkeypatch.setenv("HVDTRAIN_TOKEN_FILE", str(file))
    with pytest.raises(UserError, match=r"users other than its owner can access it.*chmod 600"):
        start()
    file.chmod(0o600)
    assert rank_info.token() == "a secret"
    file.unlink()
    with pytest.raises(UserError, match="cannot be used"):
        start()


def test_ranks_on_one_host_make_their_token(monkeypatch, tmp_path):
    monkeypatch.setattr(credentials, "KEY_FOLDER", str(tmp_path))
    token = credentials.token_of_one_host(TWO, HERE, {})
    (key,) = tmp_path.glob("hvdtrain-*/*")
    assert [path.stat().st_mode & 0o777 for path in (key.parent, key)] == [0o700, 0o600]
    assert token == credentials.token_of_one_host(TWO, HERE, {})
    assert len(token) == 64 and token not in key.read_text()
    assert token != credentials.token_of_one_host(TWO, ("127.0.0.1", 10), {})
    on_one_host = {"LOCAL_WORLD_SIZE": "2"}, {"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0"}
    assert all(credentials.token_of_one_host(TWO, ("192.0.2.1", 9), variables) for variables in on_one_host)
    on_two_hosts = {"LOCAL_WORLD_SIZE": "1"}, {"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_NODEID": "0"}, {}
    assert not any(credentials.token_of_one_host(TWO, ("192.0.2.1", 9), variables) for variables in on_two_hosts)


@pytest.mark.parametrize("what", ["open folder", "open key", "linked folder", "damaged key"])
def test_a_key_of_another_user_is_not_used(monkeypatch, tmp_path, what):
    monkeypatch.setattr(credentials, "KEY_FOLDER", str(tmp_path))
    folder = tmp_path / f"hvdtrain-{os.geteuid()}"
    credentials.token_of_one_host(TWO, HERE)
    match what:
        case "open folder":
            folder.chmod(0o755)
        case "open key":
            (folder / "key").chmod(0o640)
        case "damaged key":
            (folder / "key").write_text("")
        case _:
            folder.symlink_to(folder.rename(tmp_path / "elsewhere"))
    with pytest.raises(UserError, match=r"other than its owner can access|is damaged") as caught:
        credentials.token_of_one_host(TWO, HERE)
    assert "HVDTRAIN_TOKEN_FILE" in caught.value.remedy
