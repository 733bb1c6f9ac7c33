//! Selects a configuration as container runtimes do, and warns if that is not the installed one. Upstream does not
//! check this (INST-32).

use std::fs;
use std::io;
use std::path::Path;

/// Returns the names of the files in `directory` that a runtime reads, in its order. The runtime uses the first one
/// (INST-160).
///
/// # Errors
/// Returns an error if the directory cannot be read.
pub fn candidates(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if is_read(&name) && !entry.path().is_dir() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Returns true if a runtime reads a file of this name, which depends on the last extension only. A leading dot does
/// not hide a file (INST-159).
pub fn is_read(name: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, extension)| matches!(extension, "conf" | "conflist" | "json"))
}

/// Logs a warning if runtimes choose another configuration, or may append plugins to this one.
pub fn warn_if_not_chosen(directory: &Path, name: &str, network: &str) {
    let read = candidates(directory).unwrap_or_default();
    if !is_read(name) {
        tracing::warn!("{name}: container runtimes read only files that end in .conf, .conflist or .json");
    } else if let Some(winner) = read.first().filter(|winner| *winner != name) {
        tracing::warn!(
            "container runtimes will use {}, not {name}: the first name wins; remove that file, or choose a \
             CNI_CONF_NAME that sorts before it",
            directory.join(winner).display()
        );
    }
    let added = directory.join(network);
    if !network.is_empty() && !candidates(&added).unwrap_or_default().is_empty() {
        tracing::warn!("container runtimes may add the plugins of {}/*.conf to {name}", added.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_by_bytes_is_the_one() {
        let directory = tempfile::tempdir().unwrap();
        for name in
            ["10-calico.conflist", "calico-kubeconfig", "05-cilium.conflist", "Z.conf", ".hidden.json", "x.tmp", "conf"]
        {
            fs::write(directory.path().join(name), "").unwrap();
        }
        fs::create_dir(directory.path().join("00-directory.conf")).unwrap();
        let expected = [".hidden.json", "05-cilium.conflist", "10-calico.conflist", "Z.conf"];
        assert_eq!(candidates(directory.path()).unwrap(), expected);
        assert!(candidates(&directory.path().join("missing")).is_err());
    }
}
