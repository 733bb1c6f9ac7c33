//! Tries out a configuration before runtimes see it. The installed plugin tests with `-t` whether
//! the datastore is reachable, accepts the credentials and is ready.
//!
//! The result is only logged: in a new cluster the datastore may become ready later.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libcalico::failure::Failure;
use os::child;
use serde_json::{Map, Value};

use installation::layout::CALICO;
use installation::node_conf;
use installation::template::kind;
use installation::version_run::BUSY;

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// The result of a trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trial {
    /// The datastore is reachable and ready.
    Passed,
    /// The configuration cannot be tried, for this reason.
    NotTried(String),
    /// The plugin did not succeed within the time limit; its last error.
    Failed(String),
}

/// Runs the program `plugin` with `conf` until it succeeds, for at most `time`. `path_of`
/// translates a path on the node to a path in this container.
pub fn try_out(
    conf: &Map<String, Value>,
    plugin: &Path,
    time: Duration,
    path_of: impl Fn(&Path) -> PathBuf,
) -> Trial {
    let deadline = Instant::now() + time;
    let input = match input(conf, path_of) {
        Ok(input) => input,
        Err(reason) => return Trial::NotTried(reason.to_string()),
    };
    loop {
        let failure = match run_plugin(plugin, &input, deadline) {
            Ok(failure) if failure.is_empty() => return Trial::Passed,
            Ok(failure) => failure,
            Err(error) => error.to_string(),
        };
        if Instant::now() + PAUSE >= deadline {
            return Trial::Failed(failure);
        }
        tracing::info!("the new configuration does not work yet, trying again: {failure}");
        thread::sleep(PAUSE);
    }
}

/// Returns the plugin's stdin as a runtime would write it, with paths of this container.
fn input(conf: &Map<String, Value>, path_of: impl Fn(&Path) -> PathBuf) -> Result<String, Failure> {
    let plugin = node_conf::plugin(Value::Object(conf.clone()), path_of)?;
    if kind(&plugin) != CALICO {
        return Err(Failure::new(
            "the configuration does not contain the plugin calico",
        ));
    }
    let kubeconfig = plugin
        .get("kubernetes")
        .and_then(|kubernetes| kubernetes.get("kubeconfig")?.as_str());
    if let Some(file) = kubeconfig.filter(|file| !file.is_empty() && !Path::new(file).exists()) {
        return Err(Failure::new(format_args!(
            "the kubeconfig {file} is missing"
        )));
    }
    Ok(Value::Object(plugin).to_string())
}

/// Runs the plugin once and returns its error text, which is empty on success. The plugin is killed
/// at `deadline`.
fn run_plugin(plugin: &Path, input: &str, deadline: Instant) -> std::io::Result<String> {
    let mut command = Command::new(plugin);
    command.arg("-t").env_clear().stderr(Stdio::null());
    let limit = deadline.saturating_duration_since(Instant::now());
    let output = child::run(&mut command, input.as_bytes(), limit, BUSY)?;
    Ok(output.map_or_else(
        || "the plugin did not answer in time".to_owned(),
        |output| error_text(&output),
    ))
}

/// Returns the plugin's error, or an empty text if the plugin succeeded.
fn error_text(Output { status, stdout, .. }: &Output) -> String {
    if status.success() {
        return String::new();
    }
    let error: Value = serde_json::from_slice(stdout).unwrap_or_default();
    let words = ["msg", "details"]
        .iter()
        .filter_map(|key| error.get(key)?.as_str())
        .filter(|word| !word.is_empty());
    let words = words.collect::<Vec<_>>().join(": ");
    if words.is_empty() {
        format!("the plugin ended with {status}")
    } else {
        words
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use installation::template::parse;

    fn conf(text: &str) -> Map<String, Value> {
        parse(text).unwrap()
    }

    const LIST: &str = r#"{"name": "net", "cniVersion": "1.0.0", "plugins": [
        {"type": "portmap"}, {"type": "calico", "etcd_key_file": "/n/calico-tls/etcd-key", "mtu": 0}]}"#;

    const LONG: Duration = Duration::from_secs(60);

    fn script(dir: &tempfile::TempDir, text: &str) -> PathBuf {
        let plugin = dir.path().join("calico");
        fs::write(&plugin, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
        plugin
    }

    fn one_attempt(text: &str, time: Duration) -> String {
        let dir = tempfile::tempdir().unwrap();
        run_plugin(&script(&dir, text), "{}", Instant::now() + time).unwrap()
    }

    #[test]
    fn trial_input_has_the_runtimes_fields_and_container_paths() {
        let input = input(&conf(LIST), |path| {
            Path::new("/host").join(path.strip_prefix("/").unwrap())
        })
        .unwrap();
        let input = conf(&input);
        assert_eq!(
            (input["name"].as_str(), input["cniVersion"].as_str()),
            (Some("net"), Some("1.0.0"))
        );
        assert_eq!(input["etcd_key_file"], "/host/n/calico-tls/etcd-key");
    }

    #[test]
    fn untestable_configuration_is_reported_with_the_reason() {
        let reason = |text| {
            input(&conf(text), |path| path.to_owned())
                .unwrap_err()
                .to_string()
        };
        assert!(
            reason("{}").starts_with("the configured plugin is not `calico`"),
            "{}",
            reason("{}")
        );
        let by_ipam = r#"{"type": "bridge", "ipam": {"type": "calico-ipam"}}"#;
        assert_eq!(
            reason(by_ipam),
            "the configuration does not contain the plugin calico"
        );
        let missing = r#"{"type": "calico", "kubernetes": {"kubeconfig": "/no/such/file"}}"#;
        assert_eq!(reason(missing), "the kubeconfig /no/such/file is missing");
    }

    #[test]
    fn plugin_failure_is_reported_with_its_error() {
        assert_eq!(
            one_attempt(
                "[ \"$*\" = -t ] && [ \"$(cat)\" = {} ] && [ -z \"$HOME\" ]",
                LONG
            ),
            ""
        );
        let words = r#"echo '{"code": 100, "msg": "data store connection failed", "details": "why"}'; exit 1"#;
        assert_eq!(
            one_attempt(words, LONG),
            "data store connection failed: why"
        );
        assert_eq!(
            one_attempt("exit 7", LONG),
            "the plugin ended with exit status: 7"
        );
        assert_eq!(
            one_attempt("exec sleep 1000", Duration::from_millis(50)),
            "the plugin did not answer in time"
        );
    }

    #[test]
    fn configuration_is_tried_until_success_or_timeout() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("mark");
        let plugin = script(
            &dir,
            &format!("[ -e {0} ] || {{ touch {0}; exit 1; }}", mark.display()),
        );
        let try_out = |time| try_out(&conf(LIST), &plugin, time, |path| path.to_owned());
        assert_eq!(try_out(LONG), Trial::Passed);
        fs::remove_file(&mark).unwrap();
        assert!(matches!(try_out(PAUSE), Trial::Failed(_)));
    }
}
