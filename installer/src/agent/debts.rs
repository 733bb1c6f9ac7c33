//! Debts of DELs: a node on which no pod comes or goes pays them through its agent, as the plugins would.

use std::future::pending;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipam_plugin::datastore_settings;
use ipam_plugin::journal::name_of;
use netconf::NetConf;
use netconf::list::calico_plugin;
use tokio::time::{Instant, sleep, timeout};

use crate::journal;
use crate::layout::Layout;
use crate::{node_conf, regular_file};

/// Between two looks at the journal.
const PAUSE: Duration = Duration::from_secs(60);
/// After this time the datastore is asked for its identity again: another one may be in its place.
const LEARNING: Duration = Duration::from_secs(3600);
/// The longest pause while debts are left that cannot be paid.
const LONGEST_PAUSE: Duration = Duration::from_secs(16 * 60);

/// The plugins as they are configured on this node.
#[derive(Debug)]
pub struct Plugins {
    /// Their configuration, with the paths by which this process finds what it names.
    pub conf: NetConf,
    /// The datastore as the plugins' own journal entries spell it.
    pub datastore: String,
    /// The directory of their journal.
    pub journal: PathBuf,
    /// Whether to ask the datastore for its identity although no DEL owes anything.
    pub learns: bool,
}

/// The outcome of a pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pass {
    /// The datastore has told its identity.
    pub learned: bool,
    /// Debts that were paid.
    pub paid: usize,
    /// Debts to this datastore that are left.
    pub left: usize,
}

impl Plugins {
    /// Reads the configuration file `file` of the node. `net_dir` is its directory as the node calls it.
    fn of(file: &Path, layout: &Layout, net_dir: &str) -> Result<Plugins, String> {
        let text = regular_file::text(file).map_err(|error| error.to_string())?;
        let conf = node_conf::parse(&text, layout, net_dir)?;
        let value = node_conf::value(&text)?;
        // As a runtime calls the plugin, whose environment is not this container's.
        let on_node = node_conf::read(calico_plugin(value)?)?;
        let config =
            datastore_settings::with_environment(&on_node, None, |_| None).map_err(|error| error.to_string())?;
        let journal = journal::directory(layout);
        Ok(Plugins { conf, datastore: name_of(&config), journal, learns: false })
    }
}

/// Has `pay` pay debts with the plugins' credentials, once a minute, less often while none of those that are left can
/// be paid. A node whose configuration is not Calico's, or is not there, has none to pay. Never ends.
pub(crate) async fn look_after(
    file: &Path,
    layout: &Layout,
    net_dir: &str,
    pay: impl AsyncFn(&Plugins) -> Result<Pass, String>,
) {
    if !layout.keeps_state() {
        tracing::info!("{} is not mounted here: what DELs owe is left to the plugin", layout.state_dir().display());
        return pending().await;
    }
    let (mut learned, mut pause, mut told, mut left): (Option<Instant>, _, _, _) = (None, PAUSE, None, 0);
    loop {
        let learns = learned.is_none_or(|at| at.elapsed() >= LEARNING);
        let outcome = match Plugins::of(file, layout, net_dir) {
            Ok(plugins) => pay(&Plugins { learns, ..plugins }).await,
            Err(reason) => Err(format!("{}: {reason}", file.display())),
        };
        pause = pause_after(&outcome, pause, left);
        match outcome {
            Ok(pass) => {
                if pass.learned {
                    learned = Some(Instant::now());
                }
                (left, told) = (pass.left, None);
                if pass.paid > 0 {
                    tracing::info!("paid the debts of {} earlier DELs; {} are left", pass.paid, pass.left);
                }
            }
            Err(reason) => {
                if told.as_ref() != Some(&reason) {
                    tracing::info!("what earlier DELs owe, if anything, is not paid now: {reason}");
                }
                told = Some(reason);
            }
        }
        sleep(pause).await;
    }
}

/// Has `pay` learn what the datastore is, and pay, once: for an installation after which no agent stays. A datastore
/// that takes longer than `patience`, or refuses, is left to later calls of the plugin.
pub(crate) async fn once(
    file: &Path,
    layout: &Layout,
    net_dir: &str,
    patience: Duration,
    pay: impl AsyncFn(&Plugins) -> Result<Pass, String>,
) {
    if !layout.keeps_state() {
        return;
    }
    let paying = async {
        let plugins = Plugins::of(file, layout, net_dir).map_err(|reason| format!("{}: {reason}", file.display()))?;
        pay(&Plugins { learns: true, ..plugins }).await
    };
    let outcome = timeout(patience, paying).await.unwrap_or_else(|_| Err(format!("no answer within {patience:?}")));
    if let Err(reason) = outcome {
        tracing::info!("the identity of the datastore is not learned now; the first GC or payment learns it: {reason}");
    }
}

/// Returns the next pause. A datastore that is away costs one request a minute; debts that cannot be paid cost several
/// each time.
fn pause_after(outcome: &Result<Pass, String>, pause: Duration, left_before: usize) -> Duration {
    match outcome {
        Ok(Pass { paid: 0, left: left @ 1.., .. }) if *left <= left_before.max(1) => (pause * 2).min(LONGEST_PAUSE),
        _ => PAUSE,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs;

    use super::*;

    const LIST: &str = r#"{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"calico","datastore_type":"kubernetes",
        "kubernetes":{"kubeconfig":"/etc/cni/net.d/calico-kubeconfig"}}]}"#;

    /// When passes began, in seconds, with whether they were to learn.
    async fn passes(outcomes: Vec<Result<Pass, String>>) -> Vec<(u64, bool)> {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("host/etc/cni/net.d")).unwrap();
        let file = root.path().join("host/etc/cni/net.d/10-calico.conflist");
        fs::write(&file, LIST).unwrap();
        let layout = Layout::below(root.path());
        let (begun, seen, left) = (Instant::now(), RefCell::new(Vec::new()), RefCell::new(outcomes.into_iter()));
        let pay = async |plugins: &Plugins| {
            assert_eq!(plugins.datastore, "kubernetes /etc/cni/net.d/calico-kubeconfig");
            assert!(plugins.conf.kubernetes.kubeconfig.ends_with("host/etc/cni/net.d/calico-kubeconfig"));
            assert!(plugins.journal.ends_with("var/lib/calico/cni-journal"));
            seen.borrow_mut().push((begun.elapsed().as_secs(), plugins.learns));
            match left.borrow_mut().next() {
                Some(outcome) => outcome,
                None => Ok(Pass::default()),
            }
        };
        let hour = sleep(Duration::from_secs(3600));
        tokio::select! {
            () = look_after(&file, &layout, "/etc/cni/net.d", pay) => {}
            () = hour => {}
        }
        seen.into_inner()
    }

    #[tokio::test(start_paused = true)]
    async fn a_datastore_that_is_away_is_asked_each_minute_until_it_has_told_its_identity() {
        let away = || Err("away".to_owned());
        let seen = passes(vec![away(), away(), Ok(Pass { learned: true, ..Pass::default() })]).await;
        assert_eq!(seen[..5], [(0, true), (60, true), (120, true), (180, false), (240, false)]);
    }

    #[tokio::test(start_paused = true)]
    async fn debts_that_cannot_be_paid_are_tried_less_and_less_often() {
        let stuck = || Ok(Pass { left: 1, ..Pass::default() });
        let paid = Ok(Pass { paid: 1, left: 1, ..Pass::default() });
        let seen = passes(vec![stuck(), stuck(), paid, stuck()]).await;
        let at: Vec<u64> = seen.into_iter().map(|(at, _)| at).collect();
        assert_eq!(at[..5], [0, 120, 360, 420, 540]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_without_a_configuration_of_calicos_has_no_debts_to_pay() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::below(root.path());
        let pay = async |_: &Plugins| panic!("nobody is asked");
        let file = root.path().join("none.conflist");
        let looking = look_after(&file, &layout, "/etc/cni/net.d", pay);
        assert!(tokio::time::timeout(Duration::from_secs(600), looking).await.is_err());
    }
}
