//! Replays the node's deferred DELs in the agent. On a node where no pod starts or stops, there may
//! be no CNI call that replays them.

use libcalico::variables::Variables;
use std::future::pending;
use std::path::PathBuf;
use std::time::Duration;

use allocation::journal::datastore_name;
use ipam_plugin::datastore_settings;
use libcalico::failure::{Failure, OrFail};
use netconf::NetConf;
use netconf::list::calico_plugin;
use tokio::time::{Instant, sleep, timeout};

use installation::conflist::Target;
use installation::layout::Layout;
use installation::node_conf;
use installation::settings::Settings;
use installation::state::State;
use os::atomic_file::regular_file;

/// Shortest pause between two passes over the journal.
const PAUSE: Duration = Duration::from_secs(60);
/// Interval after which the identity of the datastore is read again, because another datastore may
/// have replaced it.
const IDENTITY_INTERVAL: Duration = Duration::from_secs(3600);
/// Longest pause between passes while the remaining deferred DELs cannot be replayed.
const MAX_PAUSE: Duration = Duration::from_secs(16 * 60);

/// The plugins as configured on this node.
#[derive(Debug)]
pub struct NodePlugins {
    /// The plugins' configuration, with its paths translated to paths of this container.
    pub conf: NetConf,
    /// The name of the datastore as the plugins write it into journal entries.
    pub datastore: String,
    /// The directory of the plugins' journal.
    pub journal: PathBuf,
    /// Whether to read the identity of the datastore even if the journal is empty.
    pub reads_identity: bool,
}

/// The outcome of one pass over the journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplayPass {
    /// True if the identity of the datastore was read.
    pub has_read_identity: bool,
    /// Number of deferred DELs that were replayed.
    pub replayed: usize,
    /// Number of deferred DELs for this datastore that remain.
    pub remaining: usize,
}

impl NodePlugins {
    /// Reads the configuration in [`installed_conf_path`].
    fn load(settings: &Settings, layout: &Layout) -> Result<NodePlugins, Failure> {
        let file = installed_conf_path(settings, layout);
        let read = || -> Result<NodePlugins, Failure> {
            let text = regular_file::text(&file)?;
            let conf = node_conf::parse(&text, layout, &settings.net_dir)?;
            let value = node_conf::value(&text)?;
            // The name of the datastore must not depend on this container's environment: the
            // runtime runs the plugin with another.
            let on_node = node_conf::read(calico_plugin(value).map_err(Failure::new)?)?;
            let datastore = datastore_name(&datastore_settings::with_environment(
                &on_node,
                None,
                Variables::NONE,
            )?);
            Ok(NodePlugins {
                conf,
                datastore,
                journal: layout.journal_dir(),
                reads_identity: false,
            })
        };
        read().or_fail(file.display())
    }
}

/// Returns the path of the configuration that the installation wrote. It may be the list to which
/// istio-cni or linkerd-cni converted a single plugin, or the file that Cilium renamed: datastore
/// and log are the same.
pub(super) fn installed_conf_path(settings: &Settings, layout: &Layout) -> PathBuf {
    let state = State::load(layout).unwrap_or_default();
    Target::new(&layout.net_dir(&settings.net_dir), settings, &state).current_path()
}

/// Replays deferred DELs through `replay` with the plugins' credentials. The pause between passes
/// is one minute. It grows, to 16 minutes at most, while passes reach the datastore and replay none
/// of the entries, unless more entries are there than before. `replay` is not called while the
/// configuration is missing or unusable, or if the state directory, which contains the journal, is
/// not mounted in this container. Never returns.
pub async fn replay_repeatedly(
    settings: &Settings,
    layout: &Layout,
    replay: impl AsyncFn(&NodePlugins) -> Result<ReplayPass, Failure>,
) {
    if !layout.has_persistent_state() {
        let path = layout.state_dir();
        tracing::info!(
            path = %path.display(),
            "not replaying deferred DELs: the directory is not mounted in this container"
        );
        return pending().await;
    }
    let (mut identity_read_at, mut pause, mut reported, mut remaining) =
        (None::<Instant>, PAUSE, None, 0);
    loop {
        let reads_identity = identity_read_at.is_none_or(|at| at.elapsed() >= IDENTITY_INTERVAL);
        let outcome = match NodePlugins::load(settings, layout) {
            Ok(plugins) => {
                replay(&NodePlugins {
                    reads_identity,
                    ..plugins
                })
                .await
            }
            Err(error) => Err(error),
        };
        pause = pause_after(&outcome, pause, remaining);
        match outcome {
            Ok(pass) => {
                if pass.has_read_identity {
                    identity_read_at = Some(Instant::now());
                }
                (remaining, reported) = (pass.remaining, None);
                if pass.replayed > 0 {
                    tracing::info!(
                        "replayed {} deferred DELs; {} remain for a later pass",
                        pass.replayed,
                        pass.remaining
                    );
                }
            }
            Err(reason) => {
                if reported.as_ref() != Some(&reason) {
                    tracing::info!(
                        "this pass replayed no deferred DELs; trying again each minute: {reason}"
                    );
                }
                reported = Some(reason);
            }
        }
        sleep(pause).await;
    }
}

/// Reads the identity of the datastore and replays deferred DELs once, through `replay`. Serves an
/// installation that leaves no agent running. If the datastore fails or needs longer than
/// `time_limit`, later calls of the plugin do this work.
pub async fn replay_once(
    settings: &Settings,
    layout: &Layout,
    time_limit: Duration,
    replay: impl AsyncFn(&NodePlugins) -> Result<ReplayPass, Failure>,
) {
    if !layout.has_persistent_state() {
        return;
    }
    let replaying = async {
        let plugins = NodePlugins::load(settings, layout)?;
        replay(&NodePlugins {
            reads_identity: true,
            ..plugins
        })
        .await
    };
    let late = format!("the replay did not end within {time_limit:?}");
    let outcome = timeout(time_limit, replaying).await;
    if let Err(reason) = outcome.unwrap_or_else(|_| Err(Failure::new(late))) {
        tracing::info!(
            %reason,
            hint = "a GC or a later replay of the plugin completes this",
            "the installation may not have replayed all deferred DELs"
        );
    }
}

/// Returns the pause before the next pass. If the pass replayed none of the entries, and not more
/// remain than `remaining_before` (or than 1, if that is 0), the pause is twice `pause`, at most
/// [`MAX_PAUSE`], because each attempt sends several requests. Otherwise the pause is one minute,
/// also if no entry remains, and after an error: a pass with an unreachable datastore sends only
/// one request.
fn pause_after(
    outcome: &Result<ReplayPass, Failure>,
    pause: Duration,
    remaining_before: usize,
) -> Duration {
    let is_stuck = |pass: &ReplayPass| {
        pass.replayed == 0 && (1..=remaining_before.max(1)).contains(&pass.remaining)
    };
    if outcome.as_ref().is_ok_and(is_stuck) {
        (pause * 2).min(MAX_PAUSE)
    } else {
        PAUSE
    }
}

#[cfg(test)]
mod tests {
    use libcalico::variables::Variables;
    use std::cell::RefCell;
    use std::fs;

    use super::*;

    const LIST: &str = r#"{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"calico","datastore_type":"kubernetes",
        "kubernetes":{"kubeconfig":"/etc/cni/net.d/calico-kubeconfig"}}]}"#;

    fn settings(variables: &[(&str, &str)]) -> Settings {
        let lookup = |name: &str| {
            variables
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        };
        Settings::from_environment(Variables::new(&lookup), "n").unwrap()
    }

    /// Runs the passes of one hour. `outcomes` are the outcomes of the first passes; later passes
    /// find an empty journal. Returns for each pass its start in seconds, and whether the pass was
    /// to read the identity of the datastore.
    async fn passes(outcomes: Vec<Result<ReplayPass, Failure>>) -> Vec<(u64, bool)> {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("host/etc/cni/net.d")).unwrap();
        let file = root.path().join("host/etc/cni/net.d/10-calico.conflist");
        fs::write(&file, LIST).unwrap();
        let layout = Layout::below(root.path());
        let (start, calls, outcomes) = (
            Instant::now(),
            RefCell::new(Vec::new()),
            RefCell::new(outcomes.into_iter()),
        );
        let replay = async |plugins: &NodePlugins| {
            assert_eq!(
                plugins.datastore,
                "kubernetes /etc/cni/net.d/calico-kubeconfig"
            );
            assert!(
                plugins
                    .conf
                    .kubernetes
                    .kubeconfig
                    .ends_with("host/etc/cni/net.d/calico-kubeconfig")
            );
            assert!(plugins.journal.ends_with("var/lib/calico/cni-journal"));
            calls
                .borrow_mut()
                .push((start.elapsed().as_secs(), plugins.reads_identity));
            match outcomes.borrow_mut().next() {
                Some(outcome) => outcome,
                None => Ok(ReplayPass::default()),
            }
        };
        let (settings, hour) = (settings(&[]), sleep(Duration::from_secs(3600)));
        tokio::select! {
            () = replay_repeatedly(&settings, &layout, replay) => {}
            () = hour => {}
        }
        calls.into_inner()
    }

    #[tokio::test(start_paused = true)]
    async fn identity_of_the_datastore_is_requested_each_minute_until_it_is_read() {
        let away = || Err(Failure::new("away"));
        let calls = passes(vec![
            away(),
            away(),
            Ok(ReplayPass {
                has_read_identity: true,
                ..ReplayPass::default()
            }),
        ])
        .await;
        assert_eq!(
            calls[..5],
            [
                (0, true),
                (60, true),
                (120, true),
                (180, false),
                (240, false)
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn failing_deferred_dels_are_retried_less_often() {
        let stuck = || {
            Ok(ReplayPass {
                remaining: 1,
                ..ReplayPass::default()
            })
        };
        let replayed = Ok(ReplayPass {
            replayed: 1,
            remaining: 1,
            ..ReplayPass::default()
        });
        let calls = passes(vec![stuck(), stuck(), replayed, stuck()]).await;
        let at: Vec<u64> = calls.into_iter().map(|(at, _)| at).collect();
        assert_eq!(at[..5], [0, 120, 360, 420, 540]);
    }

    #[tokio::test(start_paused = true)]
    async fn deferred_dels_are_not_replayed_without_a_calico_configuration() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(root.path());
        let replay = async |_: &NodePlugins| panic!("nobody is asked");
        let settings = settings(&[]);
        let replaying = replay_repeatedly(&settings, &layout, replay);
        assert!(
            tokio::time::timeout(Duration::from_secs(600), replaying)
                .await
                .is_err()
        );
    }

    #[test]
    fn configuration_that_another_program_renamed_or_converted_is_read() {
        let cilium = r#"{"name":"cilium","plugins":[{"type":"cilium-cni"}]}"#;
        let list = LIST.replace("\"plugins\":[", "\"plugins\":[{\"type\":\"istio-cni\"},");
        for (conf_name, files) in [
            (
                "10-calico.conflist",
                [
                    ("05-cilium.conflist", cilium),
                    ("10-calico.conflist.cilium_bak", LIST),
                ]
                .as_slice(),
            ),
            (
                "10-calico.conf",
                [("10-calico.conflist", list.as_str())].as_slice(),
            ),
        ] {
            let root = tempfile::tempdir().unwrap();
            let net_dir = root.path().join("etc/cni/net.d");
            fs::create_dir_all(&net_dir).unwrap();
            for (name, text) in files {
                fs::write(net_dir.join(name), text).unwrap();
            }
            let layout = Layout::below(root.path());
            let plugins =
                NodePlugins::load(&settings(&[("CNI_CONF_NAME", conf_name)]), &layout).unwrap();
            assert_eq!(
                plugins.datastore, "kubernetes /etc/cni/net.d/calico-kubeconfig",
                "{conf_name}"
            );
        }
    }
}
