//! [`Installation`]: the steps of an installation, in order.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use libcalico::failure::Failure;
use netconf::NetConf;

use super::{InstallError, chain_versions};
use crate::binaries::{self, Binaries};
use crate::cluster::{self, ClusterError};
use crate::config_trial::{self, Trial};
use crate::nodename;
use dataplane::host_network::HostNetwork;
use installation::conflist::{self, Conflist, FormerConfig, Target, Written};
use installation::directory_access::UnwritableDirectory;
use installation::former;
use installation::kubeconfig::{self, KubeconfigError};
use installation::layout::{CALICO, DirectoryRole, Layout};
use installation::mtu;
use installation::service_account::ServiceAccount;
use installation::settings::Settings;
use installation::state::State;
use installation::template;
use installation::tls_assets::{self, TlsAssets};
use os::atomic_file::{self, AtomicFileError, Change};

/// Time limit for reading the pools during an installation.
const POOLS_DEADLINE: Duration = Duration::from_secs(5);

/// Pause between two attempts to reach the API server or etcd.
const PAUSE: Duration = Duration::from_secs(1);

/// The inputs of an installation.
#[derive(Debug, Clone, Copy)]
pub struct Installation<'a> {
    /// The settings.
    pub settings: &'a Settings,
    /// The paths.
    pub layout: &'a Layout,
    /// The account of the pod in which this process runs; `None` outside of a pod.
    pub account: Option<&'a ServiceAccount>,
    /// The node's network.
    pub network: &'a dyn HostNetwork,
}

impl Installation<'_> {
    /// Runs the installation. The configuration comes after all files that it needs, because the
    /// runtime then reports the network as ready (INST-7).
    ///
    /// # Errors
    /// Returns the error of the first step that fails, unless the error is only logged.
    pub fn run(&self) -> Result<(), InstallError> {
        self.install(true)
    }

    /// Installs the files. `contacts_servers` includes the steps that need the API server or the
    /// datastore.
    pub(super) fn install(&self, contacts_servers: bool) -> Result<(), InstallError> {
        let Installation {
            settings,
            layout,
            account,
            ..
        } = *self;
        let net_dir = layout.net_dir(&settings.net_dir);
        for directory in [&net_dir, &layout.state_dir()] {
            if let Some(denied) = UnwritableDirectory::denied(directory) {
                return Err(Failure::from(denied).into());
            }
        }
        atomic_file::sweep(&net_dir);
        atomic_file::sweep(&layout.state_dir());
        let before = self.load_state();

        let (assets, conflist) = self.render_mounted()?;
        let binaries = Binaries::plan(settings, layout, &before)?;
        let mut state = before.clone();
        binaries.record(&mut state);
        let target = Target::new(&net_dir, settings, &before);
        conflist.record(&target, &mut state);
        if account.is_some() {
            state.record(DirectoryRole::Net, kubeconfig::NAME, None, false);
        }
        self.save(&state);

        assets.copy(&net_dir).map_err(Failure::from)?;
        // After an error, the records of an unusable directory may be the restored ones, so the
        // state is saved here.
        let directories = binaries
            .install(&before, &mut state)
            .inspect_err(|_| self.save(&state))?;
        binaries::remove_missing_records(layout, &mut state);
        nodename::find_source(settings, layout).ensure_or_warn(layout);
        if let Some(account) = account.filter(|_| contacts_servers) {
            let change = self.ensure_kubeconfig(account, &net_dir);
            let change = change.map_err(Failure::from)?;
            log_change(change, &net_dir.join(kubeconfig::NAME));
        }
        if contacts_servers {
            self.create_cluster_objects(&conflist)
                .map_err(Failure::from)?;
            let written = self.write_mtu(&conflist, POOLS_DEADLINE, &mut state);
            written.unwrap_or_else(|reason| tracing::warn!("{reason}"));
        }
        if account.is_none() {
            warn_missing_kubeconfig(&conflist);
        }
        let replaced = FormerConfig::find(&target, settings, &mut state);
        let is_new = !conflist.is_written(&target);
        if is_new {
            chain_versions::check(&conflist, &target, &replaced, layout)?;
        }
        self.check_configuration(
            &conflist,
            &target.name,
            &directories,
            contacts_servers && is_new,
        );
        put_in_place(&conflist, &target, &replaced, settings, &mut state, || {
            conflist.write(&target, &replaced)
        })?;
        tls_assets::remove_stale(&net_dir, &assets.on_node(&settings.net_dir));
        conflist::warn_if_not_selected(&target, &settings.net_dir, conflist.network());
        former::remove_files(&mut state, settings, layout);
        self.save(&state);
        tracing::info!("Done configuring CNI.");
        Ok(())
    }

    /// Returns the TLS files for etcd that are mounted in this container, and the configuration
    /// with the paths of their copies on the node.
    pub(super) fn render_mounted(&self) -> Result<(TlsAssets, Conflist), InstallError> {
        let Installation {
            settings,
            layout,
            account,
            ..
        } = *self;
        let assets = TlsAssets::find(&layout.path(&settings.tls_assets)).map_err(Failure::from)?;
        let token = account
            .map(ServiceAccount::token)
            .transpose()?
            .unwrap_or_default();
        let values = settings
            .values
            .clone()
            .with_token(token)
            .with_tls(assets.on_node(&settings.net_dir));
        let conflist = Conflist::render(settings, &values, layout)?;
        Ok((assets, conflist))
    }

    /// Returns the configuration of Calico's plugin that this environment yields.
    pub fn plugin_conf(&self) -> Option<NetConf> {
        self.render_mounted().ok()?.1.plugin_conf
    }

    pub(super) fn write_mtu(
        &self,
        conf: &Conflist,
        limit: Duration,
        state: &mut State,
    ) -> Result<(), Failure> {
        mtu::write(
            conf.plugin_conf.as_ref(),
            self.layout,
            self.network,
            self.account.is_some(),
            limit,
            state,
        )
    }

    /// Ensures that the kubeconfig contains a valid token of the plugins. Retries a temporary
    /// failure until `trial_time` is over: on a new node, the API server's Service may be
    /// unreachable until kube-proxy runs.
    fn ensure_kubeconfig(
        &self,
        account: &ServiceAccount,
        net_dir: &Path,
    ) -> Result<Change, KubeconfigError> {
        let request = self.settings.token_request();
        let ensure = || kubeconfig::ensure(account, &request, net_dir);
        self.retry(
            "cannot get a valid token for the plugins yet",
            KubeconfigError::is_temporary,
            ensure,
        )
    }

    /// Creates missing cluster objects. Errors are logged as warnings, except an unreachable etcd
    /// in a pod.
    ///
    /// There the run retries for `trial_time` and then fails, so that kubelet runs the installer
    /// again. Outside of a pod a warning is enough: images of nodes are built without access to
    /// etcd.
    fn create_cluster_objects(&self, conflist: &Conflist) -> Result<(), ClusterError> {
        let Installation {
            settings, account, ..
        } = *self;
        let may_retry = |error: &ClusterError| account.is_some() && error.is_unreachable();
        let ensure = || cluster::ensure(conflist.plugin_conf.as_ref(), account, settings);
        match self.retry("cannot create the cluster objects yet", may_retry, ensure) {
            Err(error) if !may_retry(&error) => {
                tracing::warn!(
                    "cannot ensure that the cluster objects exist; the installation continues: {error}"
                );
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Repeats `attempt` while it fails with an error for which `may_retry` returns true, until
    /// `trial_time` is over.
    fn retry<T, E: Display>(
        &self,
        failure: &str,
        may_retry: impl Fn(&E) -> bool,
        mut attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let begun = Instant::now();
        loop {
            match attempt() {
                Err(error)
                    if may_retry(&error) && begun.elapsed() + PAUSE < self.settings.trial_time =>
                {
                    tracing::info!("{failure}, trying again: {error}");
                }
                outcome => return outcome,
            }
            thread::sleep(PAUSE);
        }
    }

    /// Logs problems of the configuration. With `tries`, also tries out the configuration, unless
    /// the trial time is 0.
    fn check_configuration(
        &self,
        conflist: &Conflist,
        name: &str,
        directories: &[PathBuf],
        tries: bool,
    ) {
        for problem in template::find_problems(&conflist.text, &conflist.conf, directories) {
            tracing::warn!("the network configuration {name} has a problem: {problem}");
        }
        let tries = tries && !self.settings.trial_time.is_zero();
        if let Some(directory) = directories.first().filter(|_| tries) {
            self.try_out(conflist, &directory.join(CALICO));
        }
    }

    fn try_out(&self, conflist: &Conflist, plugin: &Path) {
        let settings = self.settings;
        let net_dir = Path::new(&settings.net_dir);
        let path_of = |path: &Path| self.layout.translate(path, net_dir);
        match config_trial::try_out(&conflist.conf, plugin, settings.trial_time, path_of) {
            Trial::Passed => tracing::info!("the new configuration works: the datastore is ready"),
            Trial::NotTried(reason) => {
                tracing::info!("the new configuration is not tried: {reason}")
            }
            Trial::Failed(failure) => tracing::warn!(
                %failure,
                hint = "calico-node or kube-controllers may have to start first",
                "the new configuration does not work yet and is installed anyway"
            ),
        }
    }

    /// Loads the records of earlier installations, or empty ones if they cannot be loaded.
    pub(super) fn load_state(&self) -> State {
        let state = State::load(self.layout).unwrap_or_else(|error| {
            tracing::warn!(
                %error,
                "cannot load the records of earlier installations; continuing without them"
            );
            State::default()
        });
        let mut state = State {
            version: node_process::process::build_version().to_owned(),
            // Belongs to an uninstallation.
            torn_down: BTreeSet::new(),
            ..state
        };
        state.use_directory(DirectoryRole::Net, &self.settings.net_dir);
        state.use_directory(DirectoryRole::Bin, &self.settings.bin_dir);
        state
    }

    /// Saves the records. Failure is no error, because upstream's manifests do not mount
    /// `/var/lib/calico` here.
    fn save(&self, state: &State) {
        match state.save(self.layout) {
            Ok(()) => {}
            Err(error) if self.layout.has_persistent_state() => tracing::warn!(
                %error,
                hint = "to update unrecorded plugins other than Calico's, set UPDATE_CNI_BINARIES=true",
                "cannot record the installed files, which `calico uninstall` then keeps"
            ),
            Err(error) => tracing::info!(
                %error,
                reason = "/var/lib/calico is not mounted in this container",
                "cannot record the installed files"
            ),
        }
    }
}

fn log_change(change: Change, path: &Path) {
    match change {
        Change::Written => tracing::info!("wrote {}", path.display()),
        Change::Unchanged => tracing::info!("{} is up to date", path.display()),
    }
}

/// Puts the configuration in place with `write`, and only then removes the `former` configurations.
fn put_in_place(
    conflist: &Conflist,
    target: &Target,
    former: &[FormerConfig],
    settings: &Settings,
    state: &mut State,
    write: impl FnOnce() -> Result<Written, AtomicFileError>,
) -> Result<(), AtomicFileError> {
    let written = write()?;
    log_change(written.change, &target.path());
    conflist.record_written(target, &written, state);
    let target = Target::new(&target.directory, settings, state);
    former
        .iter()
        .for_each(|former| conflist.remove_former(former, &target, state));
    Ok(())
}

/// Warns about a missing kubeconfig, which the installer creates only in a pod.
fn warn_missing_kubeconfig(conflist: &Conflist) {
    let Some(conf) = &conflist.plugin_conf else {
        return;
    };
    let kubeconfig = &conf.kubernetes.kubeconfig;
    if !kubeconfig.is_empty() && !kubeconfig.split(':').any(|path| Path::new(path).exists()) {
        tracing::warn!(
            path = kubeconfig,
            hint = "outside of a pod, write a kubeconfig for the plugins' account",
            "the kubeconfig is missing, so no pod starts"
        );
    }
}

#[cfg(test)]
mod tests {
    use libcalico::variables::Variables;
    use std::fs;
    use std::io::{Error, ErrorKind};

    use super::*;

    const OLD: &str =
        r#"{"name": "k8s-pod-network", "plugins": [{"type": "calico"}, {"type": "mesh"}]}"#;

    /// Replaces a configuration of another name by `write`. Returns true if the replaced file still
    /// exists.
    fn is_old_there_after(
        write: impl FnOnce(&Conflist, &Target, &[FormerConfig]) -> Result<Written, AtomicFileError>,
    ) -> bool {
        let dir = tempfile::tempdir().unwrap();
        let old = dir.path().join("10-calico.conflist");
        fs::write(&old, OLD).unwrap();
        let lookup =
            |name: &str| (name == "CNI_CONF_NAME").then(|| "05-calico.conflist".to_owned());
        let settings = Settings::from_environment(Variables::new(&lookup), "n").unwrap();
        let mut state = State::default();
        let target = Target::new(dir.path(), &settings, &state);
        let conflist = Conflist::render(
            &settings,
            &settings.values,
            &Layout::below(Path::new("/no/such/root")),
        )
        .unwrap();
        let former = FormerConfig::find(&target, &settings, &mut state);
        assert_eq!(former.len(), 1);
        let write = || write(&conflist, &target, former.as_slice());
        let outcome = put_in_place(&conflist, &target, &former, &settings, &mut state, write);
        assert_eq!(outcome.is_err(), old.exists());
        assert_eq!(
            state.get(DirectoryRole::Net, &target.name).is_some(),
            outcome.is_ok()
        );
        old.exists()
    }

    #[test]
    fn former_configuration_is_retained_if_each_write_is_reverted() {
        assert!(is_old_there_after(|_, target, _| {
            let source = Error::from(ErrorKind::ResourceBusy);
            Err(AtomicFileError {
                action: "change",
                path: target.path(),
                source,
            })
        }));
        assert!(!is_old_there_after(Conflist::write));
    }
}
