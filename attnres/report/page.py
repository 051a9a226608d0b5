"""The HTML page: tables and texts are written here, charts are drawn by page.js from the embedded JSON."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from attnres.analysis.comparison import finding
from attnres.analysis.profile import DepthProfile
from attnres.report.comparison import result_tables, sink_table
from attnres.report.data import ReportData
from attnres.report.html import environment, script, styles
from attnres.report.style import (
    DIFFERENCE_POINTS,
    arm_styles,
    colour_scale,
    depth_ticks,
    paired_differences,
    summarise,
)
from attnres.texttable import visible

CONTEXT = 48
"""Characters of text shown on either side of a chosen token."""


def page(data: ReportData) -> str:
    """The whole page as one string without references to anything outside it."""
    charts = script("report/page.js")
    # The browser runs this one script and loads nothing: a second lock behind the escaping.
    digest = base64.b64encode(hashlib.sha256(charts.encode()).digest()).decode()
    template = environment("attnres.report").get_template("page.html")
    return template.render(
        title=data.title,
        subtitle=data.subtitle,
        finding=finding(data.results, data.unit),
        results=result_tables(data.results, data.unit),
        sinks=sink_table([(arm.name, profile) for arm, profile in data.profiled]),
        provenance=data.provenance,
        shows={"curves": bool(data.trained), "depth": bool(data.profiled)},
        style=styles("report/charts/charts.css", "report/page.css"),
        script=charts,
        script_digest=digest,
        json=json_for_script(payload(data)),
    )


def json_for_script(value: Any) -> str:
    """Strict JSON that cannot end the script element it stands in, whatever texts it holds."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII: U+2028 and U+2029 are escaped
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def payload(data: ReportData) -> dict[str, Any]:
    """What page.js draws. Numbers but steps have four digits; what is not finite is null."""
    return {
        "arms": [_arm(data, index) for index in range(len(data.arms))],
        "tokens": [_token(data, index) for index in range(len(data.tokens))],
        "unit": visible(data.unit),
        "curveLabel": visible(data.curve_label),
    }


def _arm(data: ReportData, index: int) -> dict[str, Any]:
    arm = data.arms[index]
    style = arm_styles([arm.name for arm in data.arms])[arm.name]
    record: dict[str, Any] = {
        "name": visible(arm.name),
        "description": visible(arm.description),
        "colour": style.colour or "currentColor",
        "dashes": " ".join(map(str, style.dashes)),
        "seeds": len(arm.curves),
    }
    if arm in data.trained:
        record["curve"] = _curve(summarise(arm.curves))
        baseline = data.trained[0]
        pairs = paired_differences(arm, baseline) if arm is not baseline else []
        if pairs:
            record["difference"] = _curve(summarise(pairs, DIFFERENCE_POINTS))
    if arm.profile is not None:
        record["profile"] = _profile(arm.profile)
    return record


def _curve(summary: Mapping[str, np.ndarray]) -> dict[str, list[Any]]:
    return {name: values.tolist() if name == "steps" else _numbers(values) for name, values in summary.items()}


def _profile(profile: DepthProfile) -> dict[str, Any]:
    matrices = np.concatenate([profile.mean_matrix[None], profile.token_matrices])
    return {
        "sites": list(map(visible, profile.site_names)),
        "sources": list(map(visible, profile.source_names)),
        "siteTicks": depth_ticks(profile.site_names),
        "sourceTicks": depth_ticks(profile.source_names),
        # View 0 is the mean over tokens, view k + 1 the chosen token k. One scale for all views: they are comparable.
        "matrices": [_triangle(matrix) for matrix in matrices],
        "share": _triangle(profile.mean_share),
        "matrixScale": _numbers(np.array(colour_scale(matrices))),
        "shareScale": _numbers(np.array(colour_scale(profile.mean_share))),
        "output": _numbers(profile.output_rms),
        "gradient": _numbers(profile.gradient_rms),
        "input": _numbers(profile.input_rms),
        "entropy": _numbers(profile.entropy),
        "entropyLimit": _numbers(profile.entropy_limit),
        "embeddingShare": _numbers(profile.embedding_share),
        "sourceShare": _numbers(profile.source_share),
    }


def _token(data: ReportData, index: int) -> dict[str, Any]:
    text = data.tokens[index]
    return {
        "position": next((profile.positions[index] for _, profile in data.profiled), None),
        "before": visible(text.before[-CONTEXT:]),
        "token": visible(text.token[:CONTEXT]),
        "after": visible(text.after[:CONTEXT]),
    }


def _triangle(matrix: np.ndarray) -> list[list[float | None]]:
    """The rows up to the diagonal."""
    return [_numbers(row[: site + 1]) for site, row in enumerate(matrix)]


def _numbers(values: np.ndarray) -> list[float | None]:
    return [float(f"{value:.4g}") if math.isfinite(value) else None for value in values.tolist()]
