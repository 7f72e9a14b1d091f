"""Which variables hold credentials, and texts without them."""

from __future__ import annotations

from hvdtrain.system import credentials

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
