//! [`RecentBlocks`]: a file that remembers which blocks this node's last addresses came from.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use libcalico::net::Cidr;
use serde::{Deserialize, Serialize};

/// Namespaces remembered before the file begins anew: as many as a node has pods of at one time, and more.
const MOST: usize = 128;

/// For each network and namespace, since pools may be chosen by namespace, the blocks with room that addresses came from
/// last. Nothing depends on it. Read and written under the node's lock only.
#[derive(Debug)]
pub(crate) struct RecentBlocks {
    file: PathBuf,
    known: Known,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Known {
    blocks: BTreeMap<String, Vec<Cidr>>,
}

impl RecentBlocks {
    /// What the file says; nothing when it is not there or cannot be read.
    pub(crate) fn read(file: &Path) -> Self {
        let known = fs::read(file).ok().and_then(|text| serde_json::from_slice(&text).ok());
        RecentBlocks { file: file.into(), known: known.unwrap_or_default() }
    }

    /// The blocks that the namespace's last addresses came from, at most one for each family.
    pub(crate) fn of(&self, network: &str, namespace: &str) -> &[Cidr] {
        self.known.blocks.get(&name(network, namespace)).map_or(&[], Vec::as_slice)
    }

    /// Remembers `blocks`. A file that cannot be written costs the next ADD a round trip and nothing else.
    pub(crate) fn note(&mut self, network: &str, namespace: &str, blocks: Vec<Cidr>) {
        if self.of(network, namespace) == blocks {
            return;
        }
        if self.known.blocks.len() >= MOST {
            self.known.blocks.clear();
        }
        self.known.blocks.insert(name(network, namespace), blocks);
        let written = self.file.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| {
            let text = serde_json::to_vec(&self.known)?;
            fs::write(&self.file, text)
        });
        if let Err(error) = written {
            tracing::debug!(file = %self.file.display(), %error, "cannot remember the last blocks");
        }
    }
}

/// Neither part may have a blank.
fn name(network: &str, namespace: &str) -> String {
    format!("{network} {namespace}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidrs(texts: &[&str]) -> Vec<Cidr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn each_namespace_has_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("cni/recent");
        let mut recent = RecentBlocks::read(&file);
        assert!(recent.of("net", "a").is_empty());
        recent.note("net", "a", cidrs(&["10.0.0.0/26", "fd00::/122"]));
        recent.note("net", "b", cidrs(&["10.0.0.64/26"]));
        let recent = RecentBlocks::read(&file);
        assert_eq!(recent.of("net", "a"), cidrs(&["10.0.0.0/26", "fd00::/122"]));
        assert_eq!(recent.of("net", "b"), cidrs(&["10.0.0.64/26"]));
        assert!(recent.of("other", "a").is_empty());
    }

    #[test]
    fn what_did_not_change_is_not_written_and_what_cannot_be_read_is_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("recent");
        let mut recent = RecentBlocks::read(&file);
        recent.note("net", "a", Vec::new());
        assert!(!file.exists());
        recent.note("net", "a", cidrs(&["10.0.0.0/26"]));
        fs::write(&file, "{").unwrap();
        recent.note("net", "a", cidrs(&["10.0.0.0/26"]));
        assert_eq!(fs::read_to_string(&file).unwrap(), "{");
        assert!(RecentBlocks::read(&file).of("net", "a").is_empty());
    }

    #[test]
    fn the_file_does_not_grow_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let mut recent = RecentBlocks::read(&directory.path().join("recent"));
        (0..1000).for_each(|number| recent.note("net", &format!("ns{number}"), cidrs(&["10.0.0.0/26"])));
        assert!(recent.known.blocks.len() <= MOST);
        assert_eq!(recent.of("net", "ns999"), cidrs(&["10.0.0.0/26"]));
    }
}
