"""Signals of pictures (light, blobs, hands) and of the scene tracked in them: what was seen, what
moved, where the object ended, progress.
"""

import numpy as np

from gaploop.failure_analysis.signals.motion import longest_run
from gaploop.failure_analysis.signals.registry import known, signal, signals_read
from gaploop.failure_analysis.views.phases import (
    HELD_RAD,
    HOLD_S,
    main_grasp,
    scene_xy_m,
    task_progress,
    tool_and_object,
)
from gaploop.failure_analysis.views.view import TakeView, runs


def _pictures(view: TakeView, key: str) -> float:
    return known(view.pictures).values.get(key, np.nan)


signals_read("images", _pictures, (
    ("brightness", "", 4.0, "the picture's median grey is {value} of 255",
     "brightness", "Median grey level of the pictures, 0 to 255."),
    ("saturation", "", 5.0, "the median saturation is {value} of 255",
     "saturation", "Median HSV saturation, 0 to 255."),
    ("cast_red", "", 0.02, "red stands at {value} (log) to green",
     "cast_red", "Log ratio of the medians of red and green: the colour cast along red."),
    ("cast_blue", "", 0.03, "blue stands at {value} (log) to green",
     "cast_blue", "Log ratio of the medians of blue and green: the colour cast along blue."),
    ("sharpness", "", 0.06, "edges are {value} times as strong as the contrast", "sharpness",
     "99th percentile of the absolute Laplacian over the contrast, after light smoothing."),
    ("corner_light", "", 0.03, "corners are {value} times as bright as the middle",
     "corners", "Median grey of the corners over that of the middle: vignetting."),
    ("pixel_noise", "", 0.6, "still pixels vary by {value} grey levels",
     "noise", "Noise of one pixel, from what changes between pictures in still places."),
    ("light_swing_stops", "stops", 0.03, "the light changes by {value} in it", "swing_stops",
     "Spread (5th to 95th percentile) of the pictures' median grey over the episode, base 2 log. "
     "Flicker, clouds, a person's shadow, an exposure that regulates."),
    ("camera_shift_px", "px", 0.5, "the background stands {value} from its place", "shift_px",
     "Shift of the picture's middle against the reference background, in a 192 px picture."),
    ("camera_scale", "", 0.004, "the background appears {value} times its size", "scale",
     "Scale that lays the picture on the reference background; 1 is the usual distance."),
    ("camera_turn_rad", "rad", 0.004, "the background is turned by {value}",
     "turn_rad", "Turn of the picture against the reference background."),
    ("foreground_share", "share", 0.0015, "{value} of the start picture is unknown",
     "foreground_share",
     "Share of the first picture that is neither background, object nor target."),
    ("object_blobs", "", 0.15, "the start picture holds {value} object-like blobs",
     "object_blobs", "Number of blobs of the object's hue in the first picture."),
    ("object_area_ratio", "", 0.008, "the object's area is {value} of the target's",
     "area_ratio", "Largest object-like blob's area over the target's, in the first picture."),
    ("target_area_px", "px²", 4.0, "the target covers {value}", "target_area_px",
     "Area of the target in the first picture, of a 192 px picture: how far the table is."),
    ("object_aspect", "", 0.06, "the object is {value} times as long as wide",
     "object_aspect", "Sides of the smallest rectangle around the object, long over short."),
    ("object_fill", "", 0.03, "the object fills {value} of its rectangle", "object_fill",
     "Area of the object over that of the smallest rectangle around it; a disc fills 0.79."),
    ("hand_share", "share", 0.0015, "something skin-toned covers {value} of a picture",
     "hand_share", "Largest share of a picture that a new, skin-toned region covers."),
))  # fmt: skip


@signal("s", "scene", 0.02, "the camera's picture is up to {value} old")
def camera_age_s(view: TakeView) -> float:
    """95th percentile of the pictures' age when they were used, the oldest camera."""
    ages = [np.nanpercentile(a, 95) for a in view.take.frames.camera_age_s.values()
            if len(a) and np.isfinite(a).any()]  # fmt: skip
    return float(max(ages)) if ages else np.nan


JUMP_M = 0.012  # between two pictures: faster than anything here moves by itself


@signal("share", "scene", 0.03, "the object is hidden for {value} of the episode")
def hidden_share(view: TakeView) -> float:
    """Share of frames in which the tracker doesn't see the object."""
    return float((known(view.scene)[:, 5] < 0.5).mean())


@signal("s", "scene", 0.1, "the object is lost for {value} at a time")
def hidden_longest_s(view: TakeView) -> float:
    """Longest time for which the tracker doesn't see the object."""
    return longest_run(known(view.scene)[:, 5] < 0.5) / view.take.info.fps


@signal("Hz", "scene", 0.2, "the tracker loses the object at a rate of {value}")
def hidden_hz(view: TakeView) -> float:
    """How often the tracker loses sight of the object, per second: dropouts, not occlusion."""
    hidden = known(view.scene)[:, 5] < 0.5
    lost = np.count_nonzero(np.diff(hidden.astype(np.int8)) == 1)
    return float(lost * view.take.info.fps / len(hidden))


@signal("share", "scene", 0.02, "hidden for {value} with the gripper away")
def hidden_far_share(view: TakeView) -> float:
    """Share of the frames with the gripper away in which the object isn't seen."""
    seen = known(tool_and_object(view))
    return float((~seen.visible[~seen.near]).mean()) if (~seen.near).sum() >= 5 else np.nan


@signal("Hz", "scene", 0.1, "the detection jumps at {value}")
def jumps_hz(view: TakeView) -> float:
    """Detections that leap over 12 mm between frames with the gripper away, per second."""
    seen = known(tool_and_object(view))
    step = np.linalg.norm(np.diff(seen.object_m, axis=0), axis=1)
    far = ~seen.near[1:]
    return float((step[far] > JUMP_M).sum() / max(far.sum() / view.take.info.fps, 0.5))


@signal("m", "scene", 0.003, "the object moves {value} with no gripper near")
def moved_alone_m(view: TakeView) -> float:
    """Way the object goes, in smooth steps, before the first grasp and with the gripper away."""
    seen, grasp = known(tool_and_object(view)), main_grasp(known(view.motion))
    step = np.diff(seen.object_m, axis=0)
    usable = ~seen.near[1:] & seen.visible[1:] & seen.visible[:-1]
    if grasp is not None:
        usable &= seen.t_s[1:] < grasp.close_s
    usable &= np.linalg.norm(step, axis=1) < 3 * JUMP_M
    return float(np.linalg.norm(np.where(usable[:, None], step, 0.0).sum(axis=0)))


@signal("m", "scene", 0.003, "the object ends {value} from the target")
def end_distance_m(view: TakeView) -> float:
    """Distance of tracked object and target over the last 0.2 s; the target's median place."""
    item, target, visible = scene_xy_m(known(view.scene))
    last = max(1, round(0.2 * view.take.info.fps))
    if not visible[-last:].any():
        return np.nan  # the arm is still in the way
    place = np.median(target, axis=0)
    return float(np.linalg.norm(np.median(item[-last:], axis=0) - place))


@signal("m", "scene", 0.003, "the gripper closes {value} beside the object seen")
def grasp_offset_m(view: TakeView) -> float:
    """Horizontal distance of tool and tracked object when the gripper closes."""
    seen, grasp = known(tool_and_object(view)), known(main_grasp(known(view.motion)))
    index = int(np.searchsorted(seen.t_s, grasp.close_s).clip(0, len(seen.t_s) - 1))
    return float(np.linalg.norm(seen.tool_m[index, :2] - seen.object_m[index]))


@signal("m", "scene", 0.003, "the object lies {value} from where it was let go")
def release_offset_m(view: TakeView) -> float:
    """Distance of the tool at release and the object where it is tracked at the end."""
    seen, grasp = known(tool_and_object(view)), known(main_grasp(known(view.motion)))
    if not (grasp.released and grasp.held and seen.visible[-3:].any()):
        return np.nan
    index = int(np.searchsorted(seen.t_s, grasp.open_s).clip(0, len(seen.t_s) - 1))
    return float(np.linalg.norm(seen.tool_m[index, :2] - seen.object_m[-1]))


def _progress(view: TakeView, key: str) -> float:
    return float(getattr(known(task_progress(view)), key))


signals_read("scene", _progress, (
    ("way_left_m", "m", 0.005, "{value} of the way to the target is left", "remaining_path_m",
     "Way from tool over tracked object to tracked target at the end, on the table plane."),
    ("headway_stall_s", "s", 0.2, "no progress is made for the last {value}", "stalled_s",
     "Time since the way left last shrank by 5 mm."),
    ("way_lost_m", "m", 0.005, "{value} of the way is lost again", "lost_m",
     "Most that the way left has risen above its least: a drop, a shove, a second attempt."),
))  # fmt: skip


@signal("s", "motion", 0.1, "the jaws hold something for {value}")
def held_s(view: TakeView) -> float:
    """Time for which the jaws stop short of their command, counted from 0.3 s on."""
    motion = known(view.motion)
    if not motion.grippers:
        return np.nan
    starts, stops = runs(motion.short_rad > HELD_RAD)
    return float(np.maximum((stops - starts) / motion.rate_hz - HOLD_S, 0.0).sum())
