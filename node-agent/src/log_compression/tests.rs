use libcalico::variables::Variables;
use std::os::unix::fs::{PermissionsExt, symlink};

use tempfile::TempDir;
use tokio::time::timeout;

use super::*;

const LOG: &str = "/var/log/calico/cni/cni.log";
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// A node with a directory of logs.
struct Node {
    root: TempDir,
    now: SystemTime,
}

impl Node {
    fn new() -> Node {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("var/log/calico/cni")).unwrap();
        Node {
            root,
            now: SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_741_323_456),
        }
    }

    fn layout(&self) -> Layout {
        Layout::below(self.root.path())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join("var/log/calico/cni").join(name)
    }

    /// Writes a file whose last write was before this time.
    fn file(&self, name: &str, text: &[u8], age: Duration) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(self.now - age)
            .unwrap();
        path
    }

    async fn pass(&self) -> Pass {
        self.try_pass().await.unwrap()
    }

    async fn try_pass(&self) -> Result<Pass, CompressionError> {
        let conf = LogConf {
            log_file_path: LOG.into(),
            log_file_max_count: 3,
            log_file_max_age: 1,
            ..LogConf::default()
        };
        run_pass(&conf, &self.layout(), self.now).await
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("")).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Returns the text of a compressed file.
    fn text(&self, name: &str) -> Vec<u8> {
        let mut text = Vec::new();
        LogText::new(BufReader::new(File::open(self.path(name)).unwrap()))
            .read_to_end(&mut text)
            .unwrap();
        text
    }
}

/// Returns a log of more than two parts.
fn long_log() -> Vec<u8> {
    let line = |number: u32| {
        format!("2026-11-27 01:02:03.456 [INFO][{number}] cni-plugin/add 42: added\n")
    };
    (0..20_000)
        .flat_map(|number| line(number).into_bytes())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn rotated_log_is_compressed_and_reads_back() {
    let node = Node::new();
    let log = long_log();
    assert!(log.len() as u64 > 2 * PART_BYTES);
    node.file("cni.log", b"present\n", HOUR);
    node.file("cni.log.2", &log, HOUR);
    // A draft of an agent that was killed.
    node.file(
        ".cni-x.log.zst.0000000000000000.calico-draft.tmp",
        b"",
        HOUR,
    );

    let name = "cni-2026-11-27T00-02-03.456-size.log.zst";
    assert_eq!(
        node.pass().await,
        Pass {
            written: Some(node.path(name)),
            removed: 0
        }
    );
    assert_eq!(node.names(), [name, "cni.log"]);
    assert!(node.text(name) == log);
    let metadata = fs::metadata(node.path(name)).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o644);
    assert!(
        metadata.len() < log.len() as u64 / 2,
        "{} bytes",
        metadata.len()
    );
    assert_eq!(
        node.pass().await,
        Pass::default(),
        "the log itself is no rotated file"
    );
}

#[tokio::test(start_paused = true)]
async fn log_still_written_is_not_compressed() {
    let node = Node::new();
    node.file("cni.log.1", b"older than the pause\n", QUIET);
    let oldest = node.file(
        "cni.log.2",
        b"a call has it open\n",
        QUIET - Duration::from_secs(1),
    );
    assert_eq!(
        node.pass().await,
        Pass::default(),
        "the oldest one is first"
    );
    fs::remove_file(oldest).unwrap();
    node.file("cni.log.3", b"from the future\n", Duration::ZERO);
    File::options()
        .write(true)
        .open(node.path("cni.log.3"))
        .unwrap()
        .set_modified(node.now + HOUR)
        .unwrap();
    assert_eq!(node.pass().await, Pass::default());
    assert_eq!(node.names(), ["cni.log.1", "cni.log.3"]);
}

#[tokio::test(start_paused = true)]
async fn write_or_rotation_during_the_compression_is_noticed() {
    let node = Node::new();
    let log = long_log();
    // (the interference, the names afterwards)
    let append = |node: &Node| {
        let mut file = File::options()
            .append(true)
            .open(node.path("cni.log.1"))
            .unwrap();
        io::Write::write_all(&mut file, b"late\n").unwrap();
    };
    let rotate = |node: &Node| fs::rename(node.path("cni.log.1"), node.path("cni.log.2")).unwrap();
    let remove = |node: &Node| fs::remove_file(node.path("cni.log.1")).unwrap();
    let compressed = "cni-2026-11-27T00-02-03.456-size.log.zst";
    let interferences: [fn(&Node); 3] = [append, rotate, remove];
    let left: [&[&str]; 3] = [&["cni.log.1"], &[compressed], &[]];
    for (interfere, names) in interferences.into_iter().zip(left) {
        node.file("cni.log.1", &log, HOUR);
        let (pass, ()) = tokio::join!(node.pass(), async {
            sleep(PART_PAUSE / 2).await;
            interfere(&node);
        });
        assert_eq!(node.names(), names);
        assert_eq!(pass.written.is_some(), names == [compressed]);
        names
            .iter()
            .for_each(|name| fs::remove_file(node.path(name)).unwrap());
    }
}

/// Any user of the node can lock the directory, and the agent renews the token in the same thread.
#[tokio::test(start_paused = true)]
async fn locked_directory_delays_the_compression_and_blocks_no_thread() {
    let node = Node::new();
    node.file("cni.log.1", b"text\n", HOUR);
    let lock = File::open(node.path("")).unwrap();
    lock.lock().unwrap();
    let refused = node.try_pass().await.unwrap_err().to_string();
    assert!(
        refused.contains("keeps the directory") && refused.contains(" locked; `fuser -v`"),
        "{refused}"
    );
    assert_eq!(node.names(), ["cni.log.1"], "no draft");
    let (pass, ()) = tokio::join!(node.pass(), async {
        sleep(PART_PAUSE + LOCK_PAUSE / 2).await;
        lock.unlock().unwrap();
    });
    assert!(pass.written.is_some());
}

#[test]
fn compressed_log_gets_a_free_name_beside_a_fifo_and_for_a_time_before_1970() {
    let node = Node::new();
    let log = node.path("cni.log");
    let rotated = node.file("cni.log.1", b"text\n", HOUR);
    let last_write = node.now - HOUR;
    let fifo = compressed_path(&log, last_write);
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
    let millisecond = Duration::from_millis(1);
    assert_eq!(
        free_target(&log, &rotated, last_write),
        compressed_path(&log, last_write + millisecond)
    );

    let epoch = SystemTime::UNIX_EPOCH;
    fs::write(compressed_path(&log, epoch), frame(b"other text\n")).unwrap();
    assert_eq!(
        free_target(&log, &rotated, epoch - 1000 * DAY),
        compressed_path(&log, epoch + millisecond)
    );
}

#[tokio::test(start_paused = true)]
async fn compressed_log_whose_original_was_not_removed_is_replaced_and_another_is_kept() {
    let node = Node::new();
    let name = "cni-2026-11-27T00-02-03.456-size.log.zst";
    node.file("cni.log.1", b"text\n", HOUR);
    fs::write(node.path(name), [frame(b"te"), frame(b"xt\n")].concat()).unwrap();
    assert_eq!(node.pass().await.written, Some(node.path(name)));
    node.file("cni.log.1", b"other text of the same time\n", HOUR);
    let next = "cni-2026-11-27T00-02-03.457-size.log.zst";
    assert_eq!(node.pass().await.written, Some(node.path(next)));
    assert_eq!(
        (node.text(name), node.text(next)),
        (
            b"text\n".to_vec(),
            b"other text of the same time\n".to_vec()
        )
    );
    assert_eq!(node.names(), [name, next]);
}

#[tokio::test(start_paused = true)]
async fn aged_compressed_logs_are_removed() {
    let node = Node::new();
    let aged = [
        "cni-2026-11-25T01-02-03.456-size.log",
        "cni-2026-11-26T01-02-03.455-size.log.zst",
    ];
    let kept = [
        "cni-2026-11-26T01-02-03.456-size.log.zst",
        "cni-2026-11-27T01-02-03.456-size.log.zst",
    ];
    for name in aged
        .iter()
        .chain(&kept)
        .chain(&["felix-2020-11-25T01-02-03.456-size.log.zst", "cni.log.1"])
    {
        node.file(name, b"", Duration::ZERO);
    }
    assert_eq!(
        node.pass().await,
        Pass {
            written: None,
            removed: 2
        }
    );
    assert_eq!(
        node.names(),
        [
            kept[0],
            kept[1],
            "cni.log.1",
            "felix-2020-11-25T01-02-03.456-size.log.zst"
        ]
    );
    node.file("cni.log.2", b"", Duration::ZERO);
    assert_eq!(
        node.pass().await.removed,
        1,
        "at most three rotated files of both kinds"
    );
    assert_eq!(node.names()[..3], [kept[1], "cni.log.1", "cni.log.2"]);
}

#[tokio::test(start_paused = true)]
async fn link_in_the_place_of_a_rotated_log_is_not_followed() {
    let node = Node::new();
    let secret = node.root.path().join("secret");
    fs::write(&secret, "text").unwrap();
    File::options()
        .write(true)
        .open(&secret)
        .unwrap()
        .set_modified(node.now - HOUR)
        .unwrap();
    symlink(&secret, node.path("cni.log.1")).unwrap();
    assert_eq!(node.pass().await, Pass::default());
    assert_eq!(node.names(), ["cni.log.1"]);
}

#[tokio::test(start_paused = true)]
async fn directory_that_is_missing_or_not_mounted_changes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let conf = LogConf {
        log_file_path: "/no-such-directory/cni.log".into(),
        ..LogConf::default()
    };
    let pass = run_pass(&conf, &Layout::below(root.path()), SystemTime::now()).await;
    assert_eq!(pass.unwrap(), Pass::default());
    let refused = run_pass(&conf, &Layout::container(), SystemTime::now())
        .await
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("/no-such-directory/cni.log is not mounted"),
        "{refused}"
    );
    assert!(!Path::new("/no-such-directory").exists());
}

#[test]
fn log_path_without_an_installed_configuration_is_that_of_the_planned_one() {
    let settings = Settings::from_environment(Variables::NONE, "n").unwrap();
    let root = tempfile::tempdir().unwrap();
    let layout = Layout::below(root.path());
    let path = |planned: &str| {
        log_path(
            &settings,
            &layout,
            Some(&LogConf {
                log_file_path: planned.into(),
                ..LogConf::default()
            }),
        )
    };
    assert_eq!(path("/log/cni.log"), Some(root.path().join("log/cni.log")));
    assert_eq!((path(""), log_path(&settings, &layout, None)), (None, None));
}

/// The paused clock advances the pauses at once.
#[tokio::test(start_paused = true)]
async fn log_named_by_the_installed_configuration_is_compressed_unless_off() {
    let node = Node::new();
    let net_dir = node.root.path().join("etc/cni/net.d");
    fs::create_dir_all(&net_dir).unwrap();
    let list = format!(
        r#"{{"name":"n","cniVersion":"1.0.0","plugins":[{{"type":"calico","log_file_path":"{LOG}"}}]}}"#
    );
    fs::write(net_dir.join("10-calico.conflist"), list).unwrap();
    let settings = Settings::from_environment(Variables::NONE, "n").unwrap();
    let layout = node.layout();
    assert_eq!(
        log_path(&settings, &layout, Some(&LogConf::default())),
        Some(node.path("cni.log"))
    );
    // The real clock, because the agent reads it.
    let node = Node {
        now: SystemTime::now(),
        ..node
    };
    for interval in [None, Some(DEFAULT_INTERVAL)] {
        node.file("cni.log.1", b"text\n", HOUR);
        let compressing = compress_repeatedly(interval, &settings, &layout);
        assert!(timeout(2 * DEFAULT_INTERVAL, compressing).await.is_err());
        assert_eq!(node.names().len(), 1);
        assert_eq!(node.names()[0].ends_with(".zst"), interval.is_some());
    }
}
