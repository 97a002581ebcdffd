"""Measuring over ssh: a real sshd on the loopback interface, with keys of its own."""

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from onnxfold.budget.devices import load_device
from onnxfold.edge_bench.runners.linux import SshRunner
from onnxfold.errors import ConfigError
from tests.edge_bench.jobs import small_job

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
needs_sshd = pytest.mark.skipif(
    SSHD is None or shutil.which("ssh") is None, reason="no sshd: apt install openssh-server openssh-client"
)

#: How a stand-in for python3 goes on: with the paths of the tests' own Python, which may be a script itself.
PYTHON = f'PATH="{os.environ.get("PATH", "")}" exec "{sys.executable}"'
JETSON = load_device("jetson-nano")
Connect = Callable[[str], SshRunner]


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connect]:
    """Start sshd on first use; the function gives a runner whose board has the given python3 (a shell script)."""
    folder = tmp_path_factory.mktemp("sshd")
    running = []
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "authorized").write_text((folder / "user.pub").read_text())

    def connect(python3: str) -> SshRunner:
        port = _free_port()
        programs = folder / f"bin-{port}"
        programs.mkdir()
        for program in ("sh", "env", "sleep", "echo"):
            (programs / program).symlink_to(shutil.which(program) or f"/bin/{program}")
        if python3:
            (programs / "python3").write_text(f"#!/bin/sh\n{python3}\n")
            (programs / "python3").chmod(0o755)
        config = folder / f"config-{port}"
        config.write_text(
            f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder / 'host'}\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {folder / 'authorized'}\nStrictModes no\nPasswordAuthentication no\n"
            f"SetEnv PATH={programs} HOME={programs}\n"  # and not what the shell's own start-up files make of it
        )
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # privilege separation of an sshd that root starts
        command = [str(SSHD), "-D", "-e", "-f", str(config)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        running.append(process)
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        return SshRunner(
            f"{getpass.getuser()}@127.0.0.1",
            options=(
                "-F", "/dev/null", "-p", str(port), "-i", str(folder / "user"),
                "-o", f"UserKnownHostsFile={folder / 'known'}", "-o", "StrictHostKeyChecking=no",
            ),
        )  # fmt: skip

    yield connect
    for process in running:
        process.terminate()
        process.wait(10)


@needs_sshd
def test_a_board_is_measured_and_left_clean(server: Connect, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    runner = server(f'export TMPDIR="{scratch}"; {PYTHON} "$@"')
    assert runner.missing() == ""
    answered = runner.run(small_job(tmp_path), JETSON)
    found = {row.runtime.partition(" ")[0]: row for row in answered}
    assert "onnxruntime" in found, answered
    for row in found.values():
        assert (row.status, row.device, row.method) == ("ok", "jetson-nano", "measured-device"), row.reason
        assert row.latency_s is not None
        assert row.max_relative_error is not None
        assert row.max_relative_error < 1e-5
        assert row.compared_inputs == 3
        assert row.details["machine"] == os.uname().machine
    assert not list(scratch.glob("onnxfold*"))


@needs_sshd
def test_a_login_that_talks_does_no_harm(server: Connect, tmp_path: Path) -> None:
    runner = server(f'echo "Welcome to the board"; {PYTHON} "$@"')
    assert {row.status for row in runner.run(small_job(tmp_path), JETSON)} == {"ok"}


@needs_sshd
def test_what_a_board_can_lack(server: Connect, tmp_path: Path) -> None:
    job = small_job(tmp_path)
    (row,) = server("").run(job, JETSON)
    assert row.status == "unavailable"
    assert "has no python3" in row.reason
    (row,) = server(f'{PYTHON} -S "$@"').run(job, JETSON)
    assert row.status == "unavailable"
    assert row.reason.startswith("no interpreter found: pip install")
    (row,) = server('echo "Illegal instruction" >&2; exit 132').run(job, JETSON)
    assert row.status == "failed"
    assert "the measuring script failed" in row.reason
    assert "Illegal instruction" in row.reason


@needs_sshd
def test_a_board_that_hangs(server: Connect, tmp_path: Path) -> None:
    runner = replace(server("exec sleep 600"), timeout_s=0.5, connect_s=1)
    start = time.monotonic()
    (row,) = runner.run(small_job(tmp_path), JETSON)
    assert row.status == "failed"
    assert "gave no answer within" in row.reason
    assert time.monotonic() - start < 120


@needs_sshd
def test_a_key_that_is_not_accepted(server: Connect, tmp_path: Path) -> None:
    (row,) = replace(server("exit 0"), host="nobody-here@127.0.0.1").run(small_job(tmp_path), JETSON)
    assert row.status == "unavailable"
    assert "ssh does not reach 'nobody-here@127.0.0.1'" in row.reason
    assert "Permission denied" in row.reason


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh: apt install openssh-client")
def test_a_board_that_is_not_there(tmp_path: Path) -> None:
    runner = SshRunner("somebody@127.0.0.1", options=("-F", "/dev/null", "-p", str(_free_port())))
    (row,) = runner.run(small_job(tmp_path), JETSON)
    assert (row.status, row.device) == ("unavailable", "jetson-nano")
    assert "Connection refused" in row.reason
    assert "\n" not in row.reason


def test_no_options_as_addresses() -> None:
    with pytest.raises(ConfigError, match="is not a name that ssh accepts"):
        SshRunner("-oProxyCommand=touch /tmp/x")
