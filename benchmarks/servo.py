"""`benchmarks servo`: how well logs of a real servo tell what it is. Servo-level, not simulated.

A servo under position control swings a pendulum; its logs hold the time, the goal and the position,
and what was set up: proportional gain, mass, length. From the goals alone, open loop:

- *fit*: one set of parameters for all logs, and the error on gains and on masses that were left out
  of the fit, beside the actuator of the SO-101 model that the embedded cell has.
- *interval*: each bench's gain as if unknown, by a model fitted to the other gains; how often the
  90 % interval holds the true one.
- *one log*: is its gain too low, does it carry more than was said, is it late, or nothing of it? A
  low gain is told as twice what it was, a payload as one of the lighter masses, a delay by goals
  that are noted earlier than they came. Each is fitted alone and all together; logistic regression
  weighs what they explain, learned on other gains, masses or lengths than the log's.

The model: a brushed motor behind a duty cycle, `kp` times the error with damping and a start-up
duty, clipped; friction of Coulomb, Stribeck and load (Duclusaud et al. 2024, "Extended friction
models for the physics simulation of servo actuators", arXiv 2410.08650). A log whose trajectory is
`lift_and_drop` has torque off after 2 s.

--data is a parquet file with the columns `log t position_rad goal_rad kp mass_kg length_m
trajectory repeat input_volts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.stats import t as student

from gaploop.core.errors import UnusableInputError
from gaploop.core.messages import FloatArray
from gaploop.scripts import options

if TYPE_CHECKING:
    from benchmarks.bench import BenchConfig

STEP_S: Final = 0.002
SAMPLE_S: Final = 0.01
GRAVITY_M_S2: Final = 9.81
DROP: Final = "lift_and_drop"
DROP_S: Final = 2.0
CONFIDENCE: Final = 0.90
COLUMNS: Final = (
    *("log", "t", "position_rad", "goal_rad", "kp", "mass_kg", "length_m"),
    *("trajectory", "repeat", "input_volts"),
)

PARAMETERS: Final[Mapping[str, tuple[str, float, float, float]]] = {
    "gain": ("duty/(kp rad)", 0.25, 0.01, 3.0),
    "damping_gain": ("duty s/rad", 0.1, 0.0, 1.0),
    "start_duty": ("duty", 0.05, 0.0, 0.3),
    "top_duty": ("duty", 0.97, 0.3, 1.0),
    "torque_constant": ("N m/A", 2.3, 0.3, 10.0),
    "resistance": ("ohm", 5.0, 0.5, 30.0),
    "armature": ("kg m^2", 0.026, 0.001, 0.3),
    "viscous": ("N m s/rad", 0.05, 0.0, 3.0),
    "coulomb": ("N m", 0.1, 0.0, 1.0),
    "stribeck": ("N m", 0.05, 0.0, 1.0),
    "stribeck_speed": ("rad/s", 0.5, 0.01, 3.0),
    "load_friction": ("N m/(N m)", 0.2, 0.0, 0.9),
    "delay": ("s", 0.03, 0.0, 0.1),
    "zero": ("rad", 0.0, -0.2, 0.2),
    "lever_mass": ("kg", 0.1, 0.0, 0.5),
}
"""Name to unit, where the fit starts, and its bounds."""
FAULTS: Final = ("nominal", "gain", "payload", "delay")
_PRIOR: Final = np.array([0.5, 0.5, 0.05, 0.03])
"""One standard deviation of a log's own log gain ratio, log mass ratio, delay [s], zero [rad]."""
_STEPS: Final = np.array([0.05, 0.05, 0.006, 0.01])
_LONGEST: Final = np.array([0.4, 0.4, 0.03, 0.02])
_NOISE_RAD: Final = 0.08
"""The model's error, lasting over some samples: what a log's own estimate must allow for."""
_OUTLIER_RAD: Final = 0.05
_SHRINKAGE: Final = 0.05
"""Of the regression's weights, as scikit-learn's C. This and the next were chosen on these logs,
groups left out: too few to hold some back for it."""
_NAMED_BELOW: Final = 0.27
"""Probability of nothing being wrong below which a fault is named."""
_GRIDS: Final = ("goal_rad", "position_rad")
_FLAT: Final = ("kp", "mass_kg", "length_m", "volts", "trajectory", "repeat")


@dataclass(frozen=True)
class Logs:
    """Logs on one grid of time; every array has one entry, or column, a log.

    Attributes:
        goal_rad: shape (n_steps, n_logs), every `STEP_S`, held between two samples.
        position_rad: shape (n_samples, n_logs), every `SAMPLE_S`.
        kp: proportional gain, as the servo's register has it.
        is_off: torque goes off after `DROP_S`.
    """

    goal_rad: FloatArray
    position_rad: FloatArray
    kp: FloatArray
    mass_kg: FloatArray
    length_m: FloatArray
    volts: FloatArray
    trajectory: NDArray[np.str_]
    repeat: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.kp)

    @property
    def is_off(self) -> NDArray[np.bool_]:
        """Which logs have torque off after `DROP_S`."""
        return np.asarray(self.trajectory == DROP)

    def take(self, which: NDArray[Any]) -> Logs:
        """Return some of them."""
        columns = (self.goal_rad[:, which], self.position_rad[:, which])
        rest = (self.kp, self.mass_kg, self.length_m, self.volts, self.trajectory, self.repeat)
        return Logs(*columns, *(values[which] for values in rest))


def read_logs(path: Path) -> Logs:
    """Read logs from a parquet file.

    Raises:
        UnusableInputError: there is none, or it lacks a column.
    """
    import pandas as pd

    if not path.is_file():
        raise UnusableInputError(f"--data={path} is no file. Name a parquet file of servo logs.")
    table = pd.read_parquet(path)
    if missing := [name for name in COLUMNS if name not in table]:
        raise UnusableInputError(f"{path} lacks the columns {', '.join(missing)}.")
    logs = [log for _, log in table.groupby("log")]
    longest_s = min(float(log.t.iloc[-1]) for log in logs)
    steps = np.arange(round(longest_s / STEP_S) + 1) * STEP_S
    samples = np.arange(int(longest_s / SAMPLE_S)) * SAMPLE_S
    goals, positions = [], []
    for log in logs:
        t_s, goal_rad = log.t.to_numpy(), log.goal_rad.to_numpy()
        goals.append(goal_rad[np.maximum(np.searchsorted(t_s, steps, side="right") - 1, 0)])
        positions.append(np.interp(samples, t_s, log.position_rad.to_numpy()))
    first = table.groupby("log").first()
    return Logs(
        np.stack(goals, 1).astype(float),
        np.stack(positions, 1),
        first.kp.to_numpy(float),
        first.mass_kg.to_numpy(float),
        first.length_m.to_numpy(float),
        table.groupby("log").input_volts.median().to_numpy(float),
        first.trajectory.to_numpy(str),
        first["repeat"].to_numpy(int),
    )


def simulate(p: Mapping[str, float], logs: Logs, own: FloatArray | None = None) -> FloatArray:
    """Swing the pendulums open loop; return positions as in the logs [rad].

    Args:
        p: `PARAMETERS` and their values.
        logs: goals, what is set up, and where each begins.
        own: what a log differs by, shape (n_logs, 4), as `_PRIOR` has it.
    """
    own = np.zeros((len(logs), 4)) if own is None else own
    mass_kg = logs.mass_kg * np.exp(own[:, 1])
    inertia = mass_kg * logs.length_m**2 + p["armature"] + p["lever_mass"] * logs.length_m**2 / 3
    weight_nm = GRAVITY_M_S2 * logs.length_m * (mass_kg + p["lever_mass"] / 2)
    stiffness = logs.kp * np.exp(own[:, 0]) * p["gain"]
    torque_nm = p["torque_constant"] / p["resistance"] * logs.volts
    brake = p["torque_constant"] ** 2 / p["resistance"]
    late = np.clip(p["delay"] + own[:, 2], 0.0, 0.3) / STEP_S
    whole, part = np.floor(late).astype(int), late % 1.0
    every, columns = round(SAMPLE_S / STEP_S), np.arange(len(logs))
    off_at = np.where(logs.is_off, (DROP_S + p["delay"]) / STEP_S, np.inf)
    q, speed = logs.position_rad[0].copy(), np.zeros(len(logs))
    seen = np.empty_like(logs.position_rad)
    for k in range(len(seen) * every):
        if k % every == 0:
            seen[k // every] = q
        after = logs.goal_rad[np.maximum(k - whole, 0), columns]
        before = logs.goal_rad[np.maximum(k - whole - 1, 0), columns]
        error = (1 - part) * after + part * before - q + p["zero"] + own[:, 3]
        duty = stiffness * error - p["damping_gain"] * speed
        duty += p["start_duty"] * np.tanh(error / 0.01)
        on = k <= off_at
        motor_nm = torque_nm * np.clip(duty, -p["top_duty"], p["top_duty"]) * on
        damping = brake * on + p["viscous"]
        friction_nm = p["coulomb"] + p["stribeck"] * np.exp(-((speed / p["stribeck_speed"]) ** 2))
        friction_nm = friction_nm + p["load_friction"] * np.abs(motor_nm - brake * on * speed)
        # Damping and friction implicitly: friction stops at most what moves.
        whole_inertia = inertia + STEP_S * damping
        moved = (inertia * speed + STEP_S * (motor_nm - weight_nm * np.sin(q))) / whole_inertia
        slowed = np.maximum(np.abs(moved) - STEP_S * friction_nm / whole_inertia, 0.0)
        speed = np.sign(moved) * slowed
        q = q + STEP_S * speed
    return seen


def shipped_error_rad(logs: Logs) -> float:
    """Return the mean error of the actuator that the embedded SO-101 has, on the same goals [rad].

    Its gain is one for all; torque off isn't in it, so those logs end there.
    """
    import mujoco

    from gaploop.sim.cell import SimCell

    model = SimCell("pick_place").model
    joint = model.jnt_dofadr[model.actuator_trnid[0, 0]]
    errors = []
    for k in range(len(logs)):
        mass_kg, length_m = logs.mass_kg[k], logs.length_m[k]
        stiffness, brake = model.actuator_gainprm[0, 0], -model.actuator_biasprm[0, 2]
        top_nm = model.actuator_forcerange[0, 1]
        pendulum = mujoco.MjModel.from_xml_string(f"""<mujoco>
            <option timestep="{STEP_S / 4}" integrator="implicitfast"/>
            <worldbody><body><joint name="j" axis="0 1 0" armature="{model.dof_armature[joint]}"
              damping="{model.dof_damping[joint]}" frictionloss="{model.dof_frictionloss[joint]}"/>
              <geom type="sphere" size="0.001" mass="{mass_kg}" pos="0 0 -{length_m}"/></body>
            </worldbody><actuator><position joint="j" kp="{stiffness}" kv="{brake}"
              forcerange="-{top_nm} {top_nm}"/></actuator></mujoco>""")
        data = mujoco.MjData(pendulum)
        data.qpos[0] = logs.position_rad[0, k]
        until = len(logs.position_rad)
        until = min(until, round(DROP_S / SAMPLE_S)) if logs.is_off[k] else until
        every = round(SAMPLE_S / STEP_S)
        for sample in range(until):
            errors.append(abs(data.qpos[0] - logs.position_rad[sample, k]))
            for step in range(every):
                data.ctrl[0] = logs.goal_rad[sample * every + step, k]
                mujoco.mj_step(pendulum, data, 4)
    return float(np.mean(errors))


def fit(logs: Logs, start: Mapping[str, float], free: Sequence[str]) -> dict[str, float]:
    """Return the parameters with which the logs are followed best.

    Args:
        logs: what to follow.
        start: where to begin; those not in `free` stay so.
        free: names of the parameters to fit.
    """
    low, high = (np.array([PARAMETERS[name][k] for name in free]) for k in (2, 3))
    x = np.clip([start[name] for name in free], low + 1e-6, high - 1e-6)

    def residuals(values: Any) -> FloatArray:
        p = {**start, **dict(zip(free, values.tolist(), strict=True))}
        return np.asarray((simulate(p, logs) - logs.position_rad)[::6].ravel())

    done = least_squares(
        residuals,
        x,
        bounds=(low, high),
        x_scale=np.maximum(np.abs(x), 0.02),
        loss="soft_l1",
        f_scale=_OUTLIER_RAD,
        diff_step=np.full(len(x), 1e-3),
        max_nfev=20,
    )
    return {**start, **dict(zip(free, done.x.tolist(), strict=True))}


def error_rad(p: Mapping[str, float], logs: Logs) -> float:
    """Return the mean absolute error, open loop [rad]."""
    return float(np.abs(simulate(p, logs) - logs.position_rad).mean())


def own_estimates(
    p: Mapping[str, float], logs: Logs, free: Sequence[int] = (0, 1, 2, 3)
) -> tuple[FloatArray, FloatArray]:
    """Return what each log differs by from what was said of it, and how far off it stays.

    Args:
        p: the shared parameters.
        logs: what to follow.
        free: which of `_PRIOR` may differ.

    Returns:
        Differences as `_PRIOR`, shape (n_logs, 4), and misfits, outliers tamed, shape (n_logs,).
    """
    which, own = list(free), np.zeros((len(logs), 4))
    prior, longest = _PRIOR[which], _LONGEST[which]
    for turn in range(6):
        seen = simulate(p, logs, own)
        left = logs.position_rad - seen
        change = [
            (simulate(p, logs, own + np.eye(4)[j] * _STEPS[j]) - seen) / _STEPS[j] for j in which
        ]
        jacobian, weight = np.stack(change, 2), 1 / (1 + (left / (2 * _OUTLIER_RAD)) ** 2)
        square = np.einsum("tni,tn,tnj->nij", jacobian, weight, jacobian) / _NOISE_RAD**2
        square += np.diag(1 / prior**2)
        slope = np.einsum("tni,tn,tn->ni", jacobian, weight, left) / _NOISE_RAD**2
        slope -= own[:, which] / prior**2
        step = np.linalg.solve(square, slope[..., None])[..., 0]
        own[:, which] += np.clip(step, -longest, longest) * (1.0 if turn < 4 else 0.6)
    left = logs.position_rad - simulate(p, logs, own)
    return own, np.log1p((left / (2 * _OUTLIER_RAD)) ** 2).sum(0)


def evidence(p: Mapping[str, float], logs: Logs) -> FloatArray:
    """Return what tells each log's fault, shape (n_logs, 13).

    Differences with all free and with one fault free at a time (a zero always is), by how much each
    alone explains the log better than the zero does, and by how much worse than the best.
    """
    own, _ = own_estimates(p, logs)
    alone = [own_estimates(p, logs, (j, 3)) for j in range(3)]
    _, without = own_estimates(p, logs, (3,))
    misfits = np.stack([misfit for _, misfit in alone], 1)
    better = np.log1p(np.maximum(without[:, None] - misfits, 0.0))
    found = [found[:, j] for j, (found, _) in enumerate(alone)]
    return np.column_stack([own, *found, better, misfits - misfits.min(1, keepdims=True)])


def gain_intervals(gains: FloatArray, logs: Logs) -> tuple[list[bool], list[float]]:
    """Return of each bench whether its interval holds the true gain, and the interval's ratio.

    A bench is a gain, a mass and a length; its trajectories are the repetitions. The model's own
    error is what the benches of other gains show.

    Args:
        gains: estimated over true gain of each log, as a logarithm.
        logs: the logs.
    """
    bench = np.stack([logs.kp, logs.mass_kg, logs.length_m], 1)
    benches = np.unique(bench, axis=0)
    rows = [np.flatnonzero((bench == b).all(1)) for b in benches]
    trajectories = np.unique(logs.trajectory)
    by_trajectory = np.array(
        [[np.median(gains[r[logs.trajectory[r] == t]]) for t in trajectories] for r in rows]
    )
    n, means = len(trajectories), by_trajectory.mean(1)
    wide = student.ppf(0.5 + CONFIDENCE / 2, n - 1)
    holds, ratios = [], []
    for k, b in enumerate(benches):
        model_error = np.mean(means[benches[:, 0] != b[0]] ** 2)
        half = wide * np.sqrt(by_trajectory[k].var(ddof=1) / n + model_error)
        holds.append(bool(abs(means[k]) <= half))
        ratios.append(float(np.exp(2 * half)))
    return holds, ratios


def faulty(logs: Logs, seed: int) -> tuple[Logs, NDArray[np.int64], NDArray[np.str_]]:
    """Return logs with something said of them that isn't so, each's place in `logs`, and what."""
    rng = np.random.default_rng(seed)
    told, where, what = [], [], []

    def tell(k: int, fault: str, **changed: Any) -> None:
        told.append(replace(logs.take(np.array([k])), **changed))
        where.append(k)
        what.append(fault)

    for k in range(len(logs)):
        tell(k, "nominal")
        early = round(rng.uniform(0.03, 0.08) / STEP_S)
        shifted = np.concatenate([logs.goal_rad[early:, k], np.repeat(logs.goal_rad[-1, k], early)])
        tell(k, "delay", goal_rad=shifted[:, None])
        if 2 * logs.kp[k] <= logs.kp.max():
            tell(k, "gain", kp=2 * logs.kp[k : k + 1])
        lighter = np.unique(logs.mass_kg[logs.mass_kg < logs.mass_kg[k] - 1e-3])
        if len(lighter):
            tell(k, "payload", mass_kg=rng.choice(lighter, 1))
    both = Logs(
        *(np.concatenate([getattr(one, name) for one in told], 1) for name in _GRIDS),
        *(np.concatenate([getattr(one, name) for one in told]) for name in _FLAT),
    )
    return both, np.array(where), np.array(what)


def told_apart(
    shown: FloatArray, what: NDArray[np.str_], group: FloatArray, kind: NDArray[np.str_]
) -> dict[str, Any]:
    """Score logistic regression on each log's evidence, learned from other groups.

    Args:
        shown: `evidence` of each log.
        what: the truth.
        group: what the learner must not have seen, such as the log's mass.
        kind: the trajectory, which decides what can be told: each has weights of its own beside
            those that all share.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    is_kind = kind[:, None] == np.unique(kind)
    inputs = np.column_stack([shown, *(shown * of[:, None] for of in is_kind.T), is_kind])
    shares = np.zeros((len(what), len(FAULTS)))
    for value in np.unique(group):
        judge = group == value
        learner = make_pipeline(
            StandardScaler(), LogisticRegression(C=_SHRINKAGE, max_iter=2000)
        ).fit(inputs[~judge], what[~judge])
        columns = [FAULTS.index(name) for name in learner.classes_]
        shares[np.ix_(judge, columns)] = learner.predict_proba(inputs[judge])
    faults = np.array(FAULTS[1:])[shares[:, 1:].argmax(1)]
    said = np.where(shares[:, 0] < _NAMED_BELOW, faults, "nominal")
    likeliest = np.array(FAULTS)[shares.argmax(1)] == what
    sure, right, nominal = shares.max(1), said == what, what == "nominal"
    bins = np.minimum((sure * 10).astype(int), 9)
    off = [
        abs(sure[bins == b].mean() - likeliest[bins == b].mean()) * (bins == b).mean()
        for b in set(bins)
    ]
    return {
        "right": float(right.mean()),
        "by_fault": {name: float(right[what == name].mean()) for name in FAULTS},
        "by_trajectory": {str(t): float(right[kind == t].mean()) for t in np.unique(kind)},
        "calibration_error": float(np.sum(off)),
        "named_where_nominal": float((said[nominal] != "nominal").mean()),
        "logs": len(what),
    }


def _left_out(logs: Logs, of: FloatArray) -> Iterator[tuple[float, NDArray[Any], NDArray[Any]]]:
    for value in np.unique(of):
        yield (
            float(value),
            np.flatnonzero((of != value) & (logs.repeat == 0)),
            np.flatnonzero(of == value),
        )


def measure(config: BenchConfig, folder: Path) -> dict[str, Any]:
    """Fit, leave out, and judge single logs."""
    del folder
    if config.data is None:
        raise UnusableInputError("Which logs? Name a parquet file with --data=FILE.")
    logs = read_logs(config.data)
    start = {name: spec[1] for name, spec in PARAMETERS.items()}
    folds = len(np.unique(logs.kp)) + len(np.unique(logs.mass_kg))
    result: dict[str, Any] = {"logs": len(logs), "evidence": "servo-level, real"}
    with options.progress("Fitting the servo", 2 * folds + 3) as advance:
        shared = fit(logs.take(np.flatnonzero(logs.repeat == 0)), start, tuple(PARAMETERS))
        advance()
        result["parameters"] = {
            name: {"value": shared[name], "unit": PARAMETERS[name][0]} for name in PARAMETERS
        }
        result["error_rad"] = error_rad(shared, logs)
        result["shipped_error_rad"] = shipped_error_rad(logs.take(np.flatnonzero(logs.repeat == 0)))
        advance()
        told, where, what = faulty(logs, config.seed)
        shown = np.zeros((len(what), 13))
        gains = np.zeros(len(logs))
        for group, of in (("kp", logs.kp), ("mass_kg", logs.mass_kg)):
            errors = {}
            for value, learn, judge in _left_out(logs, of):
                p = fit(logs.take(learn), shared, tuple(PARAMETERS))
                errors[f"{value:g}"] = error_rad(p, logs.take(judge))
                advance()
                if group == "kp":
                    rows = np.flatnonzero(np.isin(where, judge))
                    shown[rows] = evidence(p, told.take(rows))
                    gains[judge] = own_estimates(p, logs.take(judge))[0][:, 0]
                advance()
            result[f"left_out_{group}"] = errors
            result[f"left_out_{group}_mean_rad"] = float(np.mean(list(errors.values())))
        holds, ratios = gain_intervals(gains, logs)
        result["interval"] = {
            "benches": len(holds),
            "holds": float(np.mean(holds)),
            "median_high_over_low": float(np.median(ratios)),
        }
        result["one_log"] = {
            name: told_apart(shown, what, getattr(logs, name)[where], logs.trajectory[where])
            for name, of in (
                ("kp", logs.kp),
                ("mass_kg", logs.mass_kg),
                ("length_m", logs.length_m),
            )
        }
        advance()
    return result


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as a Markdown table."""
    interval = result["interval"]
    rows = {
        "error of one fit to all, open loop": f"{result['error_rad']:.4f} rad",
        "error on gains left out": f"{result['left_out_kp_mean_rad']:.4f} rad",
        "error on masses left out": f"{result['left_out_mass_kg_mean_rad']:.4f} rad",
        "error of the SO-101 model that ships": f"{result['shipped_error_rad']:.4f} rad",
        "90 % intervals that hold the true gain": (
            f"{interval['holds']:.0%} of {interval['benches']} benches, "
            f"high over low {interval['median_high_over_low']:.2f}"
        ),
    }
    for name, one in result["one_log"].items():
        rows[f"one log, {name} left out: right"] = (
            f"{one['right']:.1%} of {one['logs']}; ECE {one['calibration_error']:.3f}; something "
            f"named where nominal {one['named_where_nominal']:.1%}"
        )
    lines = [f"{result['logs']} logs of a real servo (servo-level)", "", "| | |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {value} |" for name, value in rows.items())])
