"""The program: light until a command is known, one line for what a user can fix, never more."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fnmatch
import importlib
import io
import json
import logging
import re
import signal
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from urllib.error import URLError

import draccus
import pytest
from lerobot.robots.config import RobotConfig
from lerobot.teleoperators.config import TeleoperatorConfig

from gaploop.collect.lerobot_types import with_devices
from gaploop.core import progress
from gaploop.core.arms import ARMS
from gaploop.core.errors import DeviceError, GaploopError, UnusableInputError
from gaploop.core.platform_calls import signals_handled
from gaploop.scripts import cli, options
from gaploop.scripts._arguments import parse, require_inputs
from gaploop.scripts.former_names import FORMER, FORMER_OPTIONS, GONE
from gaploop.scripts.options import DatasetOptions, EnvOptions, PolicyOptions
from gaploop.scripts.teleoperate import DEVICES, TeleoperateConfig


@dataclass
class ArmConfig(draccus.ChoiceRegistry):
    """Stands for LeRobot's RobotConfig: a registry of device types."""


@ArmConfig.register_subclass("short")
@dataclass
class ShortConfig(ArmConfig):
    port: str
    reach_m: float = 0.3


@ArmConfig.register_subclass("long")
@dataclass
class LongConfig(ArmConfig):
    joints: int = 7


@dataclass
class MixOptions:
    real: float = 0.5
    batch: int = 8


@dataclass
class SomeConfig:
    """Do something.

    With a second paragraph.
    """

    way: Literal["up", "down"] = "up"
    """Which way."""
    dataset: DatasetOptions = field(default_factory=DatasetOptions)
    env: EnvOptions = field(default_factory=EnvOptions)
    policy: PolicyOptions = field(default_factory=PolicyOptions)
    mix: MixOptions = field(default_factory=lambda: MixOptions(real=0.25))
    arm: ArmConfig | None = None
    roots: list[Path] = field(default_factory=list)
    n: int = 50
    """How many."""
    rate: float | None = None
    json: bool = False
    output_dir: Path | None = None


def read(*argv: str, positional: tuple[str, ...] = ("dataset.root",)) -> Any:
    return parse(SomeConfig, argv, positional, "some")


def command(run: Callable[[Any], int], **constants: Any) -> types.ModuleType:
    module = types.ModuleType("some")
    own = {"SomeConfig": SomeConfig, "run": run, "EXAMPLE": "gaploop some DIR"}
    vars(module).update({**own, **constants})
    return module


@pytest.fixture
def unlogged() -> Iterator[None]:
    """Put back what `setup_logging` changes for the whole process."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    with warnings.catch_warnings():
        yield
    root.handlers[:] = before
    root.setLevel(level)


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from gaploop.scripts.cli import main; main(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *_, modules = done.stdout.splitlines()
    heavy = {"torch", "lerobot", "mujoco", "numpy", "pyarrow", "rich", "draccus"}
    assert not heavy & set(modules.split())


def test_python_runs_it_as_a_module() -> None:
    argv = [sys.executable, "-m", "gaploop", "--version"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("gaploop ")


def test_benchmarks_say_where_they_went(capsys: pytest.CaptureFixture[str]) -> None:
    """`gaploop bench` was a command; who calls it is told what to type instead."""
    for argv in (["bench"], ["bench", "cell", "--n=2"], ["bench", "--help"]):
        assert cli.main(argv) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "python -m benchmarks" in line
    assert "bench" not in cli.commands()


def test_help_lists_every_command_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in cli.commands():
        (line,) = [line for line in lines if line.startswith(f"  {name} ")]
        assert (said := line.removeprefix(f"  {name}").strip())
        assert '"""' not in said


@pytest.mark.parametrize("name", cli.commands())
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, "--help"]) == 0
    said = capsys.readouterr().out
    assert f"usage: gaploop {name}" in said
    assert "example:" in said
    assert f"gaploop {name}" in said.partition("example:")[2]
    assert "--config_path, --json: gaploop --help" in said
    # The emulator writes its link; others write nothing, or in the dataset.
    written = ("output_dir", "dataset.root", "link", "journal")
    assert name in ("serve", "push", "consent", "label", "teleoperate", "doctor") or any(
        f"  --{option}=" in said for option in written
    )


@pytest.mark.usefixtures("unlogged")
@pytest.mark.parametrize("name", cli.commands())
def test_every_command_refuses_an_unknown_option(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([name, "--jsn=true"]) == 2
    assert one_line(capsys).startswith(f"gaploop {name}: Unknown option --jsn. Did you mean --")


def test_a_former_name_runs_what_it_is_called_now(capsys: pytest.CaptureFixture[str]) -> None:
    for former, words in FORMER.items():
        assert former not in cli.commands()
        assert words[0] in cli.commands()
        assert cli.main([former, "--help"]) == 0
        said = capsys.readouterr()
        now = f"is now: gaploop {' '.join(words)}. The former name ends with 0.2."
        assert said.err == f"gaploop {former}: {now}\n"
        assert said.out.startswith(f"usage: gaploop {words[0]}")


def test_lerobots_options_are_told_what_does_the_same_here_all_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pasted = ["record", "--display_data=true", "--play_sounds", "false", "--robot.tipe=x"]
    assert cli.main(pasted) == UnusableInputError.exit_code
    assert one_line(capsys) == (
        "gaploop record: Unknown option --display_data (here: --display=window). And --play_sounds "
        "(here: leave it out, nothing is spoken). And --robot.tipe. Did you mean --robot.type? "
        "All: gaploop record --help=all"
    )


@pytest.mark.parametrize(("command", "option"), GONE)
def test_an_option_that_is_gone_names_what_is_there_instead(
    command: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, option, "here"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"gaploop {command}: {option} is gone: ")
    assert len(said.splitlines()) == 1


@pytest.mark.usefixtures("unlogged")
def test_a_former_option_is_taken_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["label", "--episode=3"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0] == ("gaploop label: --episode is now --episodes. The former name ends with 0.2.")
    assert "Which folder" in said[1]
    assert cli.main(["label", "--episode=3", "--episodes=4"]) == 2
    assert "Did you mean --episodes" in capsys.readouterr().err
    for command, renamed in FORMER_OPTIONS.items():
        assert not renamed or command in (*FORMER, *cli.commands())


@pytest.mark.parametrize(
    ("argv", "says"),
    [(["recrod"], "Did you mean 'record'"), (["--fast"], "The command comes first")],
)
def test_unknown_command_is_one_line(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 2
    assert says in one_line(capsys)


def test_options_have_lerobots_names_and_types() -> None:
    config = read(
        "DIR", "--dataset.repo_id=me/x", "--dataset.num_episodes", "3", "--policy.path=OUT/adapter",
        '--env.gaps={"contact_dynamics":0.6}', "--env.conditions={distractors: 4}", "--rate=1e-3",
        "--roots=[A, B]", "--way", "down",
    )  # fmt: skip
    assert config.dataset.root == Path("DIR")
    assert (config.dataset.repo_id, config.dataset.num_episodes) == ("me/x", 3)
    assert config.policy.path == "OUT/adapter"
    assert config.env.gaps == {"contact_dynamics": 0.6}
    assert config.env.conditions == {"distractors": 4}
    assert (config.rate, config.way, config.roots) == (1e-3, "down", [Path("A"), Path("B")])


@pytest.mark.parametrize(
    ("argv", "value"),
    [
        (("--json",), True),
        (("--json=true",), True),
        (("--json", "false"), False),
        (("--json", "DIR"), True),
        ((), False),
    ],
)
def test_bare_booleans(argv: tuple[str, ...], value: bool) -> None:
    config = read(*argv)
    assert config.json is value
    assert config.dataset.root == (Path("DIR") if "DIR" in argv else None)


@pytest.mark.parametrize("text", ["pick: the cube", "null hypothesis", "[x", "include me", "1", ""])
def test_text_is_taken_as_it_is_written(text: str) -> None:
    """Draccus reads text as YAML: an instruction with a colon became a mapping."""
    assert read(f"--dataset.single_task={text}").dataset.single_task == text


@pytest.mark.parametrize("serial", ["0123", "012345678", "00", "0", "123456789012", "ab01"])
def test_a_serial_number_stays_as_it_is_typed(serial: str, tmp_path: Path) -> None:
    """YAML 1.1 reads 0123 as octal: the camera of another serial number was looked for."""

    @dataclass
    class Config:
        cameras: dict[str, Any] = field(default_factory=dict)

    cameras = f"{{top: {{serial_number_or_name: {serial}}}}}"
    (tmp_path / "config.yaml").write_text(f"cameras: {cameras}\n")
    for given in (f"--cameras={cameras}", f"--config_path={tmp_path / 'config.yaml'}"):
        found = parse(Config, [given], (), "gaploop x")
        assert str(found.cameras["top"]["serial_number_or_name"]) == serial


def test_positionals_fill_their_options_in_order() -> None:
    both = ("way", "roots")
    assert read("down", "A", "B", positional=both).roots == [Path("A"), Path("B")]
    assert read("down", "A b", positional=both).roots == [Path("A b")]
    assert read("down", positional=both).way == "down"


@pytest.mark.parametrize("name", ["check", "convert", "edit", "identify", "label", "push"])
def test_a_folder_may_be_named_as_lerobot_names_it(name: str) -> None:
    module = importlib.import_module(f"gaploop.scripts.{name}")
    config_class = cli.config_class_of(module, name, [])
    config = parse(config_class, ["--dataset.root=A"], cli.positional(module), name)
    folder = next(f for f in ("roots", "root", "source", "folder") if hasattr(config, f))
    given = getattr(config, folder)
    assert [str(f) for f in (given if isinstance(given, list) else [given])] == ["A"]


def test_what_a_group_differs_in_stays_when_another_of_it_is_given() -> None:
    """Draccus falls back to the class's own defaults once any option of a group is given."""
    assert read("--mix.batch=4").mix == MixOptions(real=0.25, batch=4)
    assert read("--mix.real=0.1").mix == MixOptions(real=0.1, batch=8)


def test_a_type_brings_its_options() -> None:
    assert read("--arm.type=short", "--arm.port=/dev/a").arm == ShortConfig("/dev/a", 0.3)
    assert read("--arm.type", "long", "--arm.joints", "6").arm == LongConfig(6)
    assert read().arm is None


def test_a_file_is_read_and_the_command_line_wins(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("n: 7\nmix: {batch: 3}\narm: {type: short, port: x}\nenv: {task: pick_lift}\n")
    config = read(f"--config_path={file}", "--mix.batch=4", "--arm.reach_m=1")
    assert (config.n, config.mix, config.env.task) == (7, MixOptions(0.25, 4), "pick_lift")
    assert config.arm == ShortConfig("x", 1.0)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--nn=3"], "Did you mean --n?"),
        (["-n", "3"], "Did you mean --n?"),
        (["--num_episodes=3"], "Did you mean --dataset.num_episodes?"),
        (["A", "B"], "Unexpected argument 'B'"),
        (["--n"], "--n needs a value: --n=INT"),
        (["--n", "--json"], "--n needs a value"),
        (["--n=many"], "--n=many doesn't fit"),
        (["--n=2.5"], "--n=2.5 doesn't fit"),
        (["--rate=nan"], "--rate must be finite"),
        (["--rate=.inf"], "--rate must be finite"),
        (["--json=perhaps"], "--json=true|false"),
        (["--way=left"], "One of: down, up"),
        (["--env.gaps=5"], "--env.gaps=5 doesn't fit"),
        (["--env.gaps={"], "--env.gaps={ can't be read"),
        (["--env.gaps={contact: 0.5}"], "Did you mean 'contact_dynamics'"),
        (["--env.gaps={contact_dynamics: 5}"], "must be in [0, 1]"),
        (["--env.gaps={contact_dynamics: .nan}"], "must be finite"),
        (["--env.conditions={lighting: disco}"], "bright, cold, dim, nominal, side, warm"),
        (["--arm.type=shrt"], "Did you mean 'short'"),
        (["--arm.type=short"], "Missing: --arm.port=TEXT"),
        (["--arm.port=x"], "Unknown option --arm.port"),
        (["--arm.type=short", "--arm.prt=x"], "Did you mean --arm.port?"),
        (["--config_path=/none.yaml"], "/none.yaml not found"),
        (["--config_path"], "--config_path needs a value"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(argv: list[str], says: str) -> None:
    with pytest.raises(GaploopError) as caught:
        read(*argv)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_arm_without_its_port_is_told_before_lerobot_is_imported() -> None:
    """As LeRobot's classes have it, for every arm that is known."""
    with_devices(TeleoperateConfig, DEVICES)  # registers all types
    for group, base in {"robot": RobotConfig, "teleop": TeleoperatorConfig}.items():
        known = base.get_known_choices()
        for name in {name for arm in ARMS.values() for name in arm.robot_types} & set(known):
            ports = [f for f in dataclasses.fields(known[name]) if f.name == "port"]
            needs = any(f.default is f.default_factory is dataclasses.MISSING for f in ports)
            told = pytest.raises(UnusableInputError, match=rf"Missing: --{group}\.port")
            with told if needs else contextlib.nullcontext():
                require_inputs([f"--{group}.type={name}"], ())
            require_inputs([f"--{group}.type", name, f"--{group}.port=/dev/x"], ())


def test_an_unknown_key_in_a_file_is_named_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("dataset: {rot: x}\n")
    with pytest.raises(UnusableInputError, match=r"c\.yaml: unknown option 'dataset\.rot'"):
        read(f"--config_path={file}")


def raiser(error: BaseException) -> Callable[[], int]:
    def work() -> int:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (
            UnusableInputError("DIR not found.\nCheck the path."),
            2,
            "DIR not found. Check the path.",
        ),
        (DeviceError("No answer from id 3."), 2, "No answer from id 3."),
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(errno.ENOSPC, "No space left on device", "/x"), 2, "/x: No space left on device"),
        (URLError(OSError(-2, "Name or service not known")), 2, "Check the network"),
    ],
)
def test_errors_are_one_line_and_an_exit_code(
    error: BaseException, code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.guard("", raiser(error)) == code
    assert says in one_line(capsys)


def test_a_full_disk_is_said_in_the_systems_words(capsys: pytest.CaptureFixture[str]) -> None:
    """It read "[Errno 28] Error writing bytes to file. Detail: [errno 28] No space …"."""
    said = "Error writing bytes to file. Detail: [errno 28] No space left on device"
    assert cli.guard("gaploop", raiser(OSError(errno.ENOSPC, said))) == 2
    assert one_line(capsys).startswith("gaploop: No space left on device. ")


def test_a_bug_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        cli.guard("", raiser(ZeroDivisionError()))


def test_being_terminated_lets_go_of_what_is_held() -> None:
    """`lerobot-record` dies of SIGTERM with torque on: no handler, so nothing is cleaned up."""
    let_go = []

    def work() -> int:
        with contextlib.ExitStack() as held:
            held.callback(let_go.append, "torque")
            signal.raise_signal(signal.SIGTERM)
        return 0

    with pytest.raises(SystemExit) as caught:
        cli.guard("", work)
    assert (caught.value.code, let_go) == (143, ["torque"])
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT])
def test_a_closed_terminal_and_a_quit_let_go_too(number: signal.Signals) -> None:
    """Ctrl-\\ ended the program with a core dump, and the arm stayed under torque."""
    let_go = []

    def work() -> int:
        with contextlib.ExitStack() as held:
            held.callback(let_go.append, "torque")
            signal.raise_signal(number)
        return 0

    heeded = signals_handled([number], signal.SIG_DFL)  # the tests may run under nohup
    with heeded, pytest.raises(SystemExit) as caught:
        cli.guard("", work)
    assert (caught.value.code, let_go) == (128 + number, ["torque"])


@pytest.mark.usefixtures("unlogged")
def test_a_plug_in_that_ends_the_program_is_no_success() -> None:
    def run(_: object) -> int:
        raise SystemExit(0)

    with pytest.raises(GaploopError, match=r"sys\.exit"):
        cli.run_module(command(run), "some", [], "some")


@pytest.mark.usefixtures("unlogged")
@pytest.mark.parametrize("code", [0, 1, 3])
def test_the_commands_answer_is_the_exit_code(code: int) -> None:
    assert cli.run_module(command(lambda _: code), "some", [], "some") == code


@pytest.mark.usefixtures("unlogged")
def test_json_alone_stands_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    def run(config: SomeConfig) -> int:
        print("chatter of a library")
        options.emit(config.json, {"n": config.n, "rate": float("nan")}, "n is 3")
        return 0

    cli.run_module(command(run), "some", ["--json", "--n=3"], "some")
    said = capsys.readouterr()
    assert json.loads(said.out) == {"n": 3, "rate": None}
    assert "chatter" in said.err
    cli.run_module(command(run), "some", [], "some")
    assert "n is 3" in capsys.readouterr().out


def test_help_of_a_command_names_its_options_and_defaults() -> None:
    module = command(lambda _: 0, POSITIONAL="dataset.root")
    said = cli._command_help("gaploop some", module, SomeConfig, ["--arm.type", "short", "--help"])
    for words in (
        "usage: gaploop some [ROOT]", "Do something.", "With a second paragraph.",
        "--way=up|down", "Which way. (default: up)", "--mix.real=NUMBER", "(default: 0.25)",
        "--arm.type=long|short", "--arm.port=TEXT", "(required)", "example:\n  gaploop some DIR",
    ):  # fmt: skip
        assert words in said
    assert all(len(line) <= 100 for line in said.splitlines())


def test_rare_options_wait_for_help_all() -> None:
    module = command(lambda _: 0, RARE=("way", "mix.*"), EXAMPLE="gaploop some --mix.real=0.5")
    said = cli._command_help("gaploop some", module, SomeConfig, ["--help"])
    assert "--way=" not in said
    assert "--mix.real=" in said  # the example uses it
    last = said.splitlines()[-2]
    found = re.fullmatch(r"(\d+) more options?: gaploop some --help=all", last)
    assert found
    every = cli._command_help("gaploop some", module, SomeConfig, ["--help=all"])
    count = [text.count("\n  --") for text in (every, said)]
    assert count[0] - count[1] == int(found[1]) + 1  # and --json, which every command has
    assert "--way=" in every
    assert "--help=all" not in every


WORDLESS = re.compile(r"^  --([\w.]+)=\S+\n {8}\((?:default|required)", re.MULTILINE)


@pytest.mark.parametrize("name", cli.commands())
def test_what_is_rare_exists_and_every_option_says_what_it_does(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pattern that fits nothing is left over from an option that went."""
    module = importlib.import_module(f"gaploop.scripts.{cli.commands()[name].stem}")
    assert cli.main([name, "--help=all"]) == 0
    said = capsys.readouterr().out
    assert WORDLESS.findall(said) == []
    options = re.findall(r"^  --([\w.]+)=", said, re.MULTILINE)
    for pattern in getattr(module, "RARE", ()):
        assert any(fnmatch.fnmatchcase(option, pattern) for option in options), pattern


def test_options_of_the_embedded_cell_say_what_they_do(capsys: pytest.CaptureFixture[str]) -> None:
    """They are read from the docstrings of the devices' configs."""
    types = ["--robot.type=so101_sim", "--teleop.type=scripted"]
    assert cli.main(["teleoperate", *types, "--help=all"]) == 0
    said = capsys.readouterr().out
    assert "--robot.camera_hz=" in said
    assert WORDLESS.findall(said) == []


@pytest.mark.usefixtures("unlogged")
def test_logs_go_to_stderr_and_libraries_are_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    """An incident: what `gaploop/datasets` said was taken for the library of that name's."""
    progress.setup_logging()
    logging.getLogger("gaploop.x").info("ours")
    for name in progress.QUIET_LOGGERS:
        path = f"/venv/gaploop/{name}/x.py"
        for logger in ("gaploop.x", "root"):
            record = (logger, logging.WARNING, path, 1, f"{logger} in {name}", (), None)
            logging.getLogger(logger).handle(logging.LogRecord(*record))
    logging.getLogger("lerobot.x").warning("theirs")
    logging.getLogger("other").warning("another's")
    logging.getLogger("lerobot.x").error("trouble")
    said = capsys.readouterr()
    ours = [f"gaploop.x in {name}" for name in progress.QUIET_LOGGERS]
    assert said.err.splitlines() == ["ours", *ours, "another's", "trouble"]
    assert said.out == ""
    with contextlib.redirect_stderr(io.StringIO()) as bar:  # as Rich does while it draws one
        logging.getLogger("gaploop.x").info("above the bar")
    assert bar.getvalue() == "above the bar\n"
    assert capsys.readouterr().err == ""


def test_help_of_any_command_and_a_wrong_path_load_nothing_heavy() -> None:
    """Incidents: `gaploop doctor --help` took six seconds, importing torch to list robots;
    `gaploop gate base nowhere` fifteen, until it looked for the folder."""
    code = (
        "import contextlib, io, sys\n"
        "from gaploop.scripts import cli\n"
        "from gaploop.scripts._arguments import INPUTS, POLICIES\n"
        "with contextlib.redirect_stderr(io.StringIO()) as said:\n"
        "    cli.main(['gate', '--suite', '--json'])\n"
        "assert '--suite needs a value' in said.getvalue()\n"
        "for name in cli.commands():\n"
        "    with contextlib.redirect_stdout(io.StringIO()):\n"
        "        assert cli.main([name, '--help']) == 0, name\n"
        "    named = [(o, p) for o in POLICIES + INPUTS for p in ('gone', '[., gone]')]\n"
        "    for path in (f'--{option}={said}' for option, said in named):\n"
        "        with contextlib.redirect_stderr(io.StringIO()) as said:\n"
        "            assert cli.main([name, path]) == 2, (name, path)\n"
        "        assert 'gone not found' in said.getvalue(), (name, path)\n"
        "    heavy = {'torch', 'lerobot', 'pandas', 'scipy', 'mujoco'} & set(sys.modules)\n"
        "    assert not heavy, (name, heavy)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_names_the_device_types_that_there_are() -> None:
    """The help reads names off LeRobot's files; they are those that importing it registers."""
    from gaploop.collect.lerobot_types import named_registries, registries

    for named, real in zip(named_registries(), registries(), strict=True):
        known = set(real.get_known_choices())
        ours = {n for n, c in real.get_known_choices().items()
                if c.__module__.startswith(("lerobot.", "gaploop."))}  # fmt: skip
        assert ours <= set(named.get_known_choices()), known


def test_the_help_reads_a_module_beside_the_folder_that_it_once_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Incident: an update left a folder of bytecode; its types were gone from the help."""
    from gaploop.collect import lerobot_types

    monkeypatch.setattr(lerobot_types, "__file__", str(tmp_path / "collect/lerobot_types.py"))
    monkeypatch.setattr(lerobot_types, "OWN_PACKAGES", ("gaploop.sim.arms",))
    (tmp_path / "sim/arms/__pycache__").mkdir(parents=True)
    (tmp_path / "sim/arms.py").write_text('@RobotConfig.register_subclass("mine")\n')
    assert "mine" in lerobot_types.named_registries()[0].get_known_choices()


def test_piped_work_that_takes_long_tells_on_lines_what_it_waits_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Incident: a diagnosis of minutes, piped into a file, looked like a program that hangs."""
    pauses_s: list[float] = []
    told = threading.Event()

    def wait(pause_s: float) -> bool:
        pauses_s.append(pause_s)
        if len(pauses_s) == 3:
            told.set()
        return len(pauses_s) == 3

    with progress.lines_while(lambda: "Diagnosing: 3 of 40 …", wait):
        assert told.wait(60)
    assert pauses_s == [progress.FIRST_LINE_S, progress.NEXT_LINE_S, progress.NEXT_LINE_S]
    first, second = capsys.readouterr().err.splitlines()
    assert first == "Diagnosing: 3 of 40 …"
    assert second.startswith("Diagnosing: 3 of 40 …")


def test_at_a_terminal_what_goes_on_is_one_line_that_goes_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Incident: "is starting …" twice, and 20 s of imports in silence."""
    stream, told, turns = io.StringIO(), threading.Event(), iter((False, False))
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stream)

    def wait(_pause_s: float) -> bool:
        if over := next(turns, True):
            told.set()
        return over

    with progress.lines_while(lambda: "Loading torch …", wait):
        assert told.wait(60)
    assert stream.getvalue() == 2 * "\x1b[KLoading torch … 0 s\r" + "\x1b[K"


def test_progress_says_what_is_left_and_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Incident: "Diagnosing: 12 of 12 …" stood for two minutes while pictures were compared."""
    told: list[str] = []

    @contextlib.contextmanager
    def lines(line: Callable[[], str]) -> Iterator[None]:
        told.append(line())
        yield
        told.append(line())

    monkeypatch.setattr(progress, "lines_while", lines)
    with options.progress("Working", total=2, then="Checking") as advance:
        advance()
        advance()
    with options.progress("Replaying") as advance:
        monkeypatch.setattr(progress, "NEXT_LINE_S", -1.0)
        advance(2, total=9)  # how many is found out on the way
        advance()
    assert told[:2] == ["Working: 0 of 2 …", "Checking …"]
    assert (told[2], told[3][:27]) == ("Replaying …", "Replaying: 3 of 9, about 0 ")


@pytest.mark.parametrize(
    ("duration_s", "said"),
    [(45.2, "45 s"), (89, "89 s"), (90, "2 min"), (3000, "50 min"), (97653, "27 h 08 min")],
)
def test_a_duration_is_told_as_people_say_it(duration_s: float, said: str) -> None:
    assert progress.words_of_time(duration_s) == said


def test_progress_counts_and_says_nothing_to_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with options.progress("Working", total=3) as advance:
        advance()
        advance(2)
    assert capsys.readouterr().out == ""


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    return line


def test_a_demo_that_was_stopped_tells_the_time_of_all_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A demo that took eleven minutes and was run once more said "0.7 min"."""
    from gaploop.scripts import _demo as demo

    now_s = iter([0.0, 300.0, 1000.0, 1012.0])
    clock = SimpleNamespace(monotonic=lambda: next(now_s))
    monkeypatch.setattr("gaploop.scripts._demo.time", clock)
    with pytest.raises(KeyboardInterrupt), demo._timed(tmp_path):
        raise KeyboardInterrupt
    with demo._timed(tmp_path):
        pass
    assert json.loads((tmp_path / demo.SPENT).read_text()) == {"seconds": 312.0}


def test_a_demo_is_not_continued_with_other_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rates of 12 rollouts from a quick demo must not end up in a full one's report."""
    settings = {"quick": True, "policy": "sha256:0", "seed": 3}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    assert cli.main(["demo", f"--output_dir={tmp_path}"]) == 2
    assert "other settings (quick True" in capsys.readouterr().err


def test_the_overview_lists_each_command_once_by_job() -> None:
    listed = [line.split()[0] for line in cli._overview().splitlines() if re.match(r"  \w", line)]
    assert sorted(listed) == sorted(cli.commands())
    assert listed[:6] == list(cli.GROUPS["start here"])
