use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::file::named_file;
use super::*;

#[test]
fn default_status_file_is_that_of_the_variable_if_it_is_set() {
    let file = |variable: Option<&str>| named_file(variable.map(Into::into)).display().to_string();
    assert_eq!(file(Some("/dev/shm/status.json")), "/dev/shm/status.json");
    assert_eq!(
        [file(None), file(Some(""))],
        ["/status/status.json", "/status/status.json"]
    );
}

#[test]
fn status_file_matches_upstreams_format() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("made/for it/status.json");
    let status = Status::new(&path);
    status.require([Component::Startup]);
    let text = || fs::read_to_string(&path).expect("written");
    assert_eq!(
        text(),
        r#"{"Readiness":{"Startup":{"Ready":false,"Reason":"initialized to false"}}}"#
    );
    status.ready(Component::Startup);
    status.not_ready(
        Component::KubeApiServer,
        "Error reaching apiserver: gone with http status code: 0",
    );
    assert_eq!(
        text(),
        r#"{"Readiness":{"KubeAPIServer":{"Ready":false,"Reason":"Error reaching apiserver: gone with http status code: 0"},"Startup":{"Ready":true,"Reason":""}}}"#
    );
    assert_eq!(
        fs::metadata(&path).expect("there").permissions().mode() & 0o777,
        0o644
    );
    assert_eq!(
        fs::read_dir(path.parent().expect("a parent"))
            .expect("a directory")
            .count(),
        1,
        "nothing is left beside it"
    );
}

#[test]
fn unchanged_status_file_is_not_rewritten() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("status.json");
    let status = Status::new(&path);
    status.ready(Component::Startup);
    let written = fs::metadata(&path).expect("there").ino();
    status.ready(Component::Startup);
    // Each write creates a new file, so the inode number shows if the file was written.
    assert_eq!(fs::metadata(&path).expect("there").ino(), written);
    let open = fs::File::open(&path).expect("there");
    status.not_ready(Component::Startup, "no");
    assert_ne!(fs::metadata(&path).expect("there").ino(), written);
    drop(open);
}

#[test]
fn unwritable_status_file_does_not_stop_the_process() {
    let status = Status::new("/proc/none/status.json");
    status.ready(Component::Startup);
    assert!(status.is_ready());
}

#[test]
fn status_is_ready_only_if_all_required_components_are_ready() {
    let directory = tempfile::tempdir().expect("a directory");
    let status = Status::new(directory.path().join("status.json"));
    assert!(!status.is_ready(), "nothing is known yet");
    status.ready(Component::Startup);
    assert!(status.is_ready());
    status.require([Component::CalicoDatastore]);
    assert!(!status.is_ready());
    status.remove(Component::CalicoDatastore);
    assert!(status.is_ready());
}

#[test]
fn status_reason_escapes_control_characters() {
    let directory = tempfile::tempdir().expect("a directory");
    let status = Status::new(directory.path().join("status.json"));
    status.not_ready(Component::Startup, "bad\nReady\x1b[2K");
    assert_eq!(
        status.readiness()["Startup"].reason,
        "bad\\nReady\\u001b[2K"
    );
}

#[tokio::test(start_paused = true)]
async fn heartbeat_is_written_to_the_status_file_periodically() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("status.json");
    let status = Status::new(&path);
    status.ready(Component::Startup);
    let stop = CancellationToken::new();
    let beats = tokio::spawn(write_heartbeats(status, stop.clone()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let first = fs::metadata(&path).expect("there").ino();
    let heartbeat = StatusFile::read(&path)
        .expect("readable")
        .liveness
        .expect("a sign of life")
        .heartbeat;
    assert!(since_boot() - heartbeat < 60);
    let open = fs::File::open(&path).expect("there");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_ne!(fs::metadata(&path).expect("there").ino(), first);
    drop(open);
    stop.cancel();
    beats.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn liveness_timestamp_is_withheld_while_work_is_stuck() {
    let directory = tempfile::tempdir().expect("a directory");
    let status = Status::new(directory.path().join("status.json"));
    status.not_ready(Component::Work, "gc has not moved");
    let beats = tokio::spawn(write_heartbeats(status.clone(), CancellationToken::new()));
    let sign = || {
        StatusFile::read(&directory.path().join("status.json"))
            .expect("readable")
            .liveness
    };
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(sign(), None);
    status.remove(Component::Work);
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(sign().is_some());
    beats.abort();
}
