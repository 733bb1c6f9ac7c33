//! Calls without a runtime: `-v`, `-t`, `--help`, VERSION, and the bare command in a terminal.

use std::process::{Command, Stdio};

use integration_tests::cluster::{Cluster, on};
use integration_tests::command::present;
use integration_tests::content::Content;
use integration_tests::plugin::{Outcome, Plugins};
use integration_tests::skip::skipped;
use serde_json::{Value, json};

const VERSIONS: [&str; 7] = [
    "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0",
];

fn test_connection(cluster: &Cluster<'_>, conf: &Value) -> Outcome {
    cluster
        .plugins
        .call("calico")
        .without_env("CNI_PATH")
        .args(["-t"])
        .stdin(conf.to_string())
        .run()
}

#[track_caller]
fn assert_refused(outcome: &Outcome, word: &str) {
    let error = outcome.error();
    assert_eq!(
        (error.code, error.msg.as_str()),
        (100, "data store connection failed")
    );
    assert!(error.details.contains(word), "{word:?} is not in {error:?}");
}

#[on(etcd, local)]
fn connection_test_of_a_ready_datastore_succeeds_without_output(cluster: &Cluster<'_>) {
    cluster.load(&Content::ready());
    // The connection test reads no Node, no pools, no nodename file and no MTU file.
    let conf = cluster.conf(
        "stranger",
        json!({ "nodename_file_optional": false, "require_mtu_file": true }),
    );
    let outcome = test_connection(cluster, &conf);
    assert_eq!(
        (outcome.success(), outcome.stderr.as_str()),
        (json!(""), "")
    );
}

#[on(etcd, local)]
fn connection_test_of_a_datastore_that_is_not_ready_returns_code_100(cluster: &Cluster<'_>) {
    const CLUSTER: &str = "/calico/resources/v3/projectcalico.org/clusterinformations/default";
    cluster.load(&Content::ready());
    let conf = cluster.conf("node1", json!({}));
    let mut information = cluster.store.dump().unwrap()[CLUSTER].clone();
    information["spec"]["datastoreReady"] = json!(false);
    cluster.store.put(CLUSTER, &information).unwrap();
    assert_refused(&test_connection(cluster, &conf), "not ready");
    information["spec"]
        .as_object_mut()
        .unwrap()
        .remove("datastoreReady");
    cluster.store.put(CLUSTER, &information).unwrap();
    assert_refused(&test_connection(cluster, &conf), "not ready");
    cluster.store.delete(CLUSTER).unwrap();
    assert_refused(&test_connection(cluster, &conf), "ClusterInformation");
}

#[on(etcd)]
fn connection_test_with_etcd_unreachable_returns_code_100(cluster: &Cluster<'_>) {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", silent.local_addr().unwrap());
    for (endpoints, says) in [
        ("http://127.0.0.1:1", "refused"),
        (silent.as_str(), "no answer within "),
    ] {
        let outcome = test_connection(
            cluster,
            &cluster.conf("node1", json!({ "etcd_endpoints": endpoints })),
        );
        assert_refused(&outcome, "ClusterInformation");
        assert_refused(&outcome, says);
    }
}

#[on(local)]
fn connection_test_with_an_invalid_configuration_returns_code_100(cluster: &Cluster<'_>) {
    let test = |stdin: &str| {
        cluster
            .plugins
            .call("calico")
            .args(["-t"])
            .stdin(stdin)
            .run()
    };
    assert_refused(&test(""), "unexpected end of JSON input");
    assert_refused(&test("{"), "unexpected end of JSON input");
    assert_refused(&test(r#"{"name": "n", "plugins": []}"#), "jq '.plugins[0]");
    assert_refused(
        &test(r#"{"name": "n", "datastore_type": "kubernetes"}"#),
        "kubernetes",
    );
}

#[test]
fn version_flag_prints_one_line_in_spite_of_cni_command() {
    let plugins = Plugins::locate().unwrap();
    for program in ["calico", "calico-ipam"] {
        for args in [&["-v"][..], &["--v"], &["-v=true"]] {
            let outcome = plugins
                .call(program)
                .args(args.iter().copied())
                .env("CNI_COMMAND", "ADD")
                .run();
            assert_eq!(
                (
                    outcome.exit,
                    outcome.stdout.lines().count(),
                    outcome.stderr.as_str()
                ),
                (Some(0), 1, "")
            );
            assert!(outcome.stdout.starts_with('v'), "{}", outcome.stdout);
        }
    }
}

#[test]
fn help_flag_lists_the_flags_and_an_unknown_flag_is_refused() {
    let plugins = Plugins::locate().unwrap();
    for args in ["-h", "--help"] {
        let outcome = plugins.call("calico").args([args]).run();
        let said = format!("{}{}", outcome.stdout, outcome.stderr);
        assert!(
            said.contains("Usage of Calico") && said.contains("Test datastore connection"),
            "{said}"
        );
    }
    let outcome = plugins.call("calico").args(["--nonsense"]).run();
    assert_eq!(outcome.exit, Some(2));
    assert!(outcome.stderr.contains("nonsense"), "{}", outcome.stderr);
}

#[test]
fn version_command_lists_supported_versions_and_echoes_the_requested() {
    let plugins = Plugins::locate().unwrap();
    for program in ["calico", "calico-ipam"] {
        for asked in VERSIONS {
            let stdin = json!({ "cniVersion": asked }).to_string();
            let call = plugins
                .call(program)
                .env("CNI_COMMAND", "VERSION")
                .without_env("CNI_PATH")
                .stdin(stdin);
            let outcome = call.run();
            assert_eq!(
                outcome.success(),
                json!({ "cniVersion": asked, "supportedVersions": VERSIONS })
            );
        }
    }
}

/// `script` gives the plugin its own terminal, which gets no input.
#[test]
fn call_in_a_terminal_prints_a_short_help_without_waiting_for_stdin() {
    if !present("script") {
        return skipped("script is not installed (Debian: bsdutils)");
    }
    let plugins = Plugins::locate().unwrap();
    for (command, word) in [
        ("", "CNI_COMMAND=ADD"),
        ("ADD", "nothing on standard input"),
        ("VERSION", "supportedVersions"),
    ] {
        let program = plugins.dir().join("calico");
        let line = format!("exec timeout 60 {}", program.display());
        // This pipe keeps the stdin of `script` open for as long as the plugin runs.
        let (silence, _nobody) = std::io::pipe().unwrap();
        let output = Command::new("script")
            .args(["--quiet", "--return", "--command", &line, "/dev/null"])
            .env_clear()
            .envs([
                ("PATH", "/usr/bin:/bin"),
                ("SHELL", "/bin/sh"),
                ("CNI_COMMAND", command),
            ])
            .envs([
                ("CNI_CONTAINERID", "c"),
                ("CNI_NETNS", "/n"),
                ("CNI_IFNAME", "eth0"),
                ("CNI_PATH", "/p"),
            ])
            .stdin(Stdio::from(silence))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_ne!(
            output.status.code(),
            Some(124),
            "{command:?} waited for input: {said}"
        );
        assert!(
            said.contains(word),
            "{command:?}: {word:?} is not in {said}"
        );
    }
}
