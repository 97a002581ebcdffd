"""Device profiles."""

import tomllib
from dataclasses import fields
from importlib.resources import files
from pathlib import Path

import pytest

from onnxfold.budget.devices import DeviceProfile, device_budgets, known_devices, load_device
from onnxfold.budget.objectives import COSTS
from onnxfold.errors import ConfigError

NANO = files("onnxfold.budget").joinpath("devices", "arduino-nano-33-ble.toml").read_text()


def test_known_devices() -> None:
    assert known_devices() == (
        "arduino-nano-33-ble", "esp-eye", "esp32-s3", "jetson-nano", "raspberry-pi-4", "rp2040", "stm32f4", "stm32h7",
    )  # fmt: skip
    assert load_device("arduino-nano-33-ble-sense") == load_device("Arduino-Nano-33-BLE")
    names = [name for device in map(load_device, known_devices()) for name in (device.name, *device.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "clock_hz", "flash", "ram", "psram"),
    [
        ("arduino-nano-33-ble", 64_000_000, 1 << 20, 256 << 10, 0),
        ("esp-eye", 240_000_000, 4 << 20, 520 << 10, 8 << 20),
        ("esp32-s3", 240_000_000, 8 << 20, 512 << 10, 8 << 20),
        ("jetson-nano", 1_430_000_000, 16 << 30, 4 << 30, 0),
        ("raspberry-pi-4", 1_500_000_000, 16 << 30, 4 << 30, 0),
        ("rp2040", 133_000_000, 2 << 20, 264 << 10, 0),
        ("stm32f4", 180_000_000, 512 << 10, 128 << 10, 0),
        ("stm32h7", 480_000_000, 2 << 20, 1056 << 10, 0),
    ],
)
def test_figures_of_the_data_sheets(name: str, clock_hz: int, flash: int, ram: int, psram: int) -> None:
    p = load_device(name)
    assert (p.clock_hz, p.flash_bytes, p.ram_bytes, p.psram_bytes) == (clock_hz, flash, ram, psram)


@pytest.mark.parametrize("name", known_devices())
def test_a_model_gets_less_than_the_board_has(name: str) -> None:
    profile = load_device(name)
    limits = device_budgets(profile)
    assert limits.keys() <= COSTS.keys()
    assert 0 < limits["flash"] < profile.flash_bytes
    assert 0 < limits["ram"] < max(profile.ram_bytes, profile.psram_bytes)
    assert profile.internal_ram_bytes < profile.ram_bytes
    words = {"name", "title", "aliases", "kind", "emulated_core", "latency_table", "sources"}
    if not profile.psram_bytes:
        words |= {"psram_bytes", "usable_psram_fraction"}
    figures = {f.name for f in fields(DeviceProfile) if getattr(profile, f.name) not in ("", {})} - words
    assert figures == profile.sources.keys()
    # What no data sheet says is called an assumption.
    assert all("assumption" in profile.sources[key] for key in ("runtime_flash_bytes", "runtime_ram_bytes"))


def test_limits() -> None:
    """983,040 bytes for sketches less 168 KiB; all RAM less 24 and 32 KiB; half of the PSRAM of the ESP-EYE."""
    assert device_budgets(load_device("arduino-nano-33-ble")) == {"flash": 983_040 - 168 * 1024, "ram": 200 * 1024}
    eye = load_device("esp-eye")
    assert device_budgets(eye) == {"flash": (4096 - 64 - 256) * 1024, "ram": 4 << 20}
    # Static RAM and stack: all of it; one range of AXI SRAM; four banks of six; what caches and the ROM leave.
    internal = {n: load_device(n).internal_ram_bytes for n in ("stm32f4", "stm32h7", "rp2040", "esp32-s3")}
    expected = {"stm32f4": 128 - 16, "stm32h7": 512 - 16, "rp2040": 256 - 20, "esp32-s3": 334 - 88}
    assert internal == {name: pytest.approx(kilobytes * 1024, abs=2) for name, kilobytes in expected.items()}
    assert eye.internal_ram_bytes == pytest.approx((160 - 24) * 1024, abs=2)


def test_a_profile_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "my-board.toml"
    path.write_text(NANO.replace("ram_bytes = 262_144", "ram_bytes = 524_288"))
    profile = load_device(path)
    assert profile.name == "my-board"
    assert device_budgets(profile)["ram"] == (512 - 56) * 1024
    path.write_text("\n".join(line for line in NANO.splitlines() if not line.startswith("aliases")))
    assert load_device(str(path)).aliases == ()


def test_a_profile_needs_no_more_than_memories_and_clock(tmp_path: Path) -> None:
    """What estimates and emulation need may be left out."""
    head, sources = NANO.split("[sources]")
    head = head.split("[cycles_per_instruction]")[0]
    optional = ("kind", "emulated_core", "cycles_per_instruction", "stack_bytes")
    lines = [line for line in (head + "[sources]" + sources).splitlines() if not line.startswith(optional)]
    (tmp_path / "plain.toml").write_text("\n".join(lines))
    profile = load_device(tmp_path / "plain.toml")
    assert (profile.kind, profile.emulated_core) == ("microcontroller", "")
    assert profile.cycles_per_instruction == {}
    assert profile.stack_bytes == 8192


def test_cycles_per_instruction_are_pairs() -> None:
    ranges = load_device("arduino-nano-33-ble").cycles_per_instruction
    assert ranges["Conv"] == (1.2, 2.8)
    assert "other" in ranges


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("cores = 1", "", "lacks cores"),
        ("cores = 1", "cores = 1\ncolour = 3", "has unknown fields colour"),
        ("cores = 1", "cores = 0", "has cores = 0, which is not a whole number"),
        ("cores = 1", "cores = true", "has cores = True, which is not a whole number"),
        ("= 64_000_000", "= 64e6", "has clock_hz = 64000000.0, which is not a whole number"),
        ("= 0.9375", "= 1.2", "has usable_flash_fraction = 1.2, which is not a fraction between 0 and 1"),
        ("= 0.9375", "= nan", "which is not a fraction between 0 and 1"),
        ('"single"', '"half"', "has fpu = 'half', which is not one of none, single, double"),
        ('title = "Arduino Nano 33 BLE / Nano 33 BLE Sense"', "title = 3", "has title = 3, which is not a string"),
        ('kind = "microcontroller"', 'kind = "fpga"', "has kind = 'fpga', which is not one of microcontroller, linux"),
        ("Conv = [1.2, 2.8]", "Conv = [2.8, 1.2]", "which is not a table of [lowest, highest] by operator"),
        ("Conv = [1.2, 2.8]", "Conv = 2", "which is not a table of [lowest, highest] by operator"),
        ("other = [", "others = [", "which is not a table of [lowest, highest] by operator, with an entry 'other'"),
        ('emulated_core = "cortex-m4f"', "emulated_core = 4", "has emulated_core = 4, which is not a string"),
        ("cycles_per_instruction = ", "# ", "sources where these come from: cycles_per_instruction"),
        ('["arduino-nano-33-ble-sense"]', '"x"', "has aliases = 'x', which is not a list of strings"),
        ("cores = 1", "cores = 1\npsram_bytes = 9", "sources where these come from: psram_bytes"),
        ("stack_bytes = 32_768", "stack_bytes = 262_144", "runtime_ram_bytes and stack_bytes leave no ram for a model"),
        ("= 172_032", "= 999_999", "runtime_flash_bytes leaves no flash for a model"),
        ("[sources]", "[sources", "is not TOML"),
    ],
)
def test_broken_profiles(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert NANO.count(old)
    path = tmp_path / "board.toml"
    path.write_text(NANO.replace(old, new, 1))
    with pytest.raises(ConfigError) as error:
        load_device(path)
    assert message in str(error.value)
    assert "board.toml" in str(error.value)
    assert "\n" not in str(error.value)


def test_unknown_devices(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"'uno' is not one of: arduino-nano-33-ble, arduino-nano-33-ble-sense, esp-eye"
    ):
        load_device("uno")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_device(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not TOML"):
        load_device(tmp_path / "binary.toml")


def test_profiles_are_plain_toml() -> None:
    assert tomllib.loads(NANO)["core"].startswith("Arm Cortex-M4F")
