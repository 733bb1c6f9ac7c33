use std::os::unix::fs::MetadataExt;

use super::draft::SUFFIX;
use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn file_is_replaced_once_and_equal_contents_are_not_rewritten() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("conf");
    assert_eq!(replace(&file, b"one", 0o600).unwrap(), Change::Written);
    assert_eq!(
        (fs::read(&file).unwrap(), mode(&file)),
        (b"one".to_vec(), 0o600)
    );
    let inode = fs::metadata(&file).unwrap().ino();
    assert_eq!(replace(&file, b"one", 0o600).unwrap(), Change::Unchanged);
    assert_eq!(fs::metadata(&file).unwrap().ino(), inode);
    assert_eq!(replace(&file, b"one", 0o644).unwrap(), Change::Written);
    assert_eq!(replace(&file, b"two", 0o644).unwrap(), Change::Written);
    assert_eq!(
        (fs::read(&file).unwrap(), mode(&file)),
        (b"two".to_vec(), 0o644)
    );
    assert_eq!(names(dir.path()), ["conf"]);
}

#[test]
fn file_replaced_without_sync_is_new_and_complete() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("hints");
    for contents in ["one", "two"] {
        replace_unsynced(&file, contents.as_bytes(), 0o644).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), contents);
        assert_eq!(mode(&file), 0o644);
    }
    let missing = replace_unsynced(&dir.path().join("none/hints"), b"", 0o644).unwrap_err();
    assert_eq!(missing.source.kind(), std::io::ErrorKind::NotFound);
    assert_eq!(names(dir.path()), ["hints"]);
}

#[test]
fn replaced_link_becomes_a_file_and_its_target_is_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let (file, elsewhere) = (dir.path().join("conf"), dir.path().join("elsewhere"));
    fs::write(&elsewhere, "theirs").unwrap();
    std::os::unix::fs::symlink(&elsewhere, &file).unwrap();
    replace(&file, b"ours", 0o600).unwrap();
    assert_eq!(
        (fs::read(&file).unwrap(), fs::read(&elsewhere).unwrap()),
        (b"ours".to_vec(), b"theirs".to_vec())
    );
}

#[test]
fn unfinished_draft_is_removed_and_the_file_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("conf");
    fs::write(&file, "before").unwrap();
    let mut draft = Draft::beside(&file).unwrap();
    draft.write(b"half").unwrap();
    assert_eq!(mode(draft.path()), 0o600);
    assert!(is_draft(draft.path()) && draft.path().extension().unwrap() == "tmp");
    drop(draft);
    drop(Draft::beside(&file).unwrap().finish(0o755).unwrap());
    assert_eq!(names(dir.path()), ["conf"]);
    assert_eq!(fs::read(&file).unwrap(), b"before");
}

#[test]
fn drafts_of_dead_processes_are_removed_and_live_drafts_stay() {
    let dir = tempfile::tempdir().unwrap();
    let (file, dead) = (
        dir.path().join("conf"),
        dir.path().join(format!(".conf.0123456789abcdef{SUFFIX}")),
    );
    fs::write(&dead, "half").unwrap();
    fs::write(dir.path().join("other.tmp"), "theirs").unwrap();
    let living = Draft::beside(&file).unwrap();
    assert_eq!(sweep(dir.path()), 1);
    assert!(!dead.exists());
    living.finish(0o600).unwrap().put_in_place().unwrap();
    assert_eq!(names(dir.path()), ["conf", "other.tmp"]);
    assert_eq!(sweep(&dir.path().join("nowhere")), 0);
}

#[test]
fn linked_name_is_the_same_inode() {
    let dir = tempfile::tempdir().unwrap();
    let (file, name) = (dir.path().join("calico"), dir.path().join("calico-ipam"));
    fs::write(&file, "program").unwrap();
    fs::write(&name, "old").unwrap();
    for _ in 0..2 {
        link(&file, &name).unwrap();
        assert_eq!(
            fs::metadata(&file).unwrap().ino(),
            fs::metadata(&name).unwrap().ino()
        );
        assert_eq!(names(dir.path()), ["calico", "calico-ipam"]);
    }
}

#[test]
fn missing_directory_is_reported_with_the_path() {
    let error = replace(Path::new("/no/such/place/conf"), b"", 0o600)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("cannot create a file beside /no/such/place/conf: "),
        "{error}"
    );
}

#[test]
fn sweep_leaves_a_fifo_with_the_name_of_a_draft() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = draft_name(&dir.path().join("conf"));
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .unwrap();
    assert_eq!(sweep(dir.path()), 0);
    assert!(fifo.symlink_metadata().is_ok());
}

/// A later version removes the drafts of an earlier one that was killed.
#[test]
fn draft_name_of_0_1_0_is_recognized_and_has_the_same_form_today() {
    let stored = include_str!("../../../tests/formats/0.1.0/names/drafts.txt").trim_end();
    assert!(is_draft(Path::new(stored)));
    let name = draft_name(Path::new("/etc/cni/net.d/10-calico.conflist"));
    let name = name.file_name().unwrap().to_str().unwrap();
    let (before, after) = stored.split_once("0123456789abcdef").unwrap();
    let random = name
        .strip_prefix(before)
        .and_then(|rest| rest.strip_suffix(after))
        .unwrap();
    assert_eq!(random.len(), 16);
}
