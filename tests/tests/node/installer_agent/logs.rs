//! The agent compresses the rotated files of the plugins' log.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use integration_tests::command::{present, run};
use integration_tests::node_pod::NodePod;
use integration_tests::plugin::Plugins;
use integration_tests::skip::skipped;
use nix::mount::{MsFlags, mount};

use crate::installer_agent::pod::{in_pod, install};

/// The directory of the log that the installer's configuration names.
pub(crate) const LOGS: &str = "var/log/calico/cni";

const OF_WEB: &str = r#"ContainerID="c1" Namespace="default" Pod="web""#;

/// Installs, and sets a short interval. Returns the directory of logs.
fn prepare(pod: &mut NodePod) -> PathBuf {
    install(pod);
    pod.set("CNI_LOG_COMPRESSION_INTERVAL", "200ms");
    let logs = pod.container.path(LOGS);
    fs::create_dir_all(&logs).unwrap();
    logs
}

/// Writes a file that no plugin has written to for an hour.
fn quiet_file(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(3600))
        .unwrap();
}

/// Returns 3 MB of lines about a pod.
fn lines() -> String {
    let line = |number: u32| {
        format!("2026-11-27 01:02:03.456 [INFO][{number}] cni-plugin/add 42: added {OF_WEB}\n")
    };
    (0..30_000).map(line).collect()
}

fn compressed(pod: &NodePod) -> Vec<String> {
    pod.container
        .names(LOGS)
        .into_iter()
        .filter(|name| name.ends_with(".zst"))
        .collect()
}

#[test]
fn agent_compresses_a_rotated_log_that_zstd_and_trace_read() {
    in_pod(|_, _, mut pod| {
        let logs = prepare(&mut pod);
        let text = lines();
        quiet_file(&logs.join("cni.log.3"), &text);
        // A plugin may still write to this file.
        fs::write(logs.join("cni.log.1"), format!("later {OF_WEB}\n")).unwrap();
        fs::write(logs.join("cni.log"), format!("latest {OF_WEB}\n")).unwrap();
        let agent = pod.agent().unwrap();
        agent
            .await_log("compressed a rotated log file into ")
            .unwrap();
        agent.await_page("/readiness", 200).unwrap();
        let names = compressed(&pod);
        assert_eq!(names.len(), 1, "{names:?}");
        assert_eq!(
            pod.container.names(LOGS),
            [names[0].as_str(), "cni.log", "cni.log.1"]
        );

        let log = logs.join("cni.log").display().to_string();
        let trace = Plugins::locate().unwrap().call("calico-ipam");
        let shown = trace
            .args([
                "trace",
                "web",
                "--node",
                "node1",
                "--log-file",
                log.as_str(),
            ])
            .run()
            .stdout;
        assert!(
            shown.contains(&format!("later {OF_WEB}\n  latest {OF_WEB}\n")),
            "{shown}"
        );
        assert!(
            shown.contains("[29999]") && shown.contains("29002 earlier lines are not shown"),
            "{shown}"
        );

        if !present("zstd") {
            return skipped("there is no zstd");
        }
        let file = logs.join(&names[0]).display().to_string();
        run("zstd", &["--test", &file]).unwrap();
        assert!(run("zstd", &["--decompress", "--stdout", &file]).unwrap() == text);
    });
}

#[test]
fn compression_on_a_full_disk_leaves_the_log() {
    in_pod(|_, _, mut pod| {
        let logs = prepare(&mut pod);
        mount(
            Some("tmpfs"),
            &logs,
            Some("tmpfs"),
            MsFlags::empty(),
            Some("size=4m"),
        )
        .unwrap();
        let text = lines();
        quiet_file(&logs.join("cni.log.1"), &text);
        let full = fs::write(logs.join("filler"), vec![0; 8 << 20]).unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);

        let agent = pod.agent().unwrap();
        agent
            .await_log("rotated log files are not compressed: ")
            .unwrap();
        agent.await_log("No space left on device").unwrap();
        agent.await_page("/readiness", 200).unwrap();
        assert_eq!(compressed(&pod), Vec::<String>::new());
        assert!(fs::read_to_string(logs.join("cni.log.1")).unwrap() == text);
        fs::remove_file(logs.join("filler")).unwrap();
        agent
            .await_log("compressed a rotated log file into ")
            .unwrap();
        assert_eq!(
            pod.container.names(LOGS),
            compressed(&pod),
            "no draft, no original"
        );
    });
}
