//! Whether what was installed still is, for whoever stays (INST-49).

use std::path::PathBuf;
use std::thread;

use super::{InstallError, Installation};
use crate::agent::Kept;
use crate::{binaries, mtu};

impl Installation<'_> {
    /// Puts back what is missing or was changed. What is there is taken for whole, as it is called often; so nobody is asked,
    /// but for the MTU of pods as long as it is not known.
    pub fn keep(&self) -> Kept {
        self.write_late_mtu();
        let missing = match self.missing() {
            Ok(missing) if missing.is_empty() => return Kept::default(),
            Ok(missing) => missing,
            Err(error) => return Kept { mended: 0, missing: Some(error.to_string()) },
        };
        let names: Vec<String> = missing.iter().map(|path| path.display().to_string()).collect();
        tracing::warn!("{} missing or changed, installing again", names.join(", "));
        match self.install(false) {
            // A directory may have been skipped.
            Ok(()) => Kept { mended: missing.iter().filter(|path| path.is_file()).count() as u64, missing: None },
            Err(error) => Kept { mended: 0, missing: Some(error.to_string()) },
        }
    }

    /// Pools, which say what encapsulation takes from the MTU, come after the DaemonSet: so documents have it.
    fn write_late_mtu(&self) {
        if !self.layout.keeps_state() || self.layout.state_dir().join(mtu::NAME).exists() {
            return;
        }
        let rendered = self.tls_assets().map_err(InstallError::from);
        let Ok(conflist) = rendered.and_then(|assets| self.render(&assets.on_node(&self.settings.net_dir))) else {
            return;
        };
        let write = || self.write_mtu(&conflist, &mut self.load_state());
        // On a thread of its own: the caller's is a runtime's, and the datastore is asked through another.
        let written = thread::scope(|scope| scope.spawn(write).join());
        if let Ok(Err(reason)) = written {
            tracing::debug!("{reason}");
        }
    }

    /// Whether the configuration that is noted as installed is the one that this environment makes: another one is somebody
    /// else's to look after.
    pub fn is_noted(&self) -> bool {
        let tls = self.tls_assets().map(|assets| assets.on_node(&self.settings.net_dir));
        let conflist = tls.map_err(InstallError::from).and_then(|tls| self.render(&tls));
        conflist.is_ok_and(|conflist| conflist.is_noted(self.settings, &self.load_state()))
    }

    /// What this environment installs and has installed, and is not there or is not as it was. Nothing is written.
    fn missing(&self) -> Result<Vec<PathBuf>, InstallError> {
        let Installation { settings, layout, .. } = *self;
        let net_dir = layout.net_dir(&settings.net_dir);
        let assets = self.tls_assets()?;
        let mut missing = assets.missing(&net_dir)?;
        if !self.render(&assets.on_node(&settings.net_dir))?.is_written(&net_dir, settings) {
            missing.push(net_dir.join(&settings.conf_name));
        }
        let state = self.load_state();
        let names = binaries::names(settings, layout);
        for (place, directory) in layout.bin_dirs().into_iter().filter(|(_, directory)| directory.is_dir()) {
            let noted = names.iter().filter(|name| state.get(place, name).is_some());
            missing.extend(noted.map(|name| directory.join(name)).filter(|path| !path.is_file()));
        }
        Ok(missing)
    }
}
