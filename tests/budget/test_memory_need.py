"""Room of a board for a model, and the line that says that it does not fit."""

from dataclasses import replace

from onnxfold.budget.devices import MemoryNeed, load_device, misfit

NANO, EYE = load_device("arduino-nano-33-ble"), load_device("esp-eye")
SMALL = MemoryNeed(runtime="TFLM", model_bytes=1000, activation_bytes=1000, table_bytes=64, buffer_bytes=100, basis="")


def test_ram_is_arena_and_arrays() -> None:
    assert (SMALL.arena_bytes, SMALL.ram_bytes) == (1064, 1164)
    room = SMALL.room_for_activations(NANO)
    assert room == 256 * 1024 - NANO.runtime_ram_bytes - 32_768 - 164
    assert misfit(replace(SMALL, activation_bytes=room), NANO) == ""
    for one_more in (
        replace(SMALL, activation_bytes=room + 1),
        replace(SMALL, activation_bytes=room, table_bytes=65),
        replace(SMALL, activation_bytes=room, buffer_bytes=101),
    ):
        assert misfit(one_more, NANO).startswith(
            "does not fit: needs 200 K RAM (200 arena of TFLM, 0 input and output)"
        )
    assert misfit(replace(SMALL, activation_bytes=room), replace(NANO, stack_bytes=NANO.stack_bytes + 1)) != ""


def test_a_misfit_says_by_how_much() -> None:
    need = replace(SMALL, activation_bytes=200 << 10, buffer_bytes=108 << 10)
    assert misfit(need, NANO) == (
        "does not fit: needs 308 K RAM (200 arena of TFLM, 108 input and output), has 200 K beside system, runtime and "
        "stack: 109 K too much"
    )
    flash = misfit(replace(SMALL, model_bytes=3_925_000), NANO)
    assert flash == "does not fit: needs 3.91 MB flash (3.74 model, 0.16 runtime), has 1 MB (0.94 usable)"
    both = misfit(replace(need, model_bytes=NANO.model_flash_bytes + 1), NANO)
    assert "MB flash" in both
    assert "K RAM" in both
    assert misfit(replace(SMALL, model_bytes=NANO.model_flash_bytes), NANO) == ""


def test_what_is_not_known_is_not_called_a_fit() -> None:
    assert misfit(replace(SMALL, activation_bytes=None), NANO).startswith("not known to fit: ")


def test_an_arena_may_lie_in_psram_and_arrays_may_not() -> None:
    large = replace(SMALL, activation_bytes=2 << 20)
    assert misfit(large, EYE) == ""
    assert large.in_psram(EYE)
    assert not SMALL.in_psram(EYE)
    assert "and 4,096 K PSRAM" in misfit(replace(large, activation_bytes=5 << 20), EYE)
    assert misfit(replace(SMALL, buffer_bytes=EYE.internal_ram_bytes + 1), EYE) != ""
