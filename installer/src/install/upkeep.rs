//! Whether what was installed still is, for whoever stays (INST-49).

use std::path::PathBuf;

use super::{InstallError, Installation};
use crate::agent::Kept;
use crate::binaries;

impl Installation<'_> {
    /// Puts back what is missing or was changed. Asks nobody. What is there is taken for whole, as it is called often.
    pub fn keep(&self) -> Kept {
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
