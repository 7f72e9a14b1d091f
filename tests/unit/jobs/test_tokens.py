"""The token that ranks on one host make, and the one that ranks on a network need."""

from __future__ import annotations

import os

import pytest

from hvdtrain.collectives.ring import start
from hvdtrain.errors import UserError
from hvdtrain.system import credentials, rank_info

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
    with pytest.raises(UserError, match="users other than its owner can access it; chmod 600"):
        start()
    file.chmod(0o600)
    assert rank_info.token() == "a secret"
    file.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        start()


def test_ranks_on_one_host_make_their_token(monkeypatch, tmp_path):
    """Started by torchrun or by bare variables: from a key that other users of the host cannot read."""
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
    with pytest.raises(UserError, match=r"other than its owner can access it|is damaged") as caught:
        credentials.token_of_one_host(TWO, HERE)
    assert "HVDTRAIN_TOKEN_FILE" in caught.value.remedy
