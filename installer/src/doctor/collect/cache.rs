//! Reads libcni's cache: a file for each ADD, which the DEL removes (INST-183).

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde::Deserialize;

use crate::doctor::snapshot::{Cache, Observed, Unobserved};

/// libcni's cache directory on the node.
pub(super) const DIRECTORY: &str = "/var/lib/cni/results";

#[derive(Deserialize)]
struct Cached {
    #[serde(default)]
    result: Answer,
}

/// The result of an ADD.
#[derive(Default, Deserialize)]
struct Answer {
    #[serde(default)]
    interfaces: Vec<Interface>,
}

#[derive(Deserialize)]
struct Interface {
    #[serde(default)]
    name: String,
    #[serde(default)]
    sandbox: String,
}

/// Counts the results whose host interface is Calico's, and lists those whose interface no longer exists in the kernel.
/// Returns `None` if the directory is missing.
pub(super) fn read(directory: &Path, prefix: &str, interfaces: &[String]) -> Observed<Option<Cache>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Unobserved::new(format!("{}: {error}", directory.display()))),
    };
    let mut cache = Cache { directory: directory.to_owned(), results: 0, stale: Vec::new() };
    for entry in entries.flatten() {
        let Some(interface) = host_interface(&entry.path()).filter(|name| name.starts_with(prefix)) else { continue };
        cache.results += 1;
        if !interfaces.contains(&interface) {
            cache.stale.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    cache.stale.sort();
    Ok(Some(cache))
}

/// Returns the name of the interface that is not in a sandbox. Other files than results are ignored.
fn host_interface(path: &Path) -> Option<String> {
    let cached: Cached = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    let on_host = |interface: &Interface| interface.sandbox.is_empty();
    cached.result.interfaces.into_iter().find(on_host).map(|interface| interface.name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn results_whose_interface_is_gone_are_told_and_others_are_not_ours() {
        let directory = tempfile::tempdir().unwrap();
        let keep = |name: &str, interface: &str| {
            let result = json!({ "interfaces": [
                { "name": interface }, { "name": "eth0", "sandbox": "/run/netns/x" },
            ]});
            let text = json!({ "kind": "cniCacheV1", "config": "e30=", "result": result }).to_string();
            fs::write(directory.path().join(name), text).unwrap();
        };
        keep("net-a-eth0", "cali1");
        keep("net-b-eth0", "cali2");
        keep("other-c-eth0", "veth3");
        fs::write(directory.path().join("nonsense"), "{").unwrap();
        fs::write(
            directory.path().join("cni-loopback-a-lo"),
            r#"{"result":{"interfaces":[{"name":"lo","sandbox":"/x"}]}}"#,
        )
        .unwrap();
        let cache = read(directory.path(), "cali", &["cali2".into()]).unwrap().unwrap();
        assert_eq!((cache.results, cache.stale), (2, vec!["net-a-eth0".to_owned()]));
        assert_eq!(read(&directory.path().join("gone"), "cali", &[]), Ok(None));
        let error = read(&directory.path().join("nonsense"), "cali", &[]).unwrap_err();
        assert!(error.to_string().contains("nonsense: "), "{error}");
    }
}
