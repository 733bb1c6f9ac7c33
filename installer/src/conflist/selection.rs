//! Which configuration a runtime chooses (INST-159, INST-160, INST-164).

use std::fs;
use std::path::{Path, PathBuf};

/// Whether runtimes read a file of this name. A leading dot does not hide it.
pub(super) fn is_read(path: &Path) -> bool {
    path.extension().is_some_and(|extension| ["conf", "conflist", "json"].iter().any(|known| extension == *known))
}

/// The file that runtimes choose: the first one, bytewise.
fn chosen(directory: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| is_read(path) && !path.is_dir()).min()
}

/// Says so when runtimes do not choose the configuration that was installed, or add to it.
pub fn warn_if_not_chosen(directory: &Path, name: &str, network: &str) {
    let ours = directory.join(name);
    if !is_read(&ours) {
        tracing::warn!("{name}: container runtimes read only files that end in .conf, .conflist or .json");
    } else if let Some(winner) = chosen(directory).filter(|winner| *winner != ours) {
        tracing::warn!(
            "container runtimes will use {}, not {name}: the first name wins; remove that file, or choose a CNI_CONF_NAME \
             that sorts before it",
            winner.display()
        );
    }
    let added = directory.join(network);
    if !network.is_empty() && fs::read_dir(&added).into_iter().flatten().flatten().any(|file| is_read(&file.path())) {
        tracing::warn!("container runtimes may add the plugins of {}/*.conf to {name}", added.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_wins_by_its_bytes_whatever_hides_it() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(chosen(dir.path()), None);
        fs::create_dir(dir.path().join("00-folder.conf")).unwrap();
        for (name, winner) in [
            ("calico-kubeconfig", None),
            (".10-calico.conflist.0.calico-draft.tmp", None),
            ("20-other.conf", Some("20-other.conf")),
            ("10-calico.conflist", Some("10-calico.conflist")),
            ("05-b.json", Some("05-b.json")),
            (".99-a.conf", Some(".99-a.conf")),
        ] {
            fs::write(dir.path().join(name), "").unwrap();
            assert_eq!(chosen(dir.path()), winner.map(|winner| dir.path().join(winner)), "{name}");
        }
    }
}
