"""Every place where a name becomes a path, or a file is deleted, moved or copied, was looked at.

`gap_uid` of `../precious` reached rmtree and a link in `meta/` reached the Hub because nobody had
a list of such places. This is the list. A new place makes the test fail until it stands here, by
module and function, with the word why it is safe.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (
    "benchmarks/board",
    "core",
    "sim",
    "teleop",
    "datasets",
    "collect",
    "failure_analysis",
    "finetune",
    "scripts",
)
WORDS = {
    "paths": "core.paths checks it right there",
    "dataset": "layout.read_info, or check and repair before they begin, has refused features, "
    "templates, uids and links that lead out",
    "take": "journal_format.read_header has refused uids, cameras and links that lead out",
    "listed": "a name that the system lists in that very folder",
    "ours": "a name made here: a constant, a number, a hash, a name beside one of ours",
    "user": "named by the user, in an option or in a file of their own, and never by a data set",
    "reads": "only read to be compared; nothing of it is shown, copied or sent",
}
REVIEWED = r"""
collect/withdrawal.py:_clear | shutil.rmtree(staging.sibling(path, 'blurred'), ignore_errors=True) | ours
collect/withdrawal.py:_used | folder / root | reads
collect/withdrawal.py:_clear_copies | page.unlink() | ours
collect/withdrawal.py:lerobot_tables | Path(os.environ.get('HF_DATASETS_CACHE') or home / 'datasets') | user
collect/withdrawal.py:lerobot_tables | Path(os.environ.get('HF_HOME') or cache / 'huggingface') | user
collect/withdrawal.py:lerobot_tables | Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') | user
collect/withdrawal.py:runs_of | root.parent.glob('*/' * depth + RUN) | ours
collect/encoder_process.py:_Server.obey | Path(order['folder']) | ours
collect/journal.py:JournalWriter.__init__ | journal / plain_name(header.info.uid, 'uid') | paths
collect/journal.py:JournalWriter.__init__ | undo.callback(shutil.rmtree, self.folder, ignore_errors=True) | ours
collect/journal.py:JournalWriter._opened | self.folder / name | ours
collect/journal.py:JournalWriter._write_header | os.replace(new, self.folder / journal_format.HEADER) | ours
collect/recovery.py:_recover_take | folder / f'{name}{_NEW}' | take
collect/recovery.py:_recover_take | folder / name | take
collect/recovery.py:_recover_take | leftover.unlink() | take
collect/recovery.py:_recover_take | os.replace(new, folder / name) | take
collect/recovery.py:_rewrite_video | new.unlink() | take
collect/recovery.py:_rewrite_video | os.replace(new, path) | take
collect/recovery.py:_rewrite_video | path.unlink(missing_ok=True) | take
collect/recovery.py:_rewrite_video | path.with_name(path.name + _NEW) | take
collect/recovery.py:recover | header.with_name(f'{header.name}.torn') | take
collect/recovery.py:recover | os.replace(header, header.with_name(f'{header.name}.torn')) | take
collect/encoder_process.py:camera_stream | folder / f'{camera}.mkv' | paths
collect/withdrawal.py:_clear | path / file | ours
collect/withdrawal.py:_clear | path / uid | paths
collect/withdrawal.py:_clear_copies | shutil.rmtree(folder) | listed
collect/withdrawal.py:_delete_take | (folder / journal_format.END).unlink(missing_ok=True) | take
collect/withdrawal.py:_delete_take | (folder / journal_format.HEADER).unlink(missing_ok=True) | take
collect/withdrawal.py:_delete_take | folder.rmdir() | take
collect/withdrawal.py:_delete_take | path.unlink() | take
collect/withdrawal.py:_delete_take | shutil.rmtree(path) | take
collect/withdrawal.py:report_path | register.parent / f'withdrawal_{id_}.json' | paths
core/arm.py:ModelFile._folder | Path(places[0]) | ours
core/arm.py:ModelFile.find | folder.joinpath(*self.path.split('/')) | ours
core/consent.py:_read_private | path.parent / name | ours
core/consent.py:_set_private | path.parent / f'.{name}.lock' | ours
core/consent.py:_set_private | path.parent / name | ours
core/files.py:lfs_pointers | Path(folder, name) | listed
core/files.py:locked_stream | path.with_name(f'.{path.name}.lock') | ours
core/files.py:write_atomically | name.unlink(missing_ok=True) | ours
core/files.py:write_atomically | os.replace(name, path) | ours
core/files.py:write_atomically | path.parent / f'.{path.name}.{secrets.token_hex(4)}' | ours
core/kinematics.py:read_spec | at / part | paths
core/journal_format.py:after_path | folder / f'{plain_name(camera, 'camera', folder)}.after.png' | paths
core/journal_format.py:camera_path | folder / f'{plain_name(camera, 'camera', folder)}.mkv' | paths
core/journal_format.py:require_as_sealed | folder / name | take
core/paths.py:inside | root / relative_path(str(relative), what, where) | paths
core/paths.py:links_out | Path(folder, name) | paths
core/run_record.py:write_run | Path(sys.argv[0]) | user
core/station.py:load_station | path.parent / station.robot_model | user
datasets/absolute/examine.py:training_set | Path(os.environ.get('HF_LEROBOT_HOME') or Path.home() / '.cache/huggingface/lerobot') | user
datasets/absolute/examine.py:_trained_in | folder / output | reads
datasets/absolute/examine.py:training_set | _trained_in(config, given) / root | reads
datasets/absolute/examine.py:training_set | home / relative_path(repo_id, 'dataset.repo_id', config) | paths
datasets/absolute/examine.py:training_set | path / place | ours
datasets/absolute/checkpoint.py:_read | folder / f'policy_{n}.json' | ours
datasets/absolute/checkpoint.py:_read | folder / name | paths
datasets/absolute/demonstrated.py:DemonstratedTests._states | r / scale | ours
datasets/absolute/camera_looks.py:look.place | info.root / info.video_name(key, chunk, file) | dataset
datasets/cache/folder.py:CacheFolder.room | self.path / form | ours
datasets/cache/folder.py:CacheFolder.use | self.path / form | ours
datasets/cache/folder.py:CacheFolder.video_ids | self._root / name | dataset
datasets/cache/folder.py:_remove_unused | shutil.rmtree(folder, ignore_errors=True) | ours
datasets/cache/folder.py:cache_path | (base or default_folder()) / f'{root.resolve().name}-{digest}' | listed
datasets/cache/folder.py:folder_bytes | folder.rglob(f'*{suffix}') | ours
datasets/cache/folder.py:remove | pack.unlink(missing_ok=True) | ours
datasets/cache/folder.py:remove | pack.with_suffix(INDEX).unlink(missing_ok=True) | ours
datasets/cache/folder.py:remove_cache | shutil.rmtree(path) | ours
datasets/cache/lerobot_frames.py:decoded | decoding.root / clips[0].video | dataset
datasets/cache/lerobot_frames.py:_Cache._pack | self.folder.path / self.form / name | ours
datasets/cache/lerobot_frames.py:_Cache._pack | self.folder.path / self.form | ours
datasets/check/description.py:check_folders | info.root / name | ours
datasets/check/description.py:check_folders | info.root / near[0] | listed
datasets/check/episodes.py:check_ranges | info.root / info.data_name(c, f) | dataset
datasets/check/videos.py:check_videos | info.root / 'videos' / key | dataset
datasets/check/videos.py:check_videos | info.root / info.video_name(key, chunk, file) | dataset
datasets/edit/actions.py:carry_out | stack.callback(shutil.rmtree, stage, ignore_errors=True) | ours
datasets/edit/actions.py:carry_out | stage / name | user
datasets/edit/actions.py:carry_out | target / name | user
datasets/edit/actions.py:delete_takes | os.rename(root, stage) | ours
datasets/edit/actions.py:delete_takes | shutil.rmtree(stage) | ours
datasets/edit/compose.py:compose | shutil.copy2(path, target) | dataset
datasets/edit/compose.py:compose | stage / name | dataset
datasets/edit/compose.py:compose | target.with_name(f'{target.stem}.{number}{target.suffix}') | dataset
datasets/episodes_table.py:materialise | part.replace(path) | dataset
datasets/formats/new_dataset.py:_encode | path.unlink(missing_ok=True) | ours
datasets/formats/new_dataset.py:write_dataset | pictures / f'{len(videos)}.mp4' | ours
datasets/formats/new_dataset.py:write_dataset | shutil.rmtree(leftover, ignore_errors=True) | ours
datasets/formats/new_dataset.py:write_dataset | shutil.rmtree(pictures) | ours
datasets/formats/new_dataset.py:write_dataset | shutil.rmtree(pictures, ignore_errors=True) | ours
datasets/formats/lerobot_v2.py:upgrade | shutil.copy2(root / layout.LABELS, target / layout.LABELS) | paths
datasets/formats/lerobot_v2.py:upgrade | shutil.copytree(root / layout.TELEMETRY, target / layout.TELEMETRY) | paths
datasets/formats/lerobot_v2.py:_write_v21 | path / name | ours
datasets/formats/lerobot_v2.py:export_v21 | os.replace(part, output) | ours
datasets/formats/lerobot_v2.py:export_v21 | output.parent / f'.{output.name}.part' | ours
datasets/formats/lerobot_v2.py:export_v21 | shutil.rmtree(part, ignore_errors=True) | ours
datasets/formats/lerobot_v2.py:export_v21 | staging.sibling(output.absolute(), 'lock').unlink(missing_ok=True) | ours
datasets/v3_files.py:data_file | info.root / info.data_name(chunk, file) | dataset
datasets/edit/harmonised.py:_bring_along | shutil.copy2(path, stage / own) | dataset
datasets/edit/harmonised.py:_bring_along | stage / own | dataset
datasets/edit/harmonise_spec.py:parse_spec | folder / units['ranges'] | user
datasets/labels.py:LabelStore.file | self.root / (journal_format.LABELS if self.journal else layout.LABELS) | ours
datasets/episodes_table.py:bring_events | source / (layout.LABELS if layout.is_dataset(source) else journal_format.LABELS) | ours
datasets/lerobot_import.py:_import_v3 | shutil.copytree(info.root, stage) | dataset
datasets/lerobot_import.py:import_dataset | shutil.rmtree(layout_v3, ignore_errors=True) | ours
datasets/lerobot_read.py:video_of | info.root / name | dataset
datasets/edit/compose.py:dataset_hash | root / folder | ours
datasets/formats/new_dataset.py:NewDataset.finish | info.root / info.video_name(name, 0, 0) | dataset
datasets/formats/new_dataset.py:NewDataset.finish | info.root / info.video_name(name, 0, 0) | ours
datasets/mixing/sources.py:load_mixture | path.parent / Path(r).expanduser() | user
datasets/formats/new_dataset.py:NewDataset.finish | info.root / info.video_name(name, 0, 0) | dataset
datasets/check/dataset.py:_point | os.symlink(path, target) | ours
datasets/check/dataset.py:plan | Path(scratch, root.name) | ours
datasets/check/dataset.py:fix | shutil.rmtree(stage) | ours
datasets/check/description.py:_fix_chunks | good / f'file-{int(number[0]):03d}{suffix}' | ours
datasets/check/description.py:_fix_chunks | parent / f'chunk-{int(number[0]):03d}' | ours
datasets/v3_files.py:write_episodes | root / EPISODES / f'chunk-{place[0]:03d}' | ours
datasets/v3_files.py:write_episodes | root / EPISODES / f'chunk-{place[0]:03d}' / f'file-{place[1]:03d}.parquet' | ours
datasets/check/description.py:_fix_paths | (draft.root / folder).rmdir() | listed
datasets/check/description.py:_fix_paths | draft.root / folder | listed
datasets/check/description.py:_fix_paths | draft.root / usual.format(**place) | listed
datasets/check/description.py:_fix_paths | path.rename(target) | listed
datasets/check/description.py:fix_names | draft.root / name | ours
datasets/check/description.py:fix_names | path.unlink() | listed
datasets/check/description.py:_rename_near | parent / n | listed
datasets/check/description.py:_rename | old.rename(new) | listed
datasets/check/description.py:_rename_features | shutil.move(videos / old, videos / new) | paths
datasets/check/description.py:_rename_features | videos / new | paths
datasets/check/description.py:_rename_features | videos / old | paths
datasets/check/description.py:_rename_near | parent / name | ours
datasets/check/description.py:_rename_near | parent / near[0] | listed
datasets/check/description.py:fix_keys | (folder / name).rename(folder / kept) | listed
datasets/check/description.py:fix_keys | folder / kept | listed
datasets/check/description.py:fix_keys | folder / name | listed
datasets/check/dataset.py:keep | os.rename(part, kept) | ours
datasets/check/videos.py:settled | os.replace(part, path) | listed
datasets/check/videos.py:settled | part.unlink(missing_ok=True) | listed
datasets/whole_stats.py:_with_pictures | shutil.rmtree(info.root / layout.EPISODES) | ours
datasets/check/dataset.py:keep | root.parent / f'{root.name}{KEPT}{number}' | ours
datasets/check/dataset.py:keep | shutil.rmtree(part, ignore_errors=True) | ours
datasets/check/dataset.py:kept_copies | root.parent.glob(f'{glob.escape(root.name)}{KEPT}[0-9]*') | listed
datasets/check/frames.py:rewrite_files | path.unlink() | dataset
datasets/check/frames.py:salvage_files | path.unlink() | dataset
datasets/check/episodes.py:fix_episodes | shutil.rmtree(draft.root / layout.EPISODES, ignore_errors=True) | dataset
datasets/check/videos.py:read_cameras | draft.root / 'videos' / key | dataset
datasets/check/videos.py:read_cameras | os.replace(part, path) | dataset
datasets/staging.py:sibling | root.parent / f'.{root.name}.{what}' | ours
datasets/staging.py:clone | (here / path.name).symlink_to(path.readlink()) | dataset
datasets/staging.py:clone | Path(folder, n) | dataset
datasets/staging.py:clone | Path(folder, name) | listed
datasets/staging.py:clone | here / name | listed
datasets/staging.py:clone | here / path.name | dataset
datasets/staging.py:clone | names.remove(path.name) | dataset
datasets/staging.py:clone | shutil.copy2(source, here / name) | listed
datasets/staging.py:clone | shutil.rmtree(stage, ignore_errors=True) | listed
datasets/staging.py:clone | stage / own | dataset
datasets/staging.py:commit | os.rename(root, sibling(root, 'old')) | ours
datasets/staging.py:commit | os.rename(staging, root) | ours
datasets/staging.py:commit | os.replace(staging, root) | ours
datasets/staging.py:commit | shutil.rmtree(leftover, ignore_errors=True) | ours
datasets/staging.py:link_or_copy | os.link(path, target) | dataset
datasets/staging.py:link_or_copy | shutil.copy2(path, target) | dataset
datasets/staging.py:locked | shutil.rmtree(sibling(root, 'staging'), ignore_errors=True) | ours
datasets/staging.py:recover | os.rename(old, root) | ours
datasets/staging.py:recover | root.rmdir() | ours
datasets/staging.py:recover | shutil.rmtree(leftover) | ours
datasets/telemetry_zarr.py:telemetry_path | root / 'telemetry' / f'{plain_name(uid, 'gap_uid', root)}.zarr.zip' | paths
datasets/telemetry_zarr.py:write_telemetry | os.replace(part, path) | dataset
datasets/v3_files.py:DataFiles.append | self._info.root / name | dataset
datasets/v3_files.py:VideoFiles._next | self._info.root / name | dataset
datasets/v3_files.py:replace_table | part.replace(path) | dataset
datasets/v3_files.py:write_episodes | root / EPISODES / f'chunk-{place[0]:03d}' / f'file-{place[1]:03d}.parquet' | ours
datasets/v3_files.py:write_episodes | root / EPISODES / f'chunk-{place[0]:03d}' | ours
failure_analysis/planning/remedies.py:PlanContext.config | Path(self.policy, part, 'config.json') | user
failure_analysis/success.py:_folder | store.root / plain_name(row.info.uid, 'uid', store.root) | paths
failure_analysis/success.py:success_path | station.with_name(f'{station.stem}{SUFFIX}') | user
failure_analysis/planning/remedies.py:commands.record | about.folder / name | ours
failure_analysis/planning/remedies.py:commands.train | about.folder / name | ours
failure_analysis/planning/remedies.py:commands.train | about.folder / out | ours
failure_analysis/review/takes.py:Media.video | oldest.unlink(missing_ok=True) | ours
failure_analysis/review/takes.py:Media.video | part.replace(path) | take
failure_analysis/review/takes.py:Media.video | self._folder / f'{name}.mp4' | ours
failure_analysis/review/takes.py:TakeSource._read | self._folders[uid] / name | take
finetune/adapt.py:adapt | folder / (MERGED if recipe.full else ADAPTER) | ours
benchmarks/board/confined.py:confine | (root / 'dev' / 'shm').symlink_to('/tmp') | ours
benchmarks/board/confined.py:confine | Path('/proc/self', name) | ours
benchmarks/board/confined.py:confine | root / name | ours
benchmarks/board/confined.py:confine | root / place.relative_to('/') | ours
benchmarks/board/confined.py:confine | there.symlink_to(place.readlink()) | ours
benchmarks/board/confined.py:main | Path(spec['root']) | ours
benchmarks/board/contest.py:contest | folder / one.alias | ours
benchmarks/board/contest.py:contest | folder / t.alias | ours
benchmarks/board/entries.py:Submission.folder | board / 'submissions' / self.user / self.name | paths
benchmarks/board/entries.py:Submission.folder | board / 'submissions' / self.user | paths
benchmarks/board/entries.py:_walk | Path(folder, name) | listed
benchmarks/board/entries.py:enter | folder / 'files' / relative_path(name, 'file') | paths
benchmarks/board/entries.py:enter | shutil.copyfile(path, target) | paths
benchmarks/board/entries.py:stage | root / name | paths
benchmarks/board/entries.py:stage | shutil.copyfile(root / name, path) | paths
benchmarks/board/entries.py:stage | shutil.rmtree(target, ignore_errors=True) | ours
benchmarks/board/entries.py:stage | target / name | paths
benchmarks/board/policy_box.py:main | Path(sys.argv[1]) | ours
benchmarks/board/programs.py:shown | folder / f'.{take.uid}' | take
benchmarks/board/programs.py:shown | folder / take.uid | take
benchmarks/board/programs.py:shown | part.rename(target) | take
benchmarks/board/programs.py:shown | shutil.copytree(take.folder, part) | take
benchmarks/board/programs.py:shown | shutil.rmtree((part := (folder / f'.{take.uid}')), ignore_errors=True) | take
benchmarks/board/sandbox.py:Sandbox.close | shutil.rmtree(self._root, ignore_errors=True) | ours
benchmarks/board/sandbox.py:_runtime | executable.parent / executable.readlink() | ours
benchmarks/board/serving.py:_kept | how.private / 'results' / entry.user / f'{entry.name}.json' | paths
benchmarks/board/serving.py:_kept | how.private / 'results' / entry.user | paths
benchmarks/board/serving.py:_policies | how.private / 'staged' / _alias(server, entry) | ours
benchmarks/board/serving.py:_policies | how.private / 'videos' / entry.user / f'{entry.name}.mp4' | paths
benchmarks/board/serving.py:_policies | how.private / 'videos' / entry.user | paths
benchmarks/board/serving.py:_programs | how.private / 'attempts' / alias | ours
benchmarks/board/serving.py:_programs | how.private / 'staged' / alias | ours
benchmarks/board/serving.py:_published | how.private / 'attempts' / alias | ours
benchmarks/board/serving.py:public_files | board.glob(pattern) | ours
finetune/gate/canary.py:AssignedPolicy.__init__ | folder / f'{plain_name(robot, '--robot.id', source)}.jsonl' | paths
finetune/gate/folder.py:withdraw | record.replace(folder / WITHDRAWN) | ours
finetune/gate/folder.py:write_promotion | folder / name | ours
finetune/gate/attempts.py:StationAttempts.__call__ | self._folder / ATTEMPTS / n | ours
finetune/gate/attempts.py:StationAttempts.__call__ | fresh.replace(policy) | ours
finetune/gate/attempts.py:StationAttempts.__call__ | fresh.symlink_to(self._policies[attempt.side].absolute(), target_is_directory=True) | ours
finetune/gate/attempts.py:StationAttempts.__call__ | fresh.unlink(missing_ok=True) | ours
finetune/hub_policy.py:_lineage | Path(str(entry.get('root', ''))) | reads
finetune/hub_policy.py:_values | run.glob('*/' * depth + name) | ours
finetune/lerobot_adapter.py:save | shutil.copytree(base, folder / BASE, dirs_exist_ok=True) | dataset
finetune/lerobot_policy.py:_said | resolve(path) / name | ours
finetune/lerobot_policy.py:resolve | folder / name | ours
finetune/recalibration.py:recalibrate | shutil.copytree(folder, target) | paths
finetune/reproduction.py:in_twin | folder / digest[:16] | ours
finetune/training.py:read_checkpoint | folder / name | ours
finetune/training.py:read_checkpoint | os.replace(path, path.with_name(f'{name}.damaged')) | ours
finetune/training.py:read_checkpoint | path.with_name(f'{name}.damaged') | ours
finetune/training.py:train | (folder / name).unlink(missing_ok=True) | ours
finetune/training.py:train | folder / name | ours
finetune/training.py:write_checkpoint | os.replace(part, path) | ours
finetune/training.py:write_checkpoint | os.replace(path, folder / PREVIOUS) | ours
finetune/training.py:write_checkpoint | part.unlink(missing_ok=True) | ours
collect/calibration.py:take_poses.look | folder / name | ours
collect/calibration.py:take_board_pictures.look | folder / next(names) | ours
failure_analysis/review/page.py:ReviewPage.__init__ | ui.link('Project', 'project') | ours
failure_analysis/review/server.py:ProjectPage.__init__ | ui.link('Episodes', './') | ours
failure_analysis/review/project.py:_add_run | folder / name | ours
failure_analysis/review/project.py:_dataset_of | journal.with_name(name if name != journal.name else f'{name}_dataset') | ours
failure_analysis/review/project.py:read_project | Path(here, name, HEADER) | listed
failure_analysis/review/project.py:read_project | folder / name | listed
collect/lerobot_types.py:named_registries | Path(folder).glob(like) | ours
collect/lerobot_types.py:named_registries | Path(home) / folder | ours
collect/lerobot_types.py:named_registries | own.joinpath(*name.split('.')[1:]) | ours
scripts/_demo.py:_typist.type_ | out.with_name(f'{out.name}_journal') | ours
scripts/_demo.py:_typist.type_ | shutil.rmtree(left, ignore_errors=True) | ours
scripts/_demo.py:run_demo | folder / f'cell_{name}' | ours
scripts/push.py:_kind | folder / part | ours
finetune/lerobot_gym.py:Demonstrations.__enter__ | self._root.rmdir() | user
finetune/remedy_trials.py:_carried_out | shutil.rmtree(folder, ignore_errors=True) | ours
finetune/remedy_trials.py:try_remedies | shutil.rmtree(kept.parent) | ours
finetune/remedy_trials.py:try_remedies | about.folder / 'tried' / name | ours
sim/lerobot_worlds.py:config_of | Path(given['scene']) | user
benchmarks/board/command.py:_serve | near / f'{name}_private' | user
scripts/_check.py:_root | Path(config.roots[0]) | user
scripts/_diagnose.py:_folder | source.parent / f'{source.resolve().name}_diagnosis' | ours
scripts/_edit.py:finish | Path(one['root']) | ours
scripts/_edit.py:finish | Path(part['root']) | ours
scripts/_edit.py:finish | target / name | user
scripts/_diagnose.py:_factors | source.parent / f'{source.resolve().stem}_factors' | ours
scripts/_gate.py:example_suite | Path(gate_package.__path__[0]) | ours
scripts/_identify.py:_folder | first.parent / f'{first.name}_twin' | user
collect/preflight.py:check_history | station.with_name(f'{station.stem}{SUFFIX}') | ours
scripts/options.py:journal_beside | root.with_name(f'{root.name}_journal') | ours
scripts/_output.py:keep | writable_folder(output_dir) / name | ours
teleop/calibration/store.py:calibration_path | station.with_name(f'{station.stem}{SUFFIX}') | ours
teleop/checks/cameras.py:check_devices | root / 'dev' / node.name | listed
teleop/checks/cameras.py:video_identity | root / 'sys/class/video4linux' / name | reads
teleop/checks/cameras.py:video_identity.told | folder / what | ours
teleop/checks/machine.py:check_port | root / 'sys/bus/usb-serial/devices' / real.name | listed
teleop/checks/servos.py:_calibration | today.with_stem(f'{today.stem}_former') | ours
teleop/emulator/bus.py:PseudoTerminal.__init__ | fresh.replace(link) | ours
teleop/emulator/bus.py:PseudoTerminal.__init__ | fresh.symlink_to(self.name) | ours
teleop/emulator/bus.py:PseudoTerminal.close | self._link.unlink() | ours
teleop/lerobot_devices/make.py:_check_calibration_file | Path(HF_LEROBOT_CALIBRATION).glob(f'{kinds}/*/*.json') | ours
teleop/servos/calibration.py:all_files | root.glob(f'{kind}/*/*.json') | ours
teleop/servos/calibration.py:arm_folder | Path(os.environ.get('HF_HOME', '~/.cache/huggingface')) | user
teleop/servos/calibration.py:arm_folder | Path(os.environ.get('HF_LEROBOT_CALIBRATION', home / 'calibration')) | user
teleop/servos/calibration.py:arm_folder | Path(os.environ.get('HF_LEROBOT_HOME', cache / 'lerobot')) | user
teleop/servos/calibration.py:place_today | root / kind / FORMER.get(arm, arm) / file.name | ours
teleop/servos/calibration.py:place_today | root / kind / FORMER.get(arm, arm) | ours
teleop/servos/calibration.py:place_today | root / kind | ours
teleop/servos/port.py:_has_other_end | link.parent.parent / 'fdinfo' / link.name | listed
finetune/doctor.py:_pictures | folder / f'picture_{number}.png' | ours
sim/scene_file.py:_model_file | scene.parent / name | user
sim/scene_file.py:load_scene | path.parent / str(camera['calibration']) | user
sim/views.py:Mounted.of | folder / str(given['calibration']) | user
sim/catalogue.py: | Path(__file__).parent / 'scenes' / f'{task}.yaml' | ours
sim/identification/flicker.py:steadied | still.pictures / np.maximum(gains, DARKEST)[:, :, None] | ours
"""  # noqa: E501

MAKES_A_PATH = {"resolve", "absolute", "expanduser", "with_suffix", "with_stem", "with_name"}
LISTS = {"glob", "rglob", "iterdir"}
CHANGES = {
    "rmtree", "unlink", "rmdir", "copytree", "copy2", "copyfile", "move", "symlink_to",
    "hardlink_to", "symlink", "link",
}  # fmt: skip
CHANGES_A_PATH = {"replace", "rename", "copy", "remove"}
"""Names that text and numbers have, too: only of a path, of os or of shutil."""
NAMES = ast.NamedExpr | ast.Assign | ast.AnnAssign | ast.For | ast.comprehension
"""What gives something a name."""


def children(node: ast.AST) -> list[ast.AST]:
    """Return what a node consists of, looked up once: every node is passed a dozen times.

    Without what has no parts, as `Load` and `Add`: half of all.
    """
    found: list[ast.AST] | None = node.__dict__.get("children")
    if found is None:
        found = [child for child in ast.iter_child_nodes(node) if child._fields]
        node.__dict__["children"] = found
    return found


def walk(node: ast.AST) -> list[Any]:
    found: list[Any] = [node]
    for one in found:  # it grows meanwhile
        found += children(one)
    return found


def is_literal(node: ast.AST) -> bool:
    """Say whether a part of a path stands in the source: text, or a constant's name."""
    if isinstance(node, ast.JoinedStr):
        return all(is_literal(v.value) for v in node.values if isinstance(v, ast.FormattedValue))
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    return isinstance(node, ast.Constant) or name.lstrip("_").isupper()


def says_path(annotation: ast.AST | None) -> bool:
    found = walk(annotation) if annotation is not None else ()
    return any(isinstance(n, ast.Name) and n.id == "Path" for n in found)


class Paths:
    """Guesses which expressions are paths, from annotations and from where they come from."""

    def __init__(self, trees: list[ast.Module]) -> None:
        self.returning: set[str] = set()
        self.attributes = {"parent"}
        nodes = [node for tree in trees for node in walk(tree)]
        for node in nodes:
            if isinstance(node, ast.FunctionDef) and says_path(node.returns):
                self.returning.add(node.name)
            if isinstance(node, ast.AnnAssign) and says_path(node.annotation):
                target = node.target
                self.attributes.add(target.id if isinstance(target, ast.Name) else target.attr)
        for node in nodes:
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                known = self.known_in(node, set())
                for target, value in assigned(walk(node)):
                    if isinstance(target, ast.Attribute) and self.within(value, known):
                        self.attributes.add(target.attr)

    def is_path(self, node: ast.AST, known: set[str]) -> bool:
        if isinstance(node, ast.Name):
            return node.id in known
        if isinstance(node, ast.Attribute):
            return node.attr in self.attributes
        if isinstance(node, ast.BinOp):
            return isinstance(node.op, ast.Div) and self.is_path(node.left, known)
        if isinstance(node, ast.IfExp):
            return self.is_path(node.body, known) or self.is_path(node.orelse, known)
        if isinstance(node, ast.BoolOp):
            return any(self.is_path(value, known) for value in node.values)
        if isinstance(node, ast.NamedExpr | ast.Subscript):
            return self.is_path(node.value, known)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return node.func.attr in MAKES_A_PATH or node.func.attr in self.returning
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return node.func.id == "Path" or node.func.id in self.returning
        return False

    def within(self, node: ast.AST, known: set[str]) -> bool:
        """Say whether there are paths in a value: a list of them, or something that lists them."""
        return any(
            self.is_path(n, known)
            or (
                isinstance(n, ast.Call)
                and isinstance(n.func, ast.Attribute)
                and n.func.attr in LISTS
            )
            for n in walk(node)
        )

    def known_in(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, outside: set[str]
    ) -> set[str]:
        """Return the names in a function that stand for paths."""
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        known = outside | {a.arg for a in arguments if says_path(a.annotation)}
        nodes = [node for node in walk(function) if isinstance(node, NAMES)]
        for _ in range(2):  # a name may be used above where it is assigned: in a loop
            for target, value in assigned(nodes):
                if isinstance(target, ast.Attribute):
                    continue  # it makes no path of what it is an attribute of
                several = isinstance(target, ast.Tuple)
                if self.within(value, known) if several else self.is_path(value, known):
                    known |= {n.id for n in walk(target) if isinstance(n, ast.Name)}
            for node in nodes:
                if isinstance(node, ast.For | ast.comprehension) and self.within(node.iter, known):
                    known |= {n.id for n in walk(node.target) if isinstance(n, ast.Name)}
                if isinstance(node, ast.AnnAssign) and says_path(node.annotation):
                    known |= {n.id for n in walk(node.target) if isinstance(n, ast.Name)}
        return known


def assigned(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield what is assigned, pairs one by one."""
    for node in nodes:
        if isinstance(node, ast.NamedExpr):
            yield node.target, node.value
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=False)
            else:
                yield target, node.value


def is_site(node: ast.AST, paths: Paths, known: set[str]) -> bool:
    """Say whether a name that isn't in the source becomes a path, or a file may be lost."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return paths.is_path(node.left, known) and not is_literal(node.right)
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        if node.func.id != "Path":
            return False
        first = node.args[0] if node.args else ast.Constant("")
        from_data = isinstance(first, ast.Subscript) or "get(" in ast.unparse(first)
        return from_data or any(not is_literal(a) for a in node.args[1:])
    if not isinstance(node.func, ast.Attribute):
        return False
    name, owner = node.func.attr, node.func.value
    module = owner.id if isinstance(owner, ast.Name) else ""
    if name in CHANGES or (name == "callback" and "rmtree" in ast.unparse(node)):
        return True
    if name in CHANGES_A_PATH:
        return module in ("os", "shutil") or (paths.is_path(owner, known) and len(node.args) == 1)
    if name in LISTS | {"joinpath", "with_name", "with_stem"}:
        return paths.is_path(owner, known) and not all(map(is_literal, node.args))
    return name == "join" and ast.unparse(owner) == "os.path"


def sites_in(sources: dict[str, str]) -> set[tuple[str, str]]:
    """Return (module:function, expression) of every place in some modules."""
    trees = {name: ast.parse(text) for name, text in sources.items()}
    paths = Paths(list(trees.values()))
    found = set()

    def visit(node: ast.AST, name: str, inside: tuple[str, ...], known: set[str]) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            known = paths.known_in(node, known)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = (*inside, node.name)
        if is_site(node, paths, known):
            found.add((f"{name}:{'.'.join(inside)}", ast.unparse(node).replace('"', "'")))
        for child in children(node):
            visit(child, name, inside, known)

    for name, tree in trees.items():
        top = {
            t.id
            for t, v in assigned(walk(tree))
            if isinstance(t, ast.Name) and paths.is_path(v, set())
        }
        visit(tree, name, (), top)
    return found


def product() -> dict[str, str]:
    files = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    named = {path.relative_to(ROOT).as_posix(): path for path in files}
    return {n: p.read_text() for n, p in named.items()}


def reviewed() -> dict[tuple[str, str], str]:
    lines = [line.split(" | ") for line in REVIEWED.strip().splitlines()]
    return {(where, expression): word for where, expression, word in lines}


def test_every_place_where_a_name_becomes_a_path_was_looked_at() -> None:
    found, known = sites_in(product()), reviewed()
    new = sorted(" | ".join((*site, "?")) for site in found - known.keys())
    gone = sorted(" | ".join(site) for site in known.keys() - found)
    assert not new, "Check the name with core.paths, or say in REVIEWED why it is safe:\n" + (
        "\n".join(new)
    )
    assert not gone, "Not there any more, delete from REVIEWED:\n" + "\n".join(gone)
    assert set(known.values()) <= set(WORDS)


@pytest.mark.parametrize(
    "text",
    [
        "def f(root: Path, row): return root / row['gap_uid']",
        "def f(root: Path, row): return root / f\"{row['gap_uid']}.zarr.zip\"",
        "def f(root: Path, uid): shutil.rmtree(root / 'a')",
        "def f(root: Path, uid):\n    a = root / 'a'\n    return [a / n for n in uid]",
        "def f(info, uid):\n    for folder in info.glob('*'):\n        (folder / uid).unlink()",
        "class A:\n    root: Path\ndef f(a, b): return a.root / b",
        "def f(value): return Path(value['root'])",
        "def f(a, b): return os.path.join(a, b)",
        "def f(a: Path, b): return a.joinpath(b)",
        "def f(a: Path, b): return list(a.glob(f'{b}/*'))",
        "def g() -> Path: ...\ndef f(b): return g() / b",
    ],
)
def test_a_new_place_is_noticed(text: str) -> None:
    assert sites_in({"new.py": text})


def test_what_stands_in_the_source_is_no_place() -> None:
    text = "def f(root: Path): return root / 'a' / NAME / f'{layout.NAME}.x', 3 / root.width"
    assert not sites_in({"new.py": text})
