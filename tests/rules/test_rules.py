"""Recording rules and alerts under promtool: the cases of this folder, and faults that they must find."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tools.programs import promtool

HERE = Path(__file__).parent
RULES = HERE.parents[1] / "helm" / "ridgeline" / "rules"
CASES = sorted(HERE.glob("*.yaml"))
WINDOW = "45s"


def write_rules(folder: Path, window: str = WINDOW, fault: tuple[str, str] | None = None) -> list[Path]:
    """The chart's rule files with their window put in, and a fault where one is planted."""
    folder.mkdir(exist_ok=True)
    written = []
    for source in sorted(RULES.glob("*.yaml")):
        text = source.read_text().replace("${window}", window).replace("${interval}", "5s")
        if fault:
            text = text.replace(*fault)
        written.append(folder / source.name)
        written[-1].write_text(text)
    return written


def run_case(case: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """`promtool test rules` on one case, with the rules in `folder/rules`."""
    (folder / case.name).write_text(case.read_text())
    return subprocess.run([promtool(), "test", "rules", folder / case.name], text=True, capture_output=True, timeout=60)


def all_rules() -> list[dict[str, Any]]:
    files = [yaml.safe_load(path.read_text()) for path in sorted(RULES.glob("*.yaml"))]
    return [rule for file in files for group in file["groups"] for rule in group["rules"]]


RECORDED = [rule["record"] for rule in all_rules() if "record" in rule]
ALERTS = [rule for rule in all_rules() if "alert" in rule]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.stem) for case in CASES])
def test_rules_give_what_the_case_says(case: Path, tmp_path: Path) -> None:
    write_rules(tmp_path / "rules")
    done = run_case(case, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("window", ["15s", "45s", "5m"])
def test_rules_are_valid_for_any_window(window: str, tmp_path: Path) -> None:
    files = write_rules(tmp_path / "rules", window)
    done = subprocess.run([promtool(), "check", "rules", *files], text=True, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


FAULTS = {
    "quantiles of an idle histogram stay NaN": ("requests", ">= 0", ""),
    "an idle fleet has no missed ratio": ("requests", "or (fleet:ridgeline_requests:rate == 0)", ""),
    "division by zero": ("requests", "(fleet:ridgeline_requests:rate > 0)", "fleet:ridgeline_requests:rate"),
    "met requests count as missed": ("requests", 'outcome!="met"', 'outcome="met"'),
    "arrivals wait for the end of their requests": (
        "requests",
        "arriving:rate\n        expr: sum by (namespace, fleet) (rate(ridgeline_engine_request_prompt_tokens_count[",
        "arriving:rate\n        expr: sum by (namespace, fleet) (rate(ridgeline_engine_requests_total[",
    ),
    "an engine that counts no running outputs makes them look short": (
        "requests",
        "instance) rate(ridgeline_engine_outputs_longer_total",
        "instance) rate(ridgeline_engine_request_output_tokens_count",
    ),
    "resets count": ("requests", "rate(ridgeline_engine_requests", "deriv(ridgeline_engine_requests"),
    "namespaces are mixed": ("requests", "sum by (namespace, fleet) (rate", "sum by (fleet) (rate"),
    "two roles of one pod join": ("roofline", "topk by (namespace, fleet, pod) (1,", "("),
    "roles vanish with the operator": ("roofline", "[5m:5s]", "[1s:1s]"),
    "a role of value 0 joins": ("roofline", "_engine_role == 1", "_engine_role"),
    "an engine scraped twice": ("roofline", "max by (namespace, fleet, pod, instance) (ridge", "(ridge"),
    "a peak of 0 divides": ("roofline", "_engine_peak_flops > 0", "_engine_peak_flops"),
    "0 is a capacity": ("constants", "_kv_capacity_tokens > 0", "_kv_capacity_tokens"),
    "kinds of step are one": (
        "constants",
        "sum by (namespace, fleet, kind) (\n            rate(ridgeline_engine_step_seconds",
        "sum by (namespace, fleet) (\n            rate(ridgeline_engine_step_seconds",
    ),
    "steps are timed whose terms nobody counts": (
        "constants",
        "and on (namespace, fleet, pod, instance, kind)",
        "or on (namespace, fleet, pod, instance, kind)",
    ),
    "steps of one engine stand for all": (
        "constants",
        "sum by (namespace, fleet, kind, term)",
        "avg by (namespace, fleet, kind, term)",
    ),
    "a failed exporter reports": ("constants", "== bool 1", "> bool -1"),
    "newest instead of oldest": ("constants", "min by (namespace, fleet) (time", "max by (namespace, fleet) (time"),
    "prefill engines are blamed for computing prompts": ("alerts", '{role="decode"}', ""),
    "a GPU of nobody has a series": ("measured", 'exported_pod="", pod!=""', 'exported_pod="", pod=""'),
    "DCGM's word replaces the exporter's": (
        "measured",
        'ridgeline_gpu_dram_active_ratio{pod!=""}',
        'DCGM_FI_PROF_DRAM_ACTIVE{pod!=""}',
    ),
    "the pod of dcgm-exporter is blamed": (
        "measured",
        '"pod", "$1", "exported_pod", "(.+)"',
        '"x", "$1", "exported_pod", "(.+)"',
    ),
    "idle engines are judged": ("measured", "> 0.1", "> -1"),
    "an error of infinity": ("measured", "_utilization:ratio > 0)", "_utilization:ratio)"),
    "engines without an error count": (
        "measured",
        "and on (namespace, fleet, pod) engine:ridgeline_model_error:ratio\n          )\n          / sum",
        ")\n          / sum",
    ),
    "GPUs of an engine add up": ("measured", "avg by (namespace, pod) (avg_over", "sum by (namespace, pod) (avg_over"),
    "an alert fires too early": ("alerts", "for: 2m", "for: 1m"),
    "no operator is no alarm": ("alerts", "or absent(ridgeline_leader)", ""),
}


@pytest.mark.parametrize(("case", "right", "wrong"), [pytest.param(*fault, id=name) for name, fault in FAULTS.items()])
def test_a_planted_fault_is_found(case: str, right: str, wrong: str, tmp_path: Path) -> None:
    assert any(right in path.read_text() for path in RULES.glob("*.yaml")), "the fault touches nothing"
    write_rules(tmp_path / "rules", fault=(right, wrong))
    done = run_case(HERE / f"{case}.yaml", tmp_path)
    assert done.returncode != 0
    assert "FAILED" in done.stdout + done.stderr


@pytest.mark.parametrize("name", [*RECORDED, *(alert["alert"] for alert in ALERTS)])
def test_every_rule_is_in_a_case(name: str) -> None:
    assert any(name in case.read_text() for case in CASES)


def test_no_rule_is_recorded_twice() -> None:
    assert sorted(RECORDED) == sorted(set(RECORDED))


@pytest.mark.parametrize("alert", [pytest.param(alert, id=alert["alert"]) for alert in ALERTS])
def test_an_alert_says_what_is_wrong_and_how_bad(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("warning", "critical")
    assert set(alert["annotations"]) == {"summary", "description"}
    assert len(alert["annotations"]["summary"]) <= 80


def test_nothing_but_window_and_interval_is_left_to_the_chart() -> None:
    text = "".join(path.read_text() for path in RULES.glob("*.yaml"))
    assert set(re.findall(r"\$\{.*?\}", text)) == {"${window}", "${interval}"}


def test_every_rule_that_the_operator_reads_is_recorded() -> None:
    source = (HERE.parents[1] / "operator" / "ridgeline" / "observe" / "signals.py").read_text()
    read = set(re.findall(r'"(fleet:ridgeline_[a-z0-9_:]+)"', source))
    lengths = {name for name in read if name.endswith("_tokens") and "request" in name}
    read = (read - lengths) | {f"{name}{part}" for name in lengths for part in ("_bucket:rate", ":mean")}
    assert len(read) > 25
    assert read <= set(RECORDED)
