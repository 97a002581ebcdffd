"""Who may give work to a scheduler: a sweep's own trusts nobody else, another's network is said to be trusted."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from onnxfold import api
from onnxfold.errors import ConfigError
from onnxfold.sweeps.cluster import connect_in_time, existing_cluster, local_cluster
from onnxfold.sweeps.job import Goal, SweepRequest
from onnxfold.sweeps.results import SweepFolder
from onnxfold.sweeps.run import Place, run_sweep

MODEL = Path(api.__file__).parent / "data" / "lenet5.onnx"


def _mark(path: str) -> None:
    Path(path).touch()


def _run_code(address: str, marker: Path, **how: Any) -> None:
    with connect_in_time(address, **how) as client:
        client.run_on_scheduler(_mark, str(marker))


def test_a_client_that_cannot_connect_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """dask closes it when it is collected: within the start of the next one, that waits for ever."""
    from distributed import Client

    monkeypatch.setattr("onnxfold.sweeps.cluster._CONNECT_SECONDS", 1)
    before = {id(client) for client in gc.get_objects() if isinstance(client, Client)}
    gc.disable()
    try:
        with pytest.raises(ConfigError, match="no scheduler answers"), existing_cluster("nonsense"):
            pass
        clients = [client for client in gc.get_objects() if isinstance(client, Client) and id(client) not in before]
    finally:
        gc.enable()
    assert {client.status for client in clients} == {"closed"}


def test_strangers_run_nothing_on_a_local_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has no keys, or keys of his own, is not heard; whoever has those of the run is."""
    from distributed.security import Security

    marker = tmp_path / "ran"
    monkeypatch.setattr("onnxfold.sweeps.cluster._CONNECT_SECONDS", 1)
    with local_cluster(0, memory=1 << 30) as client:
        host = client.scheduler.address.partition("://")[2]
        for address, how in (
            (f"tcp://{host}", {}),
            (f"tls://{host}", {}),
            (f"tls://{host}", {"security": Security.temporary()}),
        ):
            with pytest.raises((OSError, TypeError, ValueError)):
                _run_code(address, marker, **how)
        assert not marker.exists()
        _run_code(f"tls://{host}", marker, security=client.security)
        assert marker.exists()


def test_certificates_are_those_of_dasks_configuration(tmp_path: Path) -> None:
    """`tls://` works with the files that dask is told, and says so where there are none."""
    import dask
    from distributed import LocalCluster
    from distributed.security import Security

    keys = Security.temporary()
    files = {}
    for name, text in (("ca-file", keys.tls_ca_file), ("cert", keys.tls_client_cert), ("key", keys.tls_client_key)):
        files[name] = tmp_path / name
        files[name].write_text(text)
    settings = {
        "distributed.comm.tls.ca-file": str(files["ca-file"]),
        "distributed.comm.tls.client.cert": str(files["cert"]),
        "distributed.comm.tls.client.key": str(files["key"]),
    }
    with LocalCluster(n_workers=0, security=keys, dashboard_address=None) as cluster:
        with dask.config.set(settings), existing_cluster(cluster.scheduler_address) as client:
            assert client.scheduler.address.startswith("tls://")
        with pytest.raises(ConfigError, match=r"distributed\.comm\.tls"), existing_cluster(cluster.scheduler_address):
            pass


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_network_that_is_trusted_is_named_once(
    encrypted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed import Client, LocalCluster

    from onnxfold.sweeps import run as run_module

    said: list[str] = []
    monkeypatch.setattr(run_module, "run_jobs", lambda *_: None)
    request = SweepRequest((MODEL,), (Goal("sparsity", 0.5),))
    own = LocalCluster(n_workers=0, security=encrypted or None, dashboard_address=None)
    with own as cluster, Client(cluster) as client:
        monkeypatch.setattr("onnxfold.sweeps.cluster.existing_cluster", lambda _: Client(cluster))
        place = Place(scheduler=client.scheduler.address)
        run_sweep(request, SweepFolder(tmp_path / "out"), place, lambda text, *_: said.append(text))
    told = [text for text in said if "trusts its network" in text]
    assert len(told) == (0 if encrypted else 1)
