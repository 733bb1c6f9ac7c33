//! [`CredentialFiles`]: detects changes of the files that contain the client's credentials.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use kube::config::AuthInfo;
use tokio::time::Instant;

use crate::config::KubernetesConfig;

/// Interval between checks of the files.
const PERIOD: Duration = Duration::from_secs(50);

/// The kubeconfig, client certificates and CA certificates, with their contents at the last read. Token files are not
/// included, because a token is renewed without a new connection.
pub(super) struct CredentialFiles {
    paths: Vec<PathBuf>,
    contents: Vec<Option<Vec<u8>>>,
    checked: Instant,
}

impl CredentialFiles {
    /// Reads the files that `settings` and `login` name.
    pub(super) fn read(settings: &KubernetesConfig, login: &AuthInfo) -> CredentialFiles {
        let certificates = [&login.client_certificate, &login.client_key].into_iter().flatten().map(PathBuf::from);
        let named = settings.kubeconfig.iter().chain(&settings.home_kubeconfig).chain(&settings.overrides.authorities);
        let paths: Vec<PathBuf> = named.cloned().chain(certificates).collect();
        CredentialFiles { contents: read_all(&paths), paths, checked: Instant::now() }
    }

    /// Returns true if any of the files has changed. Reads the files at most once per [`PERIOD`].
    pub(super) fn have_changed(&mut self) -> bool {
        if self.checked.elapsed() < PERIOD {
            return false;
        }
        self.checked = Instant::now();
        read_all(&self.paths) != self.contents
    }
}

fn read_all(paths: &[PathBuf]) -> Vec<Option<Vec<u8>>> {
    paths.iter().map(|path| fs::read(path).ok()).collect()
}
