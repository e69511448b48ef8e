"""`ridgeline roofline`: the numbers of the first page of the design, and what a person or a program sees."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ridgeline import roofline_command
from ridgeline_exporters.roofline.catalogue import MODELS

DESIGN = ("--model", "llama-3.1-70b", "--compute-teraflops", "1,000", "--memory-bandwidth-terabytes-per-second", "3")


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser(prog="ridgeline")
    roofline_command.add_parser(parser.add_subparsers())
    return roofline_command.run(parser.parse_args(["roofline", *arguments]))


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


# --- the numbers of the design


@pytest.mark.parametrize(
    ("weights", "milliseconds"),
    [pytest.param("bf16", 47, id="bf16"), pytest.param("fp8", 23, id="fp8"), pytest.param("int4", 12, id="int4")],
)
def test_a_70b_model_cannot_decode_faster_than(
    capsys: pytest.CaptureFixture[str], weights: str, milliseconds: int
) -> None:
    found = answer(capsys, *DESIGN, "--weights", weights, "--decode-batch", "1")
    assert round(found["decode_floor_seconds"][weights] * 1e3) == milliseconds
    assert round(found["phases"][-1]["seconds"] * 1e3) == milliseconds
    assert run(*DESIGN) == 0
    assert f"{weights} {milliseconds} ms" in capsys.readouterr().out


def test_the_ridge_at_1000_teraflops_and_3_terabytes_per_second_is_333(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*DESIGN) == 0
    assert "ridge 333 FLOP/byte" in capsys.readouterr().out


def test_the_ridge_of_an_h100_lies_between_its_two_bandwidths_at_about_300_to_330(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ridges = [
        answer(capsys, "--compute-teraflops", "1000", "--memory-bandwidth-terabytes-per-second", bandwidth)["hardware"][
            "ridge_flops_per_byte"
        ]
        for bandwidth in ("3.35", "3")
    ]
    assert [round(ridge) for ridge in ridges] == [299, 333]


def test_a_single_sequence_of_a_70b_model_sees_20_to_25_tokens_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    for bandwidth in ("3", "3.35"):
        found = answer(capsys, *DESIGN[:-1], bandwidth, "--decode-batch", "1")
        assert 20 <= found["phases"][-1]["tokens_per_second"] <= 25


def test_the_weights_of_a_70b_model_are_140_gigabytes_in_16_bit(capsys: pytest.CaptureFixture[str]) -> None:
    model = answer(capsys, *DESIGN)["model"]
    assert model["resident_bytes"] == pytest.approx(140e9, rel=0.01)
    assert model["weight_bytes_per_step"] == pytest.approx(140e9, rel=0.01)


def test_prefill_is_bound_by_compute_and_decode_by_memory(capsys: pytest.CaptureFixture[str]) -> None:
    phases = answer(capsys, *DESIGN, "--prefill", "2048", "8192", "--decode-batch", "1", "32", "256")["phases"]
    assert [(row["phase"], row["bound"]) for row in phases] == [("prefill", "compute")] * 2 + [("decode", "memory")] * 3


@pytest.mark.parametrize(
    ("tokens", "least", "most"),
    [pytest.param(1024, 1e8, 1e9, id="100s of MB"), pytest.param(16384, 1e9, 1e10, id="several GB at long context")],
)
def test_the_kv_cache_that_a_split_moves_is(
    capsys: pytest.CaptureFixture[str], tokens: int, least: float, most: float
) -> None:
    prefill = answer(capsys, *DESIGN, "--prefill", str(tokens))["phases"][0]
    assert least < prefill["kv_write_bytes"] < most


# --- for people and programs


def test_the_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--model", "llama-3.1-70b", "--gpu", "NVIDIA-H100-80GB-HBM3", "--tensor-parallel", "4") == 0
    assert capsys.readouterr().out.splitlines() == [
        "Model     llama-3.1-70b: 70.55 billion parameters (LlamaForCausalLM)",
        "Memory    bf16 weights, 139.0 GB read per step; KV cache of 320 KiB a token",
        "Hardware  4 x H100-SXM5-80GB: 3,956 TFLOPS, 13.40 TB/s, ridge 295 FLOP/byte",
        "",
        "phase    requests  context   TFLOP      GB  FLOP/byte  bound by  ms at least  tokens/s at most",
        "prefill         1    2,048  285.88  216.86      1,318   compute           72            28,340",
        "decode          1    2,048    0.14  139.72        1.0    memory           10                96",
        "decode         32    2,048    4.62  161.72         29    memory           12             2,652",
        "decode        256    2,048   36.96  320.63        115    memory           24            10,699",
        "",
        "Decode floor, one sequence of 2,048 tokens: "
        "bf16 10 ms (96 tokens/s), fp8 5.24 ms (191 tokens/s), int4 2.73 ms (367 tokens/s)",
        "Decode is memory-bound up to a batch of about 295, and at every batch once caches are long.",
        "A split moves 671 MB of KV for a prompt of 2,048 tokens: 3.36 ms at 200 GB/s.",
        "Room for 218 sequences of 2,048 tokens (446 thousand KV tokens) in 90 % of 4 x 80 GB.",
        "256 sequences of 2,048 tokens do not fit into it.",
    ]


@pytest.mark.parametrize("model", MODELS)
def test_every_model_known_by_name_is_answered(capsys: pytest.CaptureFixture[str], model: str) -> None:
    assert run("--model", model) == 0
    text = capsys.readouterr().out
    found = answer(capsys, "--model", model)
    experts = found["model"]["active_parameters"] < found["model"]["parameters"]
    assert ("Experts are taken to be chosen uniformly" in text) is experts
    assert bool(found["model"]["assumptions"]) is experts
    assert sum(group["count"] for group in found["model"]["layers"]) == MODELS[model]["num_hidden_layers"]
    assert all(0 < row["seconds"] < float("inf") for row in found["phases"])


def test_a_mixture_of_experts_says_what_it_reads_and_what_a_token_meets(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--model", "gpt-oss-120b") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "Model     gpt-oss-120b: 116.83 billion parameters, 5.71 of a token (GptOssForCausalLM)",
        "Layers    18 x sliding window of 128 tokens, 4 of 128 experts; 18 x full attention, 4 of 128 experts",
        "Memory    mxfp4 weights, 5.0 to 64.1 GB read per step; KV cache of 72 KiB a token",
    ]
    few, many = answer(capsys, "--model", "gpt-oss-120b", "--decode-batch", "1", "1000")["phases"][1:]
    assert few["weight_bytes"] == pytest.approx(5.0e9, rel=0.01)
    assert many["weight_bytes"] == pytest.approx(64.1e9, rel=0.01)


def test_layers_with_a_window_leave_room_for_more_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--model", "gemma-3-27b", "--gpu", "h200", "--context", "32768") == 0
    # 10 of 62 layers keep 32,768 tokens, the others 1,024, of 8 KiB each: 3.1 GB instead of 16.6.
    assert "Room for 23 sequences of 32,768 tokens" in capsys.readouterr().out


def test_a_latent_cache_on_every_gpu_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--model", "deepseek-v3", "--gpu", "h200", "--tensor-parallel", "8") == 0
    text = capsys.readouterr().out
    assert "The latent KV cache is kept 8 times (counted)." in text
    assert "at every batch once caches are long" not in text


def test_what_is_not_counted_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": dict(MODELS["gemma-3-4b"])}
    (tmp_path / "config.json").write_text(json.dumps(whole), encoding="utf-8")
    assert run("--model", str(tmp_path)) == 0
    assert "PARTIAL: not counted are: vision encoder." in capsys.readouterr().out
    found = answer(capsys, "--model", str(tmp_path))["model"]
    assert (found["coverage"], found["uncounted"]) == ("partial", ["vision encoder"])


def test_a_small_prompt_is_bound_by_memory_like_a_decode(capsys: pytest.CaptureFixture[str]) -> None:
    prefill = answer(capsys, "--prefill", "64")["phases"][0]
    assert prefill["bound"] == "memory"
    assert prefill["seconds"] == prefill["memory_seconds"] > prefill["compute_seconds"]


def test_a_model_that_does_not_fit_is_said_to_with_the_cure(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--model", "llama-3.1-70b", "--gpu", "L4") == 0
    assert "DOES NOT FIT: 141 GB of weights in 90 % of 1 x 24 GB; use more GPUs" in capsys.readouterr().out


def test_kv_heads_kept_more_than_once_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--model", "qwen3-8b", "--tensor-parallel", "16") == 0
    assert "Each KV head is kept 2 times" in capsys.readouterr().out


def test_one_given_peak_replaces_that_of_the_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "--gpu", "h100", "--memory-bandwidth-terabytes-per-second", "3")["hardware"]
    assert found == {
        "name": "H100-SXM5-80GB with the given peaks",
        "gpus": 1,
        "flops_per_second": 989e12,
        "memory_bytes_per_second": 3e12,
        "ridge_flops_per_byte": 989 / 3,
    }


def test_a_gpu_that_is_not_known_may_be_named_when_its_peaks_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    peaks = ("--compute-teraflops", "1300", "--memory-bandwidth-terabytes-per-second", "5.2")
    found = answer(capsys, "--gpu", "B300", *peaks)["hardware"]
    assert (found["name"], found["ridge_flops_per_byte"]) == ("B300 with the given peaks", 250)


@pytest.mark.parametrize("as_folder", [pytest.param(True, id="folder"), pytest.param(False, id="file")])
def test_a_model_is_read_from_its_config(capsys: pytest.CaptureFixture[str], tmp_path: Path, as_folder: bool) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(MODELS["qwen2.5-7b"]), encoding="utf-8")
    found = answer(capsys, "--model", str(tmp_path if as_folder else file))["model"]
    assert found["parameters"] == 7_615_616_512


def test_the_list_names_models_and_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--list") == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("llama-3.1-70b", "H100-SXM5-80GB", "NVIDIA-H100-80GB-HBM3"))
    listed = answer(capsys, "--list")
    assert listed["models"]["llama-3.1-8b"] == 8_030_261_248
    assert listed["gpus"]["H100-SXM5-80GB"]["product_labels"] == ["NVIDIA-H100-80GB-HBM3"]


def test_a_reader_that_stops_early_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "ridgeline", "roofline", "--list"]
    try:
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--model", "gpt-9"], "'gpt-9' is not known by name; known are", id="unknown model"),
        pytest.param(["--model", "away/config.json"], "does not exist; give the path", id="missing file"),
        pytest.param(["--gpu", "H101"], "'H101' is not known; known are", id="unknown GPU"),
        pytest.param(["--gpu", "H101"], "(--compute-teraflops and --memory-", id="unknown GPU without peaks"),
        pytest.param(["--tensor-parallel", "3"], "use a divisor of 32", id="heads that cannot be shared"),
    ],
)
def test_wrong_input_is_told_with_cause_and_cure(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("ridgeline roofline: ")
    assert message in printed.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("{", "cannot be read", id="not JSON"),
        pytest.param("[]", "holds no JSON object", id="not an object"),
        pytest.param('{"architectures": ["OPTForCausalLM"]}', "OPTForCausalLM: ", id="unknown architecture"),
        pytest.param('{"architectures": ["LlamaForCausalLM"]}', "hidden_size = None", id="sizes missing"),
        pytest.param(None, "no config.json in", id="empty folder"),
    ],
)
def test_a_config_that_cannot_be_used_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content, encoding="utf-8")
    assert run("--model", str(tmp_path)) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--prefill", "0"], id="no tokens"),
        pytest.param(["--context", "many"], id="no number"),
        pytest.param(["--compute-teraflops", "-1"], id="negative peak"),
        pytest.param(["--compute-teraflops", "nan"], id="NaN"),
        pytest.param(["--weights", "fp6"], id="unknown format"),
    ],
)
def test_impossible_numbers_end_with_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(*arguments)
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err
