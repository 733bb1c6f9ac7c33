use std::fs;

use clap::Parser;
use serde_json::{Value, json};

use super::*;
use crate::cli::documents::Terminal;
use crate::cli::testing::Shell;
use crate::cli::{Arguments, Command};
use dataplane::host_link::{HostLink, HostLinkError};
use node_process::process::block_on;

#[derive(Debug)]
struct Kernel(Result<&'static str, &'static str>);

impl HostLinks for Kernel {
    fn find(&self, name: &str) -> Result<Option<HostLink>, HostLinkError> {
        let there = self.0.map_err(|reason| HostLinkError(reason.into()))?;
        let routes = vec!["10.0.0.0/32".into()];
        let link = HostLink {
            name: name.into(),
            container_id: Some("c1".into()),
            routes,
            ..HostLink::default()
        };
        Ok((there == name).then_some(link))
    }
}

/// `cali` and the SHA-1 of `default.web`.
const LINK: &str = "cali68caf03a5f4";

fn args(line: &[&str]) -> TraceArgs {
    let words = ["calico-ipam", "trace"].iter().chain(line);
    match Arguments::try_parse_from(words).unwrap().command {
        Command::Trace(args) => args,
        other => panic!("{other:?}"),
    }
}

fn trace(
    line: &[&str],
    store: Result<&Datastore, DatastoreUnusable>,
    kernel: &Kernel,
    log_file: &Path,
) -> (Trace, CommandOutcome, String) {
    let places = Places {
        node: "node1".into(),
        log_file: log_file.into(),
        links: kernel,
    };
    let trace = block_on(read_trace(&args(line), store, &places));
    let mut out = Vec::new();
    let mut terminal = Terminal::new(&mut out);
    let outcome = trace.show(Format::Table, &mut terminal).unwrap();
    terminal.flush().unwrap();
    (trace, outcome, String::from_utf8(out).unwrap())
}

/// Creates a pod with an endpoint, an address and a log line. Returns the datastore, the log file
/// and the address.
fn world() -> (Shell, PathBuf, String) {
    let shell = Shell::with_pool();
    let address = shell.allocate("web");
    shell.endpoint("web", &address);
    let log =
        r#"2026 [INFO][1] cni-plugin/add 1: added ContainerID="c1" Namespace="default" Pod="web""#;
    let log = shell.file("cni.log", &format!("{log}\n"));
    (shell, log.into(), address)
}

#[test]
fn trace_of_a_pod_shows_all_its_objects() {
    let (shell, log, address) = world();
    for line in [
        &["web"][..],
        &["default/web"],
        &["web", "-n", "default"],
        &["default/web", "-n", "other"],
    ] {
        let (trace, outcome, shown) = trace(line, Ok(&shell.store), &Kernel(Ok(LINK)), &log);
        assert_eq!(outcome, CommandOutcome::Success, "{shown}");
        for part in [
            "Pod default/web on node node1\n",
            "Endpoint: node1-k8s-web-eth0\n",
            &format!("  networks {address}/32\n"),
            &format!(
                "  {address} of block {address}/29, pool default-ipv4-ippool, handle web, node \
                 node1, since 2"
            ),
            "Interface: cali",
            "  of container c1\n",
            "Routes:\n  10.0.0.0/32\n",
            "Log: 1 lines of ",
            "  2026 [INFO][1] cni-plugin/add 1: added ",
        ] {
            assert!(shown.contains(part), "{part:?} is not in {shown}");
        }
        let document: Value = serde_json::to_value(&trace).unwrap();
        assert_eq!(document["endpoint"]["name"], "node1-k8s-web-eth0");
        assert_eq!(document["interface"]["routes"], json!(["10.0.0.0/32"]));
        assert_eq!(document["missing"], json!([]));
    }
}

#[test]
fn trace_names_missing_parts_and_prints_the_rest() {
    let (shell, log, _) = world();
    let away = || Err::<&Datastore, _>(DatastoreUnusable("datastore etcd is unavailable".into()));
    let nowhere = shell.dir.path().join("none.log");
    for (store, kernel, log, part) in [
        (
            away(),
            Kernel(Ok(LINK)),
            &log,
            "Not read: datastore: datastore etcd is unavailable\n",
        ),
        (
            Ok(&shell.store),
            Kernel(Err("no permission")),
            &log,
            "Not read: interface: no permission\n",
        ),
        (
            Ok(&shell.store),
            Kernel(Ok(LINK)),
            &nowhere,
            "none.log: No such file or directory",
        ),
    ] {
        let (trace, outcome, shown) = trace(&["web"], store, &kernel, log);
        assert_eq!(outcome, CommandOutcome::Findings, "{shown}");
        assert!(shown.contains(part), "{part:?} is not in {shown}");
        assert_eq!(trace.missing.len(), 1, "{shown}");
        let found = [
            trace.endpoint.is_some(),
            trace.interface.is_some(),
            !trace.log.is_empty(),
        ];
        assert_eq!(found.iter().filter(|found| **found).count(), 2, "{shown}");
    }
}

#[test]
fn trace_of_an_unknown_pod_reports_a_problem() {
    let (shell, log, _) = world();
    for pod in ["db", "other/web", "we"] {
        let (_, outcome, shown) = trace(&[pod], Ok(&shell.store), &Kernel(Ok(LINK)), &log);
        assert_eq!(outcome, CommandOutcome::Findings, "{pod}: {shown}");
        assert!(!shown.contains("node1-k8s-web"), "{pod}: {shown}");
    }
}

#[test]
fn trace_without_a_pod_name_is_rejected() {
    for pod in ["", "/", "default/", "/web"] {
        assert!(
            Arguments::try_parse_from(["calico-ipam", "trace", pod]).is_err(),
            "{pod:?}"
        );
    }
}

#[test]
fn trace_escapes_control_characters_of_log_lines() {
    let (shell, log, _) = world();
    let line = "a\x1b[2K\r\u{9b} ContainerID=\"c1\" Namespace=\"default\" Pod=\"web\"\n";
    fs::write(&log, line).unwrap();
    let (trace, _, shown) = trace(&["web"], Ok(&shell.store), &Kernel(Ok(LINK)), &log);
    assert_eq!(trace.log.len(), 1);
    assert!(
        !shown.contains(|c: char| c.is_control() && c != '\n'),
        "{shown:?}"
    );
}
