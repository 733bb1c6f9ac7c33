//! `BlockHints`: a file with the blocks of this node, as a hint for the next ADD.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use libcalico::net::Cidr;
use libcalico::store::Revision;
use os::atomic_file::regular_file;
use serde::{Deserialize, Serialize};

use crate::hint_file;
use os::lock::HostLock;

/// Maximum number of pairs of network and namespace in the file. If a further pair is stored, all
/// other content is removed.
const MAX_NAMESPACES: usize = 128;

/// The node's blocks as the last ADD found them, for each network and namespace, because namespaces
/// may select pools. The file is read and written only under the node's lock.
#[derive(Debug)]
pub struct BlockHints {
    file: PathBuf,
    hints: NodeHints,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct NodeHints {
    blocks: BTreeMap<String, HintedBlocks>,
    /// The revision of the last block that an ADD or DEL in the network wrote, as far as known.
    /// Networks may belong to different clusters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    since: BTreeMap<String, String>,
}

/// Blocks of this node for one network and namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HintedBlocks {
    /// The first block with a free address, for each family.
    pub with_room: Vec<Cidr>,
    /// The node's other blocks that an ADD reads first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Cidr>,
}

impl BlockHints {
    /// Reads the hints. A missing or invalid file is treated as empty.
    pub fn read(file: &Path) -> Self {
        let hints = regular_file::contents(file)
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok());
        BlockHints {
            file: file.into(),
            hints: hints.unwrap_or_default(),
        }
    }

    /// Reads the hints under the lock. Returns `None` without a file, and if `lock` is not held: another process may then be about
    /// to write the file.
    pub fn read_locked(lock: &HostLock, file: Option<&Path>) -> Option<Self> {
        file.filter(|_| lock.is_held()).map(BlockHints::read)
    }

    /// Returns the blocks to read first; none if there is no hint.
    pub fn blocks_of(&self, network: &str, namespace: &str) -> HintedBlocks {
        self.hints
            .blocks
            .get(&hint_key(network, namespace))
            .cloned()
            .unwrap_or_default()
    }

    /// Returns the revision of the last block that a call in the network wrote, if it is known.
    pub fn last_write(&self, network: &str) -> Option<Revision> {
        self.hints.since.get(network).cloned().map(Revision)
    }

    /// Stores the blocks that an ADD found. With `written` as `None`, the stored revision stays, unless a further pair empties the file.
    pub fn store(
        &mut self,
        network: &str,
        namespace: &str,
        blocks: HintedBlocks,
        written: Option<&Revision>,
    ) {
        let is_stored = self.blocks_of(network, namespace) == blocks;
        if !is_stored {
            let key = hint_key(network, namespace);
            if self.hints.blocks.len() >= MAX_NAMESPACES && !self.hints.blocks.contains_key(&key) {
                self.hints = NodeHints::default();
            }
            self.hints.blocks.insert(key, blocks);
        }
        if self.set_last_write(network, written) || !is_stored {
            self.write();
        }
    }

    /// Stores the revision of a written block, if an ADD has stored blocks before.
    pub fn store_write(&mut self, network: &str, written: Option<&Revision>) {
        if !self.hints.blocks.is_empty() && self.set_last_write(network, written) {
            self.write();
        }
    }

    /// Returns false if the revision was recorded already, or if `written` is `None`.
    fn set_last_write(&mut self, network: &str, written: Option<&Revision>) -> bool {
        let Some(revision) = written.map(Revision::resource_version) else {
            return false;
        };
        let previous = self
            .hints
            .since
            .insert(network.to_owned(), revision.to_owned());
        previous.as_deref() != Some(revision)
    }

    fn write(&self) {
        if let Err(error) = hint_file::write_in_place(&self.file, &self.hints) {
            tracing::debug!(
                file = %self.file.display(), %error,
                "cannot write the hints about this node's blocks"
            );
        }
    }
}

/// Neither part may contain a space.
fn hint_key(network: &str, namespace: &str) -> String {
    format!("{network} {namespace}")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn cidrs(texts: &[&str]) -> Vec<Cidr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn with_room(texts: &[&str]) -> HintedBlocks {
        HintedBlocks {
            with_room: cidrs(texts),
            others: Vec::new(),
        }
    }

    #[test]
    fn block_hints_are_stored_per_network_and_namespace() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("cni/recent");
        let mut recent = BlockHints::read(&file);
        assert_eq!(recent.blocks_of("net", "a"), HintedBlocks::default());
        let blocks = HintedBlocks {
            others: cidrs(&["10.0.0.128/26"]),
            ..with_room(&["10.0.0.0/26", "fd00::/122"])
        };
        recent.store("net", "a", blocks.clone(), None);
        recent.store("net", "b", with_room(&["10.0.0.64/26"]), None);
        let recent = BlockHints::read(&file);
        assert_eq!(recent.blocks_of("net", "a"), blocks);
        assert_eq!(recent.blocks_of("net", "b"), with_room(&["10.0.0.64/26"]));
        assert_eq!(recent.blocks_of("other", "a"), HintedBlocks::default());
    }

    #[test]
    fn unchanged_hints_are_not_written_and_unreadable_hints_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("recent");
        let mut recent = BlockHints::read(&file);
        recent.store("net", "a", HintedBlocks::default(), None);
        assert!(!file.exists());
        recent.store("net", "a", with_room(&["10.0.0.0/26"]), None);
        fs::write(&file, "{").unwrap();
        recent.store("net", "a", with_room(&["10.0.0.0/26"]), None);
        assert_eq!(fs::read_to_string(&file).unwrap(), "{");
        assert_eq!(
            BlockHints::read(&file).blocks_of("net", "a"),
            HintedBlocks::default()
        );
    }

    #[test]
    fn last_write_revision_is_stored_for_all_namespaces_of_a_network() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("recent");
        let revision = |text: &str| Some(Revision(text.into()));
        let mut recent = BlockHints::read(&file);
        recent.store_write("net", revision("6").as_ref());
        assert!(
            !file.exists(),
            "without blocks to read there is nothing to be hints"
        );
        recent.store(
            "net",
            "a",
            with_room(&["10.0.0.0/26"]),
            revision("7@uid").as_ref(),
        );
        assert_eq!(BlockHints::read(&file).last_write("net"), revision("7"));
        recent.store(
            "net",
            "a",
            with_room(&["10.0.0.0/26"]),
            revision("8").as_ref(),
        );
        assert_eq!(BlockHints::read(&file).last_write("net"), revision("8"));
        recent.store_write("net", revision("9").as_ref());
        recent.store("net", "b", with_room(&["10.0.0.64/26"]), None);
        recent.store_write("net", None);
        recent.store_write("of another cluster", revision("3").as_ref());
        let recent = BlockHints::read(&file);
        assert_eq!(
            (recent.last_write("net"), recent.blocks_of("net", "a")),
            (revision("9"), with_room(&["10.0.0.0/26"]))
        );
    }

    /// An earlier version stored only blocks with room, as a list.
    #[test]
    fn hints_of_an_earlier_version_are_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("recent");
        fs::write(&file, r#"{"blocks":{"net a":["10.0.0.0/26"]}}"#).unwrap();
        assert_eq!(
            BlockHints::read(&file).blocks_of("net", "a"),
            HintedBlocks::default()
        );
    }

    #[test]
    fn block_hints_file_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let mut recent = BlockHints::read(&directory.path().join("recent"));
        (0..1000).for_each(|number| {
            recent.store(
                "net",
                &format!("ns{number}"),
                with_room(&["10.0.0.0/26"]),
                None,
            )
        });
        assert!(recent.hints.blocks.len() <= MAX_NAMESPACES);
        assert_eq!(
            recent.blocks_of("net", "ns999"),
            with_room(&["10.0.0.0/26"])
        );
    }

    #[test]
    fn full_block_hints_are_emptied_only_for_a_further_pair() {
        let directory = tempfile::tempdir().unwrap();
        let mut recent = BlockHints::read(&directory.path().join("recent"));
        let revision = Revision("7".into());
        for number in 0..MAX_NAMESPACES {
            recent.store(
                "net",
                &format!("ns{number}"),
                with_room(&["10.0.0.0/26"]),
                Some(&revision),
            );
        }
        recent.store("net", "ns0", with_room(&["10.0.0.64/26"]), None);
        assert_eq!(
            (recent.hints.blocks.len(), recent.last_write("net")),
            (MAX_NAMESPACES, Some(revision))
        );
        recent.store("net", "further", with_room(&["10.0.0.0/26"]), None);
        assert_eq!(
            (recent.hints.blocks.len(), recent.last_write("net")),
            (1, None)
        );
    }

    #[test]
    fn recent_blocks_of_0_1_0_are_read_and_written_unchanged() {
        let stored = include_str!("../../../tests/formats/0.1.0/hints/recent_blocks");
        let minimal = include_str!("../../../tests/formats/0.1.0/hints/recent_blocks.minimal");
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("recent_blocks");
        let blocks = [
            (
                "default",
                HintedBlocks {
                    with_room: cidrs(&["10.244.0.0/26", "fd00:10:244::/122"]),
                    others: cidrs(&["10.244.0.64/26"]),
                },
            ),
            ("team-a", with_room(&["10.244.0.64/26"])),
        ];
        fs::write(&file, stored).unwrap();
        let read = BlockHints::read(&file);
        for (namespace, blocks) in &blocks {
            assert_eq!(read.blocks_of("k8s-pod-network", namespace), *blocks);
        }
        let revision = Revision("4711".into());
        assert_eq!(read.last_write("k8s-pod-network"), Some(revision.clone()));
        fs::remove_file(&file).unwrap();
        let mut written = BlockHints::read(&file);
        for (namespace, blocks) in blocks {
            written.store("k8s-pod-network", namespace, blocks, Some(&revision));
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), stored);

        fs::write(&file, minimal).unwrap();
        let read = BlockHints::read(&file).blocks_of("k8s-pod-network", "default");
        assert_eq!(read, with_room(&["10.244.0.0/26"]));
        fs::remove_file(&file).unwrap();
        BlockHints::read(&file).store("k8s-pod-network", "default", read, None);
        assert_eq!(fs::read_to_string(&file).unwrap(), minimal);
    }
}
