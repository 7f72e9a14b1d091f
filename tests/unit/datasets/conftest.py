"""Fixtures of the tests of data sets."""

import pytest
from support.data_files import MNIST, MNIST_GZIP, MNIST_SHA256, write_files
from support.mirror import Mirror

from hvdtrain.datasets import downloads
from hvdtrain.datasets.built_in import PUBLISHED, Published


@pytest.fixture(autouse=True)
def no_data_of_the_user(monkeypatch, tmp_path):
    """No data but what the test provides, an empty cache, and no pauses."""
    for name in ("HVDTRAIN_DATA", "HVDTRAIN_MIRROR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(downloads, "PAUSE_S", 0.0)


@pytest.fixture
def cached(tmp_path):
    """The folder of `mnist` in the cache; it does not exist yet."""
    return tmp_path / "cache" / "hvdtrain" / "mnist"


@pytest.fixture
def mnist(monkeypatch, tmp_path):
    """$HVDTRAIN_DATA/mnist with the files of `tiny_mnist`, which take the place of the published ones."""
    monkeypatch.setitem(PUBLISHED, "mnist", PUBLISHED["mnist"]._replace(mirrors=(), sha256=MNIST_SHA256))
    monkeypatch.setenv("HVDTRAIN_DATA", str(tmp_path / "data"))
    return write_files(tmp_path / "data" / "mnist", MNIST)


@pytest.fixture
def cifar_folder(monkeypatch, tmp_path):
    """$HVDTRAIN_DATA/cifar10, empty, for files of two records."""
    monkeypatch.setenv("HVDTRAIN_DATA", str(tmp_path / "data"))
    (tmp_path / "data" / "cifar10").mkdir(parents=True)
    return tmp_path / "data" / "cifar10"


@pytest.fixture
def mirrors(monkeypatch):
    """The two mirrors of `mnist`; both have the files of `tiny_mnist`."""
    both = Mirror(), Mirror()
    for mirror in both:
        mirror.server.daemon_threads, mirror.server.block_on_close = True, False
        mirror.files = dict(MNIST_GZIP)
    urls = (both[0].url, both[1].url)
    monkeypatch.setitem(PUBLISHED, "mnist", Published(urls, tuple("0123456789"), MNIST_SHA256))
    yield both
    for mirror in both:
        mirror.close()
