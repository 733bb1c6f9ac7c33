//! One installation, from beginning to end (INST-6).
//!
//! What can be refused is refused before anything is written, and each file is put in place whole. So a run that fails
//! leaves the installation of before in working order, and the next run goes on from there.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::agent::Kept;
use crate::atomic_file::{self, AtomicFileError, Change};
use crate::binaries::{Binaries, BinariesError, CALICO};
use crate::candidate::{self, Trial};
use crate::cluster;
use crate::conflist::{self, Conflist, ConflistError};
use crate::credentials::{self, CredentialsError};
use crate::digest;
use crate::host_network::{self, HostNetwork};
use crate::kubeconfig;
use crate::layout::{Layout, Place};
use crate::mtu::{self, MtuFile};
use crate::node_conf;
use crate::nodename;
use crate::service_account::{ServiceAccount, ServiceAccountError};
use crate::settings::Settings;
use crate::state::State;
use crate::template::{self, Tls};
use crate::tls_assets::{self, TlsAssetsError};

/// How long the datastore may take to tell its pools.
const ANSWER: Duration = Duration::from_secs(5);

/// Why an installation failed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The pod's own account.
    #[error(transparent)]
    Account(#[from] ServiceAccountError),
    /// The files for TLS with etcd.
    #[error(transparent)]
    Tls(#[from] TlsAssetsError),
    /// The configuration.
    #[error(transparent)]
    Conflist(#[from] ConflistError),
    /// The programs.
    #[error(transparent)]
    Binaries(#[from] BinariesError),
    /// The token of the plugins.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// A file.
    #[error(transparent)]
    File(#[from] AtomicFileError),
}

/// What is installed where.
#[derive(Debug, Clone, Copy)]
pub struct Installation<'a> {
    /// What to install and how.
    pub settings: &'a Settings,
    /// Where.
    pub layout: &'a Layout,
    /// The pod that this process is in.
    pub account: Option<&'a ServiceAccount>,
    /// The node's network.
    pub network: &'a dyn HostNetwork,
}

impl Installation<'_> {
    /// Does everything, the configuration last: with it the runtime takes the network for ready (INST-7).
    ///
    /// # Errors
    /// Something is missing or refused. What was there before still works.
    pub fn run(&self) -> Result<(), InstallError> {
        self.install(true)
    }

    /// With `asks`, the API server is asked for what only it has, and the new configuration is tried.
    fn install(&self, asks: bool) -> Result<(), InstallError> {
        let Installation { settings, layout, account, .. } = *self;
        let net_dir = layout.net_dir(&settings.net_dir);
        atomic_file::sweep(&net_dir);
        atomic_file::sweep(&layout.state_dir());
        let mut state = self.load_state();

        let tls = tls_assets::copy(&layout.path(&settings.tls_assets), &net_dir, &settings.net_dir)?;
        let conflist = self.render(&tls)?;
        let binaries = Binaries::plan(settings, layout, &state)?;
        binaries.note(&mut state);
        conflist.note(&net_dir, settings, &mut state);
        if account.is_some() {
            state.note(Place::Net, kubeconfig::NAME, None, false);
        }
        self.save(&state);

        let directories = binaries.install()?;
        if let Some(name) = &settings.node_name {
            nodename::ensure_or_warn(layout, name);
        }
        if let Some(account) = account.filter(|_| asks) {
            self.write_credentials(account, &net_dir)?;
            cluster::ensure(&conflist.conf, account, &settings.pools).unwrap_or_else(|error| tracing::warn!("{error}"));
        }
        if asks {
            self.write_mtu(&conflist, &mut state).unwrap_or_else(|reason| tracing::warn!("{reason}"));
        }
        self.look_over(&conflist, &net_dir, &directories, asks);
        match conflist.write(&net_dir, settings)? {
            Change::Written => tracing::info!("wrote {}", net_dir.join(&settings.conf_name).display()),
            Change::Unchanged => tracing::info!("{} is up to date", net_dir.join(&settings.conf_name).display()),
        }

        conflist::remove_old(&net_dir, settings, &mut state);
        tls_assets::remove_strays(&net_dir, &tls);
        conflist::warn_if_not_chosen(&net_dir, &settings.conf_name, conflist.network());
        self.save(&state);
        tracing::info!("Done configuring CNI.");
        Ok(())
    }

    /// Puts back what is missing or was changed; for whoever stays (INST-49). Asks nobody. What is there is taken for whole, as it is called
    /// often.
    pub fn keep(&self) -> Kept {
        let missing = match self.missing() {
            Ok(missing) if missing.is_empty() => return Kept::default(),
            Ok(missing) => missing,
            Err(error) => return Kept { mended: 0, missing: Some(error.to_string()) },
        };
        tracing::warn!("{} missing or changed, installing again", missing.join(", "));
        match self.install(false) {
            Ok(()) => Kept { mended: missing.len() as u64, missing: None },
            Err(error) => Kept { mended: 0, missing: Some(error.to_string()) },
        }
    }

    /// Whether the configuration that is noted as installed is the one that this environment makes: another one is somebody
    /// else's to look after.
    pub fn is_noted(&self) -> bool {
        let Installation { settings, layout, .. } = *self;
        let net_dir = layout.net_dir(&settings.net_dir);
        let tls = tls_assets::copy(&layout.path(&settings.tls_assets), &net_dir, &settings.net_dir);
        let Ok(conflist) = tls.map_err(InstallError::from).and_then(|tls| self.render(&tls)) else { return false };
        self.load_state().is_ours(Place::Net, &settings.conf_name, &digest::of_bytes(conflist.text.as_bytes()))
    }

    /// What was installed and is not there, or is not as it was.
    fn missing(&self) -> Result<Vec<String>, InstallError> {
        let Installation { settings, layout, .. } = *self;
        let net_dir = layout.net_dir(&settings.net_dir);
        let tls = tls_assets::copy(&layout.path(&settings.tls_assets), &net_dir, &settings.net_dir)?;
        let mut missing = Vec::new();
        if !self.render(&tls)?.is_written(&net_dir, settings) {
            missing.push(net_dir.join(&settings.conf_name));
        }
        let state = self.load_state();
        for (place, directory) in layout.bin_dirs() {
            let noted = state.files.get(&place).into_iter().flat_map(|files| files.keys());
            missing.extend(noted.map(|name| directory.join(name)).filter(|path| !path.is_file()));
        }
        Ok(missing.iter().map(|path| path.display().to_string()).collect())
    }

    /// The configuration, without looking at what is on the node.
    fn render(&self, tls: &Tls) -> Result<Conflist, InstallError> {
        let token = self.account.map(ServiceAccount::token).transpose()?.unwrap_or_default();
        let values = self.settings.values.clone().with_token(token).with_tls(tls.clone());
        Ok(Conflist::render(self.settings, &values, |path| self.layout.path(path))?)
    }

    fn write_credentials(&self, account: &ServiceAccount, net_dir: &Path) -> Result<(), CredentialsError> {
        match credentials::ensure(account, &self.settings.service_account, net_dir)? {
            Change::Written => tracing::info!("wrote {}", net_dir.join(kubeconfig::NAME).display()),
            Change::Unchanged => tracing::info!("{} is up to date", net_dir.join(kubeconfig::NAME).display()),
        }
        Ok(())
    }

    /// The MTU of pods, where the configuration leaves it to a file that nobody has written (INST-59). Pools say which
    /// encapsulation takes from it, so the datastore is asked; nothing is written without its answer, nor while there is no pool.
    fn write_mtu(&self, conflist: &Conflist, state: &mut State) -> Result<(), String> {
        let Installation { settings, layout, network, .. } = *self;
        let path_of = |path: &Path| layout.of_node(path, Path::new(&settings.net_dir));
        let plugin = node_conf::plugin(Value::Object(conflist.conf.clone()), path_of).ok();
        // Templates of any kind are put in place, those of other plugins as well.
        let ours =
            plugin.filter(|plugin| template::kind(plugin) == CALICO).and_then(|plugin| node_conf::read(plugin).ok());
        let Some(conf) = ours.filter(mtu::is_read) else { return Ok(()) };
        if !layout.keeps_state() {
            // Beside upstream, where calico-node has the directory and Felix writes the file.
            let directory = layout.state_dir();
            tracing::info!("{} is not mounted here: its file mtu is left to calico-node", directory.display());
            return Ok(());
        }
        let way_out = "set CNI_MTU, or let calico-node write it";
        let unknown = |reason: String| format!("/var/lib/calico/mtu is not written: {reason}; {way_out}");
        let uplinks = host_network::uplinks(network).map_err(unknown)?;
        let pools = node_conf::pools(&conf, ANSWER).map_err(unknown)?;
        let mtu = mtu::of_pods(&uplinks, &pools).map_err(|error| unknown(error.to_string()))?;
        match mtu::ensure(layout, mtu, state).map_err(|error| unknown(error.to_string()))? {
            MtuFile::Written => tracing::info!("wrote /var/lib/calico/mtu: pods have {mtu}"),
            MtuFile::Same | MtuFile::Theirs => {}
        }
        Ok(())
    }

    /// Tells what is odd about it, and tries it. What is in place already needs no trial.
    fn look_over(&self, conflist: &Conflist, net_dir: &Path, directories: &[(Place, PathBuf)], tries: bool) {
        let settings = self.settings;
        let paths: Vec<PathBuf> = directories.iter().map(|(_, directory)| directory.clone()).collect();
        for finding in template::findings(&conflist.text, &conflist.conf, &paths) {
            tracing::warn!("{}: {finding}", settings.conf_name);
        }
        if let Some(directory) = paths.first().filter(|_| tries && !conflist.is_written(net_dir, settings)) {
            self.try_out(conflist, &directory.join(CALICO));
        }
    }

    fn try_out(&self, conflist: &Conflist, plugin: &Path) {
        let settings = self.settings;
        if settings.try_for.is_zero() {
            return;
        }
        let net_dir = Path::new(&settings.net_dir);
        let path_of = |path: &Path| self.layout.of_node(path, net_dir);
        match candidate::try_out(&conflist.conf, plugin, settings.try_for, path_of) {
            Trial::Passed => tracing::info!("the new configuration works: the datastore is ready"),
            Trial::NotTried(reason) => tracing::info!("the new configuration is not tried: {reason}"),
            Trial::Failed(said) => tracing::warn!(
                "the new configuration does not work yet and is put in place all the same, as calico-node or \
                 kube-controllers may have to start first: {said}"
            ),
        }
    }

    /// Without the state everything that is there is somebody else's, which stays.
    fn load_state(&self) -> State {
        let state = State::load(self.layout).unwrap_or_else(|error| {
            tracing::warn!("{error}");
            State::default()
        });
        State {
            version: ipam_plugin::process::build_version().to_owned(),
            net_dir: self.settings.net_dir.clone(),
            ..state
        }
    }

    /// The state is for later: upstream's manifests do not mount `/var/lib/calico` here.
    fn save(&self, state: &State) {
        if let Err(error) = state.save(self.layout) {
            tracing::info!("what was installed is not noted: {error}");
        }
    }
}
