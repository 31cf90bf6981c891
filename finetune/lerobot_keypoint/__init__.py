"""A small policy that sees: pictures and joints in, a chunk of joint targets out.

Registered with LeRobot as `keypoint`; its own commands import it by

    lerobot-eval --keypoint.discover_packages_path=gaploop.finetune.lerobot_keypoint \
        --policy.path=me/pick_place …

Each picture goes through a small convolutional network that ends in a spatial softmax (Levine et
al. 2016, arXiv:1504.00702): where in the picture something is, finer than a pixel, which is what
few demonstrations can teach an arm. Where it aims, a small window is cut out around that very place
and looked at by itself: how a cube is turned shows in a few pixels and is hard to see wherever in
the picture they may be (without windows, yaw was never learned here). An episode's first picture is
seen beside the present one: it shows what the arm hides later.

From both, the network estimates a few numbers that pretraining on simulated takes teaches to be
where things are (`poses`); they and everything else are what the chunk of actions is worked out
from, in one pass, with the loss of ACT (Zhao et al. 2023, arXiv:2304.13705), masked L1.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from lerobot.configs import NormalizationMode, PreTrainedConfig
from lerobot.optim import AdamWConfig, CosineDecayWithWarmupSchedulerConfig
from lerobot.policies.pretrained import PreTrainedPolicy
from lerobot.processor import make_default_pre_post_processors
from lerobot.utils.constants import ACTION, OBS_STATE
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["KeypointConfig", "KeypointPolicy", "make_keypoint_pre_post_processors"]

FIRST: Final = -100_000
"""Frames back that a sample's other observation lies; LeRobot goes no further than an episode's
first frame."""
POSE_WEIGHT: Final = 0.5
"""Of the loss on `poses` beside that on normalised actions."""
AIM_WEIGHT: Final = 1.0
"""Of the loss on `aims`."""


@PreTrainedConfig.register_subclass("keypoint")
@dataclass
class KeypointConfig(PreTrainedConfig):  # type: ignore[misc]
    """How large the network is, what it looks at and how far ahead it plans.

    Attributes:
        chunk_size: actions predicted at once.
        n_action_steps: actions executed before the next prediction.
        resize_shape: height and width that pictures are scaled to [px]; multiples of 16.
        channels: of the convolutions.
        keypoints: places found in each picture.
        glimpses: places in each picture that are looked at closely.
        glimpse_px: width and height of these windows [px]; even.
        n_poses: numbers that say where things are, in the first picture and now.
        width: of the layers that work out actions.
        blocks: how many they are.
        optimizer_lr: peak learning rate of lerobot-train.
    """

    chunk_size: int = 40
    n_action_steps: int = 15
    resize_shape: tuple[int, int] = (96, 96)
    channels: int = 32
    keypoints: int = 32
    glimpses: int = 2
    glimpse_px: int = 16
    n_poses: int = 8
    width: int = 384
    blocks: int = 2
    optimizer_lr: float = 1e-3
    normalization_mapping: dict[str, NormalizationMode] = field(
        default_factory=lambda: {
            "VISUAL": NormalizationMode.IDENTITY,
            "STATE": NormalizationMode.MEAN_STD,
            "ACTION": NormalizationMode.MEAN_STD,
        }
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.n_action_steps <= self.chunk_size:
            raise ValueError(
                f"n_action_steps={self.n_action_steps} must be from 1 to chunk_size="
                f"{self.chunk_size}."
            )
        high, wide = self.resize_shape
        self.resize_shape = (high, wide)  # a saved one comes as a list
        if any(side % 16 or side < 32 for side in self.resize_shape):
            raise ValueError(
                f"resize_shape={self.resize_shape} must be multiples of 16 from 32 on."
            )

    def validate_features(self) -> None:
        """Check that there is something to look at."""
        if not self.image_features or self.robot_state_feature is None:
            raise ValueError("A keypoint policy needs observation.state and a picture.")

    def get_optimizer_preset(self) -> AdamWConfig:
        """Return what lerobot-train optimises with."""
        return AdamWConfig(lr=self.optimizer_lr, weight_decay=1e-4, grad_clip_norm=1.0)

    def get_scheduler_preset(self) -> CosineDecayWithWarmupSchedulerConfig:
        """Return how lerobot-train changes the rate."""
        return CosineDecayWithWarmupSchedulerConfig(
            peak_lr=self.optimizer_lr,
            decay_lr=self.optimizer_lr / 100,
            num_warmup_steps=200,
            num_decay_steps=10_000,
        )

    @property
    def observation_delta_indices(self) -> list[int]:
        """A sample shows an episode's first frame and the present one."""
        return [FIRST, 0]

    @property
    def action_delta_indices(self) -> list[int]:
        """A sample's chunk of actions."""
        return list(range(self.chunk_size))

    @property
    def reward_delta_indices(self) -> None:
        """No rewards."""
        return None


def make_keypoint_pre_post_processors(
    config: KeypointConfig, dataset_stats: dict[str, dict[str, Tensor]] | None = None
) -> tuple[Any, Any]:
    """Return the processors of a new policy, LeRobot's own."""
    made: tuple[Any, Any] = make_default_pre_post_processors(
        config, dataset_stats, normalizer_device=config.device
    )
    return made


class _Eye(nn.Module):
    """What one camera's pictures show: keypoints, how clear each is, an overview, and glimpses."""

    grid: Tensor
    cells: Tensor
    window: Tensor

    def __init__(self, config: KeypointConfig) -> None:
        super().__init__()
        width, (high, wide) = config.channels, config.resize_shape
        self.stem = nn.Conv2d(3, width, 8, stride=4, padding=2)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.conv3 = nn.Conv2d(width, width, 3, padding=1)
        self.heat = nn.Conv2d(width, config.keypoints, 1)
        self.far1 = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.far2 = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.overview = nn.Linear(width * (high // 16) * (wide // 16), 64)
        self.aim = nn.Conv2d(width, config.glimpses, 1)
        self.near1 = nn.Conv2d(3, 24, 3, padding=1)
        self.near2 = nn.Conv2d(24, 48, 3, stride=2, padding=1)
        self.close = nn.Linear(48 * (config.glimpse_px // 2) ** 2, 64)
        first = 3 * config.keypoints + 64
        self.aims = slice(first, first + 2 * config.glimpses)
        """Where in the features the places are that it aims at."""
        self.features = first + config.glimpses * (2 + 64)
        self._keep("grid", [torch.linspace(-1, 1, side // 4) for side in (wide, high)])
        # As grid_sample counts: -1 and 1 are the outer edges of the outer pixels.
        cells = [(torch.arange(n // 4) + 0.5) * (8.0 / n) - 1.0 for n in (wide, high)]
        self._keep("cells", cells)
        offset = torch.arange(config.glimpse_px) - (config.glimpse_px - 1) / 2
        self._keep("window", [offset * (2.0 / n) for n in (wide, high)])

    def _keep(self, name: str, sides: list[Tensor]) -> None:
        """Keep places in the order of pixels, column and row, shape (n, 2)."""
        across, down = torch.meshgrid(*sides, indexing="xy")
        places = torch.stack([across.flatten(), down.flatten()], 1)
        self.register_buffer(name, places, persistent=False)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return features of pictures in [0, 1], shape (b, 3, h, w), as shape (b, features)."""
        seen = functional.relu(self.stem(4.0 * pictures - 2.0))
        seen = functional.relu(self.conv1(seen))
        seen = seen + functional.relu(self.conv2(seen))
        seen = seen + functional.relu(self.conv3(seen))
        heat = self.heat(seen).flatten(2).float()
        where = torch.softmax(heat, -1) @ self.grid
        clear = heat.amax(-1) - heat.mean(-1)
        far = functional.relu(self.far2(functional.relu(self.far1(seen))))
        overview = functional.relu(self.overview(far.flatten(1))).float()
        aims = torch.softmax(self.aim(seen).flatten(2).float(), -1) @ self.cells
        # What is seen in windows around the places that it aims at.
        side = round(len(self.window) ** 0.5)
        places = aims[:, :, None] + self.window
        cut = functional.grid_sample(
            pictures.float(), places, padding_mode="border", align_corners=False
        )
        cut = cut.transpose(1, 2).reshape(-1, 3, side, side)
        near = functional.relu(self.near2(functional.relu(self.near1(4.0 * cut - 2.0))))
        close = functional.relu(self.close(near.flatten(1))).float().view(len(pictures), -1)
        return torch.cat([where.flatten(1), 0.1 * clear, overview, aims.flatten(1), close], 1)


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(functional.gelu(self.up(self.norm(x))))
        return y


class KeypointPolicy(PreTrainedPolicy):  # type: ignore[misc]
    """The policy; pictures of any size, first one of an episode remembered until `reset`."""

    config_class = KeypointConfig
    name = "keypoint"

    def __init__(self, config: KeypointConfig, **_kwargs: Any) -> None:
        super().__init__(config)
        config.validate_features()
        self.config = config
        self.cameras = sorted(config.image_features)
        eyes = [_Eye(config) for _ in self.cameras]
        self.eyes, self.aims = nn.ModuleList(eyes), eyes[0].aims
        n_seen = sum(eye.features for eye in eyes)
        n_state = config.robot_state_feature.shape[0]
        self.n_action = config.action_feature.shape[0]
        width = config.width
        self.first_poses = nn.Sequential(
            nn.Linear(n_seen, width), nn.GELU(), nn.Linear(width, config.n_poses)
        )
        self.now_poses = nn.Sequential(
            nn.Linear(2 * n_seen + n_state + config.n_poses, width),
            nn.GELU(),
            nn.Linear(width, config.n_poses),
        )
        self.join = nn.Linear(2 * n_seen + n_state + 2 * config.n_poses, width)
        self.blocks = nn.Sequential(*(_Block(width) for _ in range(config.blocks)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, config.chunk_size * self.n_action)
        self.reset()

    def reset(self) -> None:
        """Forget the episode before."""
        self._queue: deque[Tensor] = deque(maxlen=self.config.n_action_steps)
        self._first: Tensor | None = None

    def get_optim_params(self) -> Any:
        """Return everything: nothing in it is pretrained elsewhere."""
        return self.parameters()

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        """Return the loss of a batch whose observations are of first and present frames.

        Shapes: `observation.state` (b, 2, n), pictures (b, 2, 3, h, w), `action` (b, chunk, n);
        where it is known what is where, `poses` (b, 2, n_poses), normalised, and `aims` (b, 2,
        2 × glimpses), what the first camera should look at closely, column and row from -1 to 1.
        """
        first = self.look({k: batch[k][:, 0] for k in self.cameras})
        now = self.look({k: batch[k][:, 1] for k in self.cameras})
        return self.loss(first, now, batch[OBS_STATE][:, 1], batch)

    def loss(
        self, first: Tensor, now: Tensor, state: Tensor, batch: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the loss where pictures have been looked at; see `forward`."""
        chunk, poses = self.plan(first, now, state)
        kept = ~batch["action_is_pad"][..., None]
        error = (functional.l1_loss(chunk, batch[ACTION], reduction="none") * kept).sum()
        loss = error / (kept.sum() * self.n_action).clamp(min=1)
        said = {"l1_loss": float(loss.item())}
        if "poses" in batch:
            off = functional.smooth_l1_loss(poses, batch["poses"], beta=0.05)
            said["pose_loss"] = float(off.item())
            aims = torch.stack([seen[:, self.aims] for seen in (first, now)], 1)
            astray = functional.smooth_l1_loss(aims, batch["aims"], beta=0.02)
            loss = loss + POSE_WEIGHT * off + AIM_WEIGHT * astray
        return loss, said

    @torch.no_grad()
    def predict_action_chunk(self, batch: dict[str, Tensor], **_kwargs: Any) -> Tensor:
        """Return normalised actions, shape (b, chunk, n_action), of present observations."""
        self.eval()
        now = self.look({k: batch[k] for k in self.cameras})
        if self._first is None or self._first.shape != now.shape:
            self._first = now
        return self.plan(self._first, now, batch[OBS_STATE])[0]

    @torch.no_grad()
    def select_action(self, batch: dict[str, Tensor], **_kwargs: Any) -> Tensor:
        """Return the next normalised action, shape (b, n_action)."""
        if not self._queue:
            chunk = self.predict_action_chunk(batch)
            self._queue.extend(chunk[:, : self.config.n_action_steps].transpose(0, 1))
        return self._queue.popleft()

    def look(self, pictures: dict[str, Tensor]) -> Tensor:
        """Return what pictures show, shape (b, n); by camera, uint8 or in [0, 1], (b, 3, h, w)."""
        seen = []
        for camera, eye in zip(self.cameras, self.eyes, strict=True):
            given = pictures[camera]
            if not given.is_floating_point():
                given = given.float() / 255.0
            if tuple(given.shape[-2:]) != self.config.resize_shape:
                given = functional.interpolate(given, self.config.resize_shape, mode="area")
            seen.append(eye(given))
        return torch.cat(seen, 1)

    def plan(self, first: Tensor, now: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return normalised chunks, (b, chunk, n_action), and poses, (b, 2, n_poses), of looks."""
        before = self.first_poses(first)
        known = torch.cat([first, now, state], 1)
        after = self.now_poses(torch.cat([known, before], 1))
        x = self.join(torch.cat([known, before, after], 1))
        x = self.head(self.norm(self.blocks(x)))
        chunk = x.view(-1, self.config.chunk_size, self.n_action).float()
        return chunk, torch.stack([before, after], 1).float()
