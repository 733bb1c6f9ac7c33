//! Whether what was installed still is, for whoever stays (INST-49).

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use super::{InstallError, Installation};
use crate::agent::Kept;
use crate::conflist::Target;
use crate::state::State;
use crate::{binaries, mtu};

mod quarrel;

use quarrel::Quarrel;

/// How long the datastore may take to tell its pools. The agent answers nobody meanwhile: far less than probes wait.
const ANSWER: Duration = Duration::from_secs(1);

/// Looks after what was installed.
#[derive(Debug)]
pub struct Upkeep<'a> {
    installation: Installation<'a>,
    /// Whether it was installed from this environment; `None` as long as that cannot be told.
    keeps: Option<bool>,
    /// Why the MTU of pods is not known, as it was said last.
    said: Option<String>,
    /// The configuration, where another program changes it each time.
    quarrel: Quarrel,
}

impl<'a> Upkeep<'a> {
    /// For whoever has just installed.
    pub fn of_own(installation: Installation<'a>) -> Upkeep<'a> {
        Upkeep { keeps: Some(true), ..Upkeep::of_anyones(installation) }
    }

    /// For who finds out whether it was installed from this environment. What another one installed is somebody else's
    /// to look after.
    pub fn of_anyones(installation: Installation<'a>) -> Upkeep<'a> {
        Upkeep { installation, keeps: None, said: None, quarrel: Quarrel::default() }
    }

    /// Puts back what is missing or was changed. What is there is taken for whole, as it is called often; so nobody is
    /// asked, but for the MTU of pods as long as it is not known.
    pub fn keep(&mut self) -> Kept {
        let missing = match self.keeps() {
            Ok(false) => return Kept::default(),
            Ok(true) => {
                self.write_late_mtu();
                self.installation.missing()
            }
            Err(error) => Err(error),
        };
        let Missing { configuration, others } = match missing {
            Ok(missing) => missing,
            Err(error) => return Kept { mended: 0, missing: Some(error.to_string()) },
        };
        let is_left = !self.quarrel.puts_back(configuration.is_some()) && others.is_empty();
        if let Some(path) = configuration.as_ref().filter(|_| is_left) {
            return Kept { mended: 0, missing: Some(self.quarrel.told(path)) };
        }
        let is_configuration = configuration.is_some();
        let missing: Vec<PathBuf> = configuration.into_iter().chain(others).collect();
        if missing.is_empty() {
            return Kept::default();
        }
        let names: Vec<String> = missing.iter().map(|path| path.display().to_string()).collect();
        tracing::warn!("{} missing or changed, installing again", names.join(", "));
        let installed = self.installation.install(false);
        if is_configuration {
            self.quarrel.ended(&installed);
        }
        match installed {
            // A directory may have been skipped.
            Ok(()) => Kept { mended: missing.iter().filter(|path| path.is_file()).count() as u64, missing: None },
            Err(error) => Kept { mended: 0, missing: Some(error.to_string()) },
        }
    }

    /// Asked again for as long as a file of this environment cannot be read.
    fn keeps(&mut self) -> Result<bool, InstallError> {
        if let Some(keeps) = self.keeps {
            return Ok(keeps);
        }
        let keeps = self.installation.is_noted()?;
        if !keeps {
            let name = &self.installation.settings.conf_name;
            tracing::info!("only the token is looked after: {name} was not installed from this environment");
        }
        self.keeps = Some(keeps);
        Ok(keeps)
    }

    /// Pools, which say what encapsulation takes from the MTU, come after the DaemonSet: so documents have it.
    fn write_late_mtu(&mut self) {
        let Installation { settings, layout, .. } = self.installation;
        if !layout.keeps_state() || layout.state_dir().join(mtu::NAME).exists() {
            return;
        }
        let installation = self.installation;
        let rendered = installation.tls_assets().map_err(InstallError::from);
        let Ok(conflist) = rendered.and_then(|assets| installation.render(&assets.on_node(&settings.net_dir))) else {
            return;
        };
        let write = || installation.write_mtu(&conflist, ANSWER, &mut installation.load_state());
        // On a thread of its own: the caller's is a runtime's, and the datastore is asked through another.
        let Ok(written) = thread::scope(|scope| scope.spawn(write).join()) else { return };
        let reason = written.err();
        if let Some(reason) = reason.as_ref().filter(|_| reason != self.said) {
            tracing::info!("{reason}");
        }
        self.said = reason;
    }
}

/// What is not there or is not as it was installed.
#[derive(Debug, Default)]
struct Missing {
    /// The network configuration.
    configuration: Option<PathBuf>,
    /// Programs and files for TLS.
    others: Vec<PathBuf>,
}

impl Installation<'_> {
    /// Whether the configuration that is noted as installed is the one that this environment makes. What is noted in a
    /// file that cannot be read is not known, unlike for [`load_state`](Self::load_state): this is asked again, an
    /// install is not.
    fn is_noted(&self) -> Result<bool, InstallError> {
        let Installation { settings, layout, .. } = *self;
        let state = State::load(layout)?;
        let target = Target::of(&layout.net_dir(&settings.net_dir), settings, &state);
        let tls = self.tls_assets()?.on_node(&settings.net_dir);
        Ok(self.render(&tls)?.is_noted(&target, &state))
    }

    /// What this environment installs and has installed, and is not there or is not as it was. Nothing is written.
    fn missing(&self) -> Result<Missing, InstallError> {
        let Installation { settings, layout, .. } = *self;
        let net_dir = layout.net_dir(&settings.net_dir);
        let state = self.load_state();
        let assets = self.tls_assets()?;
        let target = Target::of(&net_dir, settings, &state);
        let rendered = self.render(&assets.on_node(&settings.net_dir))?;
        let configuration = (!rendered.is_written(&target)).then(|| target.path());
        let mut others = assets.missing(&net_dir)?;
        let names = binaries::names(settings, layout);
        for (place, directory) in layout.bin_dirs().into_iter().filter(|(_, directory)| directory.is_dir()) {
            let noted = names.iter().filter(|name| state.get(place, name).is_some());
            others.extend(noted.map(|name| directory.join(name)).filter(|path| !path.is_file()));
        }
        Ok(Missing { configuration, others })
    }
}
