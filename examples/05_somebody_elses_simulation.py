"""A policy in metaworld: how often it succeeds, what costs it success, is another one better?

Nothing here knows gaploop's own cell. The policy that ships with metaworld stands for yours, a
slower hand of it for the candidate; both are simulation, whatever is injected. In an environment
with metaworld (docs/start/my_simulation.md, or `make test-worlds` in a checkout):

    python examples/05_somebody_elses_simulation.py
"""

from pathlib import Path
from typing import Any

import yaml

import gaploop

ENV = {
    "gym": "metaworld:Meta-World/MT1",
    # Nobody looks at pictures here, which are slow to draw.
    "kwargs": {"env_name": "pick-place-v3", "seed": 0, "render_mode": None},
}
POLICY = "metaworld.policies:SawyerPickPlaceV3Policy"
# The station: its commands arrive late. Only the simulator knows it.
GAPS = {"actuator_response.latency": 0.6}


CANDIDATE = f"{Path(__file__).stem}:Slower"


class Slower:
    """The same policy at 0.4 of its speed; a new one for every episode."""

    def __init__(self) -> None:
        from metaworld.policies import SawyerPickPlaceV3Policy

        self._usual = SawyerPickPlaceV3Policy()

    def get_action(self, observation: Any) -> Any:
        action = self._usual.get_action(observation)
        action[:3] *= 0.4
        return action


def main(out: Path, n: int = 10) -> str:
    """Measure, vary, demonstrate, compare; return the gate's verdict."""
    plain = gaploop.evaluate(policy={"path": POLICY}, env=ENV, n=n)
    late = gaploop.evaluate(policy={"path": POLICY}, env=ENV, gaps=GAPS, n=n)
    print(f"As it is {plain.total}, with late commands {late.total}.")

    # What helps? Here slower motion. Its successes at the station are demonstrations.
    takes = {"root": out / "takes", "single_task": "Bring the puck to the goal"}
    shown = gaploop.evaluate(policy={"path": CANDIDATE}, env=ENV, gaps=GAPS, n=n, dataset=takes)
    print(f"Slower {shown.total}; {shown.successes} demonstrations in {out / 'takes'}.")

    # May it replace the other? Equal scenes, in turn, until the answer is clear.
    task = {
        "task": "pick place", "env": ENV, "gaps": GAPS, "success_check": "script",
        "min_pass_rate": 0.3,
    }  # fmt: skip
    rules = {
        "gain": 0.5, "max_pairs": 20, "baseline_rate": 0.2,
        "retention_margin": 0.3, "sim_pairs": 20,  # nothing forgotten without the gap: coarsely
    }  # fmt: skip
    suite = {"name": "metaworld", "tasks": [task], "rules": rules}
    (out / "suite.yaml").write_text(yaml.safe_dump(suite))
    result = gaploop.gate(POLICY, CANDIDATE, suite=out / "suite.yaml", output_dir=out / "gate")
    print(f"{result.verdict.value}. {result.message}")
    return str(result.verdict.value)


if __name__ == "__main__":
    folder = Path("outputs/somebody_elses_simulation")
    folder.mkdir(parents=True, exist_ok=True)
    main(folder)
