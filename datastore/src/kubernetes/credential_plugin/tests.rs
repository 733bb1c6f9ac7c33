//! Plugins that are shell scripts.

use std::collections::HashMap;
use std::fs;
use std::time::Instant;

use kube::config::ExecAuthCluster;
use secrecy::ExposeSecret;

use super::*;

fn script(text: &str) -> ExecConfig {
    ExecConfig {
        api_version: Some(VERSIONS[0].into()),
        command: Some("/bin/sh".into()),
        args: Some(vec![
            "-c".into(),
            text.into(),
            "plugin".into(),
            "argument".into(),
        ]),
        ..ExecConfig::default()
    }
}

fn printing(version: &str, token: &str) -> String {
    let status = json!({ "token": token });
    format!(
        "echo '{}'",
        json!({ "apiVersion": version, "kind": "ExecCredential", "status": status })
    )
}

async fn error_of(exec: &ExecConfig) -> String {
    run(exec, false).await.unwrap_err().to_string()
}

#[tokio::test]
async fn plugin_gets_arguments_variables_and_the_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let seen = dir.path().join("seen");
    let text = format!(
        "echo \"$1 $EXTRA $KUBERNETES_EXEC_INFO\" >{}; {}",
        seen.display(),
        printing(VERSIONS[0], "t")
    );
    let extra = HashMap::from([
        ("name".to_owned(), "EXTRA".to_owned()),
        ("value".to_owned(), "more".to_owned()),
    ]);
    let server = Some("https://api:6443".to_owned());
    let cluster = ExecAuthCluster {
        server: server.clone(),
        certificate_authority_data: Some(b"ca".into()),
        ..ExecAuthCluster::default()
    };
    let exec = ExecConfig {
        env: Some(vec![extra]),
        cluster: Some(cluster),
        ..script(&text)
    };
    let credential = run(&exec, true).await.unwrap();
    assert_eq!(credential.token.unwrap().expose_secret(), "t");
    let seen = fs::read_to_string(seen).unwrap();
    let info: Value = serde_json::from_str(seen.strip_prefix("argument more ").unwrap()).unwrap();
    let cluster = json!({ "server": server, "certificate-authority-data": "Y2E=" });
    assert_eq!(
        (&info["apiVersion"], &info["kind"]),
        (&json!(VERSIONS[0]), &json!("ExecCredential"))
    );
    assert_eq!(info["spec"]["cluster"], cluster);
}

#[tokio::test]
async fn plugin_of_version_v1beta1_answers_in_its_version() {
    let exec = ExecConfig {
        api_version: Some(VERSIONS[1].into()),
        ..script(&printing(VERSIONS[1], "t"))
    };
    assert!(run(&exec, false).await.is_ok());
    let exec = ExecConfig {
        api_version: Some(VERSIONS[1].into()),
        ..script(&printing(VERSIONS[0], "t"))
    };
    assert!(
        error_of(&exec)
            .await
            .contains("demands client.authentication.k8s.io/v1beta1")
    );
}

#[tokio::test]
async fn failure_of_a_plugin_is_named_without_its_output() {
    let hint = Some("apt install plugin".to_owned());
    for (exec, expected) in [
        (
            script("echo secret; echo secret >&2; exit 3"),
            "failed (exit status: 3)",
        ),
        (script("echo secret"), "not the JSON or YAML"),
        (
            ExecConfig {
                command: Some("/none/plugin".into()),
                ..script("secret")
            },
            "cannot run the program: No such file",
        ),
        (
            ExecConfig {
                command: Some("/none/x".into()),
                install_hint: hint,
                ..script("")
            },
            "; apt install plugin",
        ),
        (
            ExecConfig {
                command: None,
                ..script("")
            },
            "names no command",
        ),
        (
            ExecConfig {
                command: Some(String::new()),
                ..script("")
            },
            "names no command",
        ),
        (
            ExecConfig {
                api_version: None,
                ..script("")
            },
            "its apiVersion is ``",
        ),
        (
            ExecConfig {
                api_version: Some("client.authentication.k8s.io/v1alpha1".into()),
                ..script("")
            },
            "v1alpha1`; write client.authentication.k8s.io/v1 or",
        ),
    ] {
        let error = error_of(&exec).await;
        assert!(
            error.contains(expected) && !error.contains("secret"),
            "{expected}: {error}"
        );
    }
}

#[tokio::test]
async fn unattended_plugin_reads_an_empty_stdin() {
    let text = format!("test -z \"$(cat)\" && {}", printing(VERSIONS[0], "t"));
    assert!(run(&script(&text), false).await.is_ok());
}

#[tokio::test]
async fn hanging_plugin_ends_at_the_time_limit() {
    let limit = Duration::from_secs(1);
    let error = run_within(limit, &script("exec sleep 1000"), false)
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with(&format!("no credentials within {limit:?}, ")),
        "{error}"
    );
}

#[test]
fn plugin_that_may_ask_is_known_to_the_process_while_it_runs() {
    let dir = tempfile::tempdir().unwrap();
    let release = dir.path().join("release");
    let script = script(&format!(
        "until test -e {}; do sleep 0.1; done",
        release.display()
    ));
    let mut command = command(&script, VERSIONS[0], true).unwrap();
    let given_up = Instant::now() + TIME_LIMIT;
    // On a terminal, plugins of other tests may ask, too.
    let becomes = |expected: bool| {
        while may_be_asking() != expected {
            assert!(Instant::now() < given_up, "{expected}");
            thread::sleep(BUSY.pause);
        }
    };
    let run = thread::spawn(move || execute(&mut command, true, TIME_LIMIT));
    becomes(true);
    fs::write(release, "").unwrap();
    assert!(run.join().unwrap().unwrap().unwrap().status.success());
    becomes(false);
}

#[test]
fn plugin_asks_only_where_a_terminal_and_its_mode_allow() {
    use ExecInteractiveMode::{Always, IfAvailable, Never};
    for (mode, has_terminal, expected) in [
        (None, true, Some(true)),
        (None, false, Some(false)),
        (Some(IfAvailable), true, Some(true)),
        (Some(IfAvailable), false, Some(false)),
        (Some(Never), true, Some(false)),
        (Some(Always), true, Some(true)),
        (Some(Always), false, None),
    ] {
        assert_eq!(
            is_interactive(mode.as_ref(), has_terminal).ok(),
            expected,
            "{mode:?} {has_terminal}"
        );
    }
}
