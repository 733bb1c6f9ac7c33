//! Selects a configuration as container runtimes do.

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
