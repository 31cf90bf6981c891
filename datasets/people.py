"""People in pictures: found, counted, blurred in what leaves. A help: each detector misses some.

OpenCV's own detectors know faces from the front and the side, and people who stand upright. A
detector of the user's, as ONNX, takes their place. A box is blurred in the pictures around the one
that it was found in, too: a detector that misses in between, or a moment later, shows nobody.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import av
import cv2
import numpy as np

from gaploop.core.errors import UnusableInputError
from gaploop.core.files import read_json, sha256, write_json
from gaploop.core.messages import Image
from gaploop.datasets.edit.compose import DatasetPiece, EpisodeChange
from gaploop.datasets.layout import DatasetInfo, read_episodes
from gaploop.datasets.lerobot_read import pictures_at, pictures_of

type Box = tuple[int, int, int, int]
"""Left, top, width and height [pixels]."""
type Detector = Callable[[Image], list[Box]]
"""Takes an RGB picture, uint8, shape (height, width, 3)."""

RECORD: Final = "meta/gap/people.json"
SCHEMA: Final = "gaploop.people/1"
LOOK_S: Final = 0.2
"""Time between two pictures that are looked at [s]."""
HOLD_S: Final = 0.5
"""How long before and after a picture its boxes are blurred [s]."""
MARGIN: Final = 0.2
"""Share of a box that is blurred on each side of it besides."""
BLOCKS: Final = 6
"""So many values across are left of a box: no face can be told by 36 of them."""


@dataclass(frozen=True)
class PeopleDetector:
    """What finds people, with the name that the record states."""

    name: str
    find: Detector


def people_detector(choice: str) -> PeopleDetector | None:
    """Return what finds people: "true" for OpenCV's detectors, or an ONNX file; None for "false".

    Raises:
        UnusableInputError: no such file, or a network whose answer can't be read.
    """
    if choice.lower() in ("", "false"):
        return None
    path = Path(choice)
    if choice.lower() == "true":
        return PeopleDetector(f"OpenCV {cv2.__version__}, Haar cascades and HOG", _opencv())
    if not path.is_file():
        raise UnusableInputError(
            f"{path} isn't there. Give true for OpenCV's own detectors, or an ONNX file of yours."
        )
    return PeopleDetector(f"{path.name}, sha256 {sha256(path)[:12]}", _onnx(path))


STEP: Final = 1.2
"""Factor between two sizes that cascades look for; 1.1 takes twice as long."""
NEIGHBOURS: Final = 5
"""So many boxes about a face must agree. With OpenCV's 3, 3 of 18 pictures of robots had one."""
UPRIGHT: Final = 1.0
"""Least score of a person who stands; most of HOG's boxes below it show nobody."""


def _opencv() -> Detector:
    folder = Path(cv2.__file__).parent / "data"
    front, side = (
        cv2.CascadeClassifier(str(folder / f"haarcascade_{name}.xml"))
        for name in ("frontalface_alt2", "profileface")
    )
    upright = cv2.HOGDescriptor()
    upright.setSVMDetector(cv2.HOGDescriptor.getDefaultPeopleDetector())

    def find(picture: Image) -> list[Box]:
        grey = cv2.equalizeHist(cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY))
        height, width = grey.shape
        found = [
            *front.detectMultiScale(grey, STEP, NEIGHBOURS),
            *side.detectMultiScale(grey, STEP, NEIGHBOURS),
        ]
        # It knows faces that look to the left only.
        mirrored = side.detectMultiScale(cv2.flip(grey, 1), STEP, NEIGHBOURS)
        found += [(width - x - w, y, w, h) for x, y, w, h in mirrored]
        if height >= 128 and width >= 64:  # what HOG looks through
            boxes, scores = upright.detectMultiScale(picture, winStride=(8, 8), scale=1.1)
            found += [box for box, score in zip(boxes, np.ravel(scores), strict=True)
                      if score > UPRIGHT]  # fmt: skip
        return [(int(x), int(y), int(w), int(h)) for x, y, w, h in found]

    return find


SIDES: Final = (640, 416, 320, 1280)
"""Inputs that YOLO networks are exported for [pixels]."""
SURE: Final = 0.25
"""Least score of a box, as YOLO's own default."""
OVERLAP: Final = 0.5
"""Of two boxes that share more, the better one stays."""


def _onnx(path: Path) -> Detector:
    """Return a detector in YOLO's layout: a box, then scores, of which the first is a person's.

    From version 8 on: output (1, 4 + classes, boxes), boxes as centre and size in the input.
    """

    def answer(picture: Image, side: int) -> Any:
        blob = cv2.dnn.blobFromImage(picture, 1 / 255.0, (side, side))
        net.setInput(blob)
        return net.forward(net.getUnconnectedOutLayersNames())

    sides, loud = [], cv2.utils.logging.getLogLevel()
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # sizes are tried
    try:
        net = cv2.dnn.readNetFromONNX(str(path))
        for side in SIDES:
            try:
                made = answer(np.zeros((side, side, 3), np.uint8), side)
            except cv2.error:  # exported for another size
                continue
            if len(made) == 1 and made[0].ndim == 3 and 5 <= made[0].shape[1] < made[0].shape[2]:
                sides.append(side)
                break
    except cv2.error:
        pass
    finally:
        cv2.utils.logging.setLogLevel(loud)
    if not sides:
        raise UnusableInputError(
            f"{path} can't be used: it must be an ONNX file of a YOLO detector from version 8 on "
            f"(square input of a fixed size, output 1 x (4 + classes) x boxes, people or faces "
            "first). Export one with: yolo export model=… format=onnx dynamic=False"
        )
    side = sides[0]

    def find(picture: Image) -> list[Box]:
        height, width = picture.shape[:2]
        scale = side / max(height, width)
        shown = np.zeros((side, side, 3), np.uint8)
        small = cv2.resize(picture, (round(width * scale), round(height * scale)))
        shown[: small.shape[0], : small.shape[1]] = small
        rows = answer(shown, side)[0][0].T
        rows = rows[rows[:, 4] >= SURE]
        corner = rows[:, :2] - rows[:, 2:4] / 2
        boxes = np.hstack([corner, rows[:, 2:4]]) / scale
        kept = cv2.dnn.NMSBoxes(boxes.tolist(), rows[:, 4].tolist(), SURE, OVERLAP)
        return [tuple(boxes[i].astype(int).tolist()) for i in kept]

    return find


@dataclass(frozen=True)
class FoundPeople:
    """Boxes of one camera in one episode, by the picture that they were found in.

    Attributes:
        looked_at: how many pictures were looked at.
        hold: how many pictures before and after show the same box blurred.
    """

    boxes: Mapping[int, tuple[Box, ...]]
    looked_at: int
    hold: int

    @property
    def count(self) -> int:
        """How many boxes were found."""
        return sum(map(len, self.boxes.values()))

    def at(self, row: int) -> list[Box]:
        """Return the boxes to blur in a picture."""
        near = range(row - self.hold, row + self.hold + 1)
        return [box for k in near for box in self.boxes.get(k, ())]

    def blurred(self, picture: Image, row: int) -> Image:
        """Return a picture, shape (height, width, 3), with its boxes blurred."""
        picture = picture.copy()
        for x, y, w, h in self.at(row):
            left, top = max(0, int(x - MARGIN * w)), max(0, int(y - MARGIN * h))
            part = picture[top : int(y + h + MARGIN * h) + 1, left : int(x + w + MARGIN * w) + 1]
            if part.size:
                few = cv2.resize(part, (BLOCKS, BLOCKS), interpolation=cv2.INTER_AREA)
                part[:] = cv2.resize(few, part.shape[1::-1], interpolation=cv2.INTER_LINEAR)
        return picture

    def redraw(self, frame: av.VideoFrame, row: int) -> av.VideoFrame:
        """Return a frame with its boxes blurred; one without stays as it is."""
        if not self.at(row):
            return frame
        new = self.blurred(frame.to_ndarray(format="rgb24"), row)
        return av.VideoFrame.from_ndarray(new, format="rgb24").reformat(
            format=frame.format.name,
            dst_colorspace=frame.colorspace,
            dst_color_range=frame.color_range,
        )


def find_people(pictures: Iterable[Image], fps: float, detector: PeopleDetector) -> FoundPeople:
    """Look for people in an episode's pictures, in every `LOOK_S`."""
    every, boxes, looked_at = max(1, round(LOOK_S * fps)), dict[int, tuple[Box, ...]](), 0
    for row, picture in enumerate(pictures):
        if row % every == 0:
            looked_at += 1
            if found := detector.find(picture):
                boxes[row] = tuple(found)
    return FoundPeople(boxes, looked_at, round(HOLD_S * fps))


def colour_cameras(info: DatasetInfo) -> list[str]:
    """Return the features that hold colour pictures."""
    notes = {key: info.features[key].get("info") or {} for key in info.picture_keys}
    depth = ("is_depth_map", "video.is_depth_map")
    return [key for key, note in notes.items() if not any(note.get(word) for word in depth)]


def blurred(
    piece: DatasetPiece, detector: PeopleDetector, on_episode: Callable[[], None] = lambda: None
) -> tuple[dict[int, EpisodeChange], dict[str, dict[str, FoundPeople]]]:
    """Return what blurs the people in the chosen episodes, and by uid and camera whom it found.

    Raises:
        UnusableInputError: a camera keeps its pictures in the rows, or lacks some.
    """
    info, changes, every = (
        piece.info,
        dict[int, EpisodeChange](),
        dict[str, dict[str, FoundPeople]](),
    )
    for episode in (e for e in piece.held if e.index in piece.chosen):
        found = dict[str, FoundPeople]()
        for key in colour_cameras(info):
            pictures = pictures_of(info, episode, key)
            if key not in info.video_keys or pictures is None:
                raise UnusableInputError(
                    f"{info.root}: {key} of episode {episode.index} has no video, and only videos "
                    "can be blurred. Make one of pictures in rows: lerobot-edit-dataset "
                    "--operation.type=convert_image_to_video"
                )
            found[key] = find_people(pictures(), info.fps, detector)
        every[episode.info.uid] = found
        if people := {key: shown for key, shown in found.items() if shown.boxes}:
            changes[episode.index] = EpisodeChange(people=people)
        on_episode()
    return changes, every


def people_record(root: Path) -> dict[str, dict[str, Any]]:
    """Return the dataset's record: uid to the detector, and of each camera its count of boxes."""
    path = root / RECORD
    value = read_json(path) if path.exists() else {"schema": SCHEMA, "episodes": {}}
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise UnusableInputError(f"{path} is no record of blurred people. Restore it.")
    return dict(value["episodes"])


def note_people(
    root: Path, detector: PeopleDetector, found: Mapping[str, Mapping[str, FoundPeople]]
) -> None:
    """Add to a dataset's record which people were blurred: uid to camera to what was found."""
    episodes = people_record(root)
    for uid, cameras in found.items():
        boxes = {camera: people.count for camera, people in cameras.items()}
        looked_at = {camera: people.looked_at for camera, people in cameras.items()}
        episodes[uid] = {"detector": detector.name, "boxes": boxes, "pictures": looked_at}
    if found:
        (root / RECORD).parent.mkdir(parents=True, exist_ok=True)
        write_json(root / RECORD, {"schema": SCHEMA, "episodes": episodes})


PICTURES: Final = 5
"""Pictures of each camera and episode that are looked at to count people."""


def count_people(
    info: DatasetInfo, detector: PeopleDetector, on_episode: Callable[[], None] = lambda: None
) -> dict[int, tuple[int, int]]:
    """Return how many pictures show people, and how many were looked at, by episode.

    Raises:
        UnusableInputError: a picture can't be read.
    """
    counts = dict[int, tuple[int, int]]()
    for episode in read_episodes(info):
        rows = np.linspace(0, episode.length - 1, min(PICTURES, episode.length)).astype(int)
        shown = [
            picture
            for key in colour_cameras(info)
            for picture in pictures_at(info, episode, key, rows.tolist()).values()
        ]
        counts[episode.index] = (sum(bool(detector.find(p)) for p in shown), len(shown))
        on_episode()
    return counts
