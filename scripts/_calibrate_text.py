"""The results of `gaploop calibrate` in words and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gaploop.teleop.calibration.hand_eye import HandEyeResult
    from gaploop.teleop.calibration.intrinsics import IntrinsicsResult
    from gaploop.teleop.calibration.sightings import BoardSightings


def intrinsics_answer(
    result: IntrinsicsResult, found: BoardSightings, picture: Path
) -> dict[str, Any]:
    """Return what `--json` and the report hold."""
    return {
        **result.to_json(),
        "ok": not result.refusals(),
        "refused": result.refusals(),
        "per_image": [asdict(image) for image in result.images],
        "hurting": [asdict(image) for image in result.hurting],
        "dropped": result.dropped,
        "not_found": found.missed,
        "missing": result.coverage.missing(),
        "picture": picture,
    }


def intrinsics_lines(result: IntrinsicsResult, found: BoardSightings, picture: Path) -> list[str]:
    """Return what a person reads."""
    lens, std, K = result.intrinsics, result.std, result.intrinsics.camera_matrix
    fx, fy = (max(std[name], result.focal_std_px) for name in ("fx", "fy"))
    lines = [
        f"{len(result.images)} pictures of {lens.width}x{lens.height} px{_not_found(found)}",
        f"  focal length  {K[0, 0]:.2f} ± {fx:.2f}, {K[1, 1]:.2f} ± {fy:.2f} px",
        f"  centre        {K[0, 2]:.2f} ± {std['cx']:.2f}, {K[1, 2]:.2f} ± {std['cy']:.2f} px",
        f"  RMS error     {result.rms_px:.3f} px, in held-out pictures {result.held_out_px:.3f} px",
    ]
    if result.dropped:
        lines.append(f"  left out      {', '.join(result.dropped)}")
    lines += [
        f"  hurts         {h.name}: {h.held_out_px:.2f} px (others {h.others_px:.2f}), shifts the "
        f"result by {h.shift_px:.2f} px; {h.why}"
        for h in result.hurting
    ]
    if result.hurting:
        lines.append("                to leave such pictures out: --drop_outliers")
    lines += [f"  missing       {ask}" for ask in result.coverage.missing()]
    lines.append(f"  coverage      {result.coverage.share:.0%} of the picture: {picture}")
    return lines


def hand_eye_answer(result: HandEyeResult, found: BoardSightings, picture: Path) -> dict[str, Any]:
    """Return what `--json` and the report hold."""
    return {
        **result.to_json(),
        "ok": not result.refusals(),
        "refused": result.refusals(),
        "by_method": {name: asdict(r) for name, r in result.by_method.items()},
        "errors_mm": dict(zip(result.names, result.errors_mm.tolist(), strict=True)),
        "outliers": [name for name, _ in result.outliers()],
        "turn_deg": result.turn_deg,
        "not_found": found.missed,
        "picture": picture,
    }


def hand_eye_lines(result: HandEyeResult, found: BoardSightings, picture: Path) -> list[str]:
    """Return what a person reads."""
    from gaploop.teleop.calibration.geometry import rotation_vector

    T = result.hand_eye.T_mount_camera
    values = zip(T[:3, 3] * 1e3, result.std_mm, strict=True)
    place = ", ".join(f"{value:.2f} ± {std:.2f}" for value, std in values)
    turn = ", ".join(f"{v:.2f}" for v in rotation_vector(T[:3, :3]) * 57.29577951308232)
    held = result.held_out
    lines = [
        f"{len(result.names)} pictures{_not_found(found)}, turned by {result.turn_deg[0]:.0f}° and "
        f"{result.turn_deg[1]:.0f}° about two axes",
        f"  {result.hand_eye.name:<13} {place} mm",
        f"  rotation      {turn} ° (rotation vector) ± "
        + ", ".join(f"{v:.2f}" for v in result.std_deg),
        f"  held out      board off by {held.board_mm:.2f} mm, {held.rotation_deg:.2f}°, "
        f"{held.pixels:.2f} px ({result.method}, best of {len(result.by_method)} methods)",
    ]
    lines += [
        f"  hurts         {name}: off by {error:.1f} mm" for name, error in result.outliers()[:5]
    ]
    lines += [f"  perhaps       {words}" for words in result.explanations]
    lines.append(f"  figure        {picture}")
    return lines


def _not_found(found: BoardSightings) -> str:
    if not found.missed:
        return ""
    names = ", ".join(found.missed[:5]) + (", …" if len(found.missed) > 5 else "")
    return f"; no board in {len(found.missed)} ({names})"


def age(days: float) -> str:
    """Return an age [days] in words."""
    if days < 1:
        return "today"
    return "1 day" if days < 2 else f"{days:.0f} days"


def quality(part: Any) -> str:
    """Return how good a calibrated part is, in words."""
    if "rms_px" in part:
        return f"{part['rms_px']:.2f} px RMS, {part['width']}x{part['height']}"
    if "held_out_mm" in part:
        return f"{part['held_out_mm']:.1f} mm held out, {part['setup'].replace('_', ' ')}"
    if "latency_s" in part:
        low, high = part["interval_s"]
        return f"{part['latency_s'] * 1e3:.1f} ms ({low * 1e3:.1f} to {high * 1e3:.1f})"
    return str(part.get("file", ""))
