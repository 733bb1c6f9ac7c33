//! One installation, from beginning to end (INST-6).
//!
//! What can be refused is refused before anything is written, and each file is put in place whole. So a run that fails
//! leaves the installation of before in working order, and the next run goes on from there.

use std::path::{Path, PathBuf};

use crate::atomic_file::{self, AtomicFileError, Change};
use crate::binaries::{Binaries, BinariesError, CALICO};
use crate::candidate::{self, Trial};
use crate::cluster;
use crate::conflist::{self, Conflist, ConflistError};
use crate::layout::{Layout, Place};
use crate::nodename;
use crate::service_account::{ServiceAccount, ServiceAccountError};
use crate::settings::Settings;
use crate::state::State;
use crate::template::{self, Tls};
use crate::tls_assets::{self, TlsAssetsError};

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
}

impl Installation<'_> {
    /// Does everything, the configuration last: with it the runtime takes the network for ready (INST-7).
    ///
    /// # Errors
    /// Something is missing or refused. What was there before still works.
    pub fn run(&self) -> Result<(), InstallError> {
        let Installation { settings, layout, account } = *self;
        let net_dir = layout.net_dir(&settings.net_dir);
        atomic_file::sweep(&net_dir);
        atomic_file::sweep(&layout.state_dir());
        let mut state = self.load_state();

        let tls = tls_assets::copy(&layout.path(&settings.tls_assets), &net_dir, &settings.net_dir)?;
        let conflist = self.render(&tls)?;
        let binaries = Binaries::plan(settings, layout, &state)?;
        binaries.note(&mut state);
        conflist.note(&net_dir, settings, &mut state);
        self.save(&state);

        let directories = binaries.install()?;
        if let Some(name) = &settings.node_name {
            nodename::ensure_or_warn(layout, name);
        }
        if let Some(account) = account {
            cluster::ensure(&conflist.conf, account, &settings.pools).unwrap_or_else(|error| tracing::warn!("{error}"));
        }
        self.put_in_place(&conflist, &net_dir, &directories)?;

        conflist::remove_old(&net_dir, settings, &mut state);
        tls_assets::remove_strays(&net_dir, &tls);
        conflist::warn_if_not_chosen(&net_dir, &settings.conf_name, conflist.network());
        self.save(&state);
        tracing::info!("Done configuring CNI.");
        Ok(())
    }

    /// The configuration, without looking at what is on the node.
    fn render(&self, tls: &Tls) -> Result<Conflist, InstallError> {
        let token = self.account.map(ServiceAccount::token).transpose()?.unwrap_or_default();
        let values = self.settings.values.clone().with_token(token).with_tls(tls.clone());
        Ok(Conflist::render(self.settings, &values, |path| self.layout.path(path))?)
    }

    /// Tries it, then writes it. What is there already and unchanged needs no trial.
    fn put_in_place(
        &self,
        conflist: &Conflist,
        net_dir: &Path,
        directories: &[(Place, PathBuf)],
    ) -> Result<(), InstallError> {
        let settings = self.settings;
        let paths: Vec<PathBuf> = directories.iter().map(|(_, directory)| directory.clone()).collect();
        for finding in template::findings(&conflist.text, &conflist.conf, &paths) {
            tracing::warn!("{}: {finding}", settings.conf_name);
        }
        if !conflist.is_written(net_dir, settings)
            && let Some(directory) = paths.first()
        {
            self.try_out(conflist, &directory.join(CALICO));
        }
        match conflist.write(net_dir, settings)? {
            Change::Written => tracing::info!("wrote {}", net_dir.join(&settings.conf_name).display()),
            Change::Unchanged => tracing::info!("{} is up to date", net_dir.join(&settings.conf_name).display()),
        }
        Ok(())
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
