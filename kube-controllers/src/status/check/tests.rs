use std::fs;

use super::*;

fn words(line: &str) -> Vec<OsString> {
    line.split(' ').map(OsString::from).collect()
}

/// Returns the output and the result of `check-status <line>` for a file with this content, 100 s
/// after boot.
fn verdict(content: &str, line: &str) -> (String, bool) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("status.json");
    fs::write(&file, content).expect("written");
    let file = [OsString::from("check-status"), "--file".into(), file.into()];
    let arguments = Arguments::parse_from(file.into_iter().chain(words(line)));
    let verdict = evaluate(&arguments, 100);
    (
        verdict
            .text
            .replace(&directory.path().display().to_string(), ""),
        verdict.passes,
    )
}

const READY: &str = r#"{"Readiness":{"CalicoDatastore":{"Ready":true,"Reason":""},"Startup":{"Ready":true,"Reason":""}}}"#;
const UNREADY: &str = r#"{"Readiness":{"CalicoDatastore":{"Ready":false,"Reason":"one"},"KubeAPIServer":{"Ready":false,"Reason":"two"},"Startup":{"Ready":true,"Reason":"old"}}}"#;

#[test]
fn liveness_flag_checks_readiness_as_upstream_does() {
    for flag in ["-r", "-l", "--ready", "--live", "-rl"] {
        assert_eq!(verdict(READY, flag), ("Ready".into(), true), "{flag}");
        assert_eq!(verdict(UNREADY, flag), ("one; two".into(), false), "{flag}");
    }
}

#[test]
fn empty_readiness_is_not_ready() {
    assert_eq!(verdict(r#"{"Readiness":{}}"#, "-r"), (String::new(), false));
    assert_eq!(verdict("{}", "-r"), (String::new(), false));
}

#[test]
fn unreadable_status_file_fails_with_the_reason() {
    let (text, passes) = verdict("{", "-r");
    assert!(
        text.starts_with("cannot parse status file /status.json: EOF") && !passes,
        "{text}"
    );
    let arguments = Arguments::parse_from(["check-status", "-l", "-f", "/nowhere/status.json"]);
    let expected =
        "cannot read status file /nowhere/status.json: No such file or directory (os error 2)";
    assert_eq!(
        evaluate(&arguments, 0),
        ProbeResult {
            text: expected.into(),
            passes: false
        }
    );
}

#[test]
fn check_status_without_a_flag_fails() {
    let nothing = evaluate(&Arguments::parse_from(["check-status"]), 0);
    assert_eq!(
        nothing,
        ProbeResult {
            text: "No command specified to check-status".into(),
            passes: false
        }
    );
    assert_eq!(
        verdict(READY, "-v"),
        (env!("CARGO_PKG_VERSION").into(), true)
    );
    assert_eq!(
        Arguments::parse_from(["check-status", "-r"]).file,
        Path::new("/status/status.json")
    );
}

#[test]
fn heartbeat_age_decides_liveness_only() {
    let beats = |heartbeat: u64| {
        UNREADY.replace(
            "}}}",
            &format!("}}}},\"Liveness\":{{\"Heartbeat\":{heartbeat}}}}}"),
        )
    };
    assert_eq!(verdict(&beats(40), "-l"), ("Live".into(), true));
    assert_eq!(
        verdict(&beats(39), "-l"),
        ("no heartbeat for 61 s".into(), false)
    );
    assert_eq!(verdict(&beats(40), "-r"), ("one; two".into(), false));
    assert_eq!(
        verdict(&beats(101), "-l"),
        ("Live".into(), true),
        "written while it was read"
    );
}

#[test]
fn status_check_is_selected_by_program_name_or_subcommand() {
    let rest = |line| probe_arguments(words(line)).map(|rest| rest.join(std::ffi::OsStr::new(" ")));
    assert_eq!(rest("/usr/bin/check-status -l"), Some("-l".into()));
    assert_eq!(
        rest("kube-controllers kube-controllers-health -l"),
        Some("-l".into())
    );
    assert_eq!(
        rest("/usr/bin/kube-controllers check-status -r -f x"),
        Some("-r -f x".into())
    );
    assert_eq!(
        rest("calico component kube-controllers kube-controllers-health -r"),
        Some("-r".into())
    );
    assert_eq!(rest("kube-controllers --status-file check-status"), None);
    assert_eq!(rest("calico component kube-controllers"), None);
    assert_eq!(rest("kube-controllers"), None);
    assert_eq!(probe_arguments([]), None);
}
