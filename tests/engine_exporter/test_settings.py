from __future__ import annotations

import pytest

from ridgeline_exporters.engine.settings import Settings, read_settings


def test_an_empty_environment_gives_the_defaults() -> None:
    assert read_settings({}) == Settings()
    assert Settings().port == 9400


def test_every_variable_is_read_in_its_unit() -> None:
    settings = read_settings(
        {
            "RIDGELINE_EXPORTER_PORT": "9500",
            "RIDGELINE_EXPORTER_HOST": "127.0.0.1",
            "RIDGELINE_CONTROL_TOKEN": "secret",
            "RIDGELINE_ACCELERATOR": "H100-SXM5-80GB",
            "RIDGELINE_PEAK_TERAFLOPS": "989.5",
            "RIDGELINE_PEAK_GIGABYTES_PER_SECOND": "3350",
            "RIDGELINE_TIME_TO_FIRST_TOKEN_MILLISECONDS": "500",
            "RIDGELINE_INTER_TOKEN_LATENCY_MILLISECONDS": "40",
        }
    )
    assert settings == Settings("127.0.0.1", 9500, "secret", "H100-SXM5-80GB", 989.5e12, 3.35e12, 0.5, 0.04)


@pytest.mark.parametrize("value", ["many", "-1", "70000", "nan", "1.5"])
def test_a_port_that_cannot_be_is_replaced_and_named(value: str) -> None:
    settings = read_settings({"RIDGELINE_EXPORTER_PORT": value})
    assert settings.port == 9400
    assert settings.problems == ("RIDGELINE_EXPORTER_PORT is not a usable number and was ignored",)


@pytest.mark.parametrize("value", ["0", "-5", "inf", "nan", "fast"])
def test_peaks_and_objectives_must_be_positive_numbers(value: str) -> None:
    names = ("RIDGELINE_PEAK_TERAFLOPS", "RIDGELINE_INTER_TOKEN_LATENCY_MILLISECONDS")
    settings = read_settings(dict.fromkeys(names, value))
    assert (settings.peak_flops, settings.inter_token_seconds) == (None, None)
    assert len(settings.problems) == 2


def test_the_token_is_in_no_representation_and_no_problem() -> None:
    settings = read_settings({"RIDGELINE_CONTROL_TOKEN": "tell-nobody", "RIDGELINE_EXPORTER_PORT": "x"})
    assert "tell-nobody" not in repr(settings)
    assert "tell-nobody" not in "".join(settings.problems)
