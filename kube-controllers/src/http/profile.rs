//! Profiles in the format of pprof, at the paths of Go programs.
//!
//! `profile` samples processor time for some seconds. It contains addresses; the function names are
//! in the release's `kube-controllers.debug`, which the reader of a profile passes to `pprof`.
//! `heap` shows memory by mapping.

mod cpu;
mod format;

#[cfg(test)]
pub(super) use format::tests::folded;

pub(super) use cpu::profile as cpu;
pub(super) use format::ProfileError;

use std::collections::BTreeMap;
use std::time::SystemTime;

use procfs::process::{MMapPath, Process};

use format::{Builder, Frame};

pub(super) const INDEX: &str = "/debug/pprof/profile?seconds=30  processor time, for pprof \
                                kube-controllers.debug URL\n\
                                /debug/pprof/heap                memory by mapping, for pprof; \
                                ?debug=1 as text\n";

/// The response to a request for function names. pprof sends such a request for each mapping whose
/// names it lacks, and discards the whole profile if the request fails.
pub(super) const NO_SYMBOLS: &str = "num_symbols: 0\n";

/// The use of memory by the name of its mapping, including `heap` and `anonymous`.
pub(super) struct HeapProfile(BTreeMap<String, MappedBytes>);

/// The kernel's counts for the mappings of one name, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct MappedBytes {
    resident: u64,
    /// The part of `resident` that no other process shares.
    private: u64,
    size: u64,
}

pub(super) fn heap() -> Result<HeapProfile, ProfileError> {
    let mut mappings = BTreeMap::<String, MappedBytes>::new();
    for map in Process::myself()?.smaps()? {
        let field = |name: &str| map.extension.map.get(name).copied().unwrap_or(0);
        let mapping = mappings.entry(name(&map.pathname)).or_default();
        mapping.resident += field("Rss");
        mapping.private += field("Private_Clean") + field("Private_Dirty");
        mapping.size += map.address.1 - map.address.0;
    }
    Ok(HeapProfile(mappings))
}

impl HeapProfile {
    /// Encodes the mappings for pprof. `go tool pprof` shows the last type by default.
    pub(super) fn protobuf(&self) -> Vec<u8> {
        let mut builder = Builder::new(&[
            ("mapped", "bytes"),
            ("private", "bytes"),
            ("resident", "bytes"),
        ]);
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        builder.timing(i64::try_from(now.as_nanos()).unwrap_or(i64::MAX), 0, 1);
        for (name, mapping) in &self.0 {
            let frame = Frame::Name(name.clone());
            let values = [mapping.size, mapping.private, mapping.resident];
            builder.sample(
                [frame],
                values
                    .map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX))
                    .into(),
            );
        }
        builder.encode()
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{:>12} {:>12} {:>16}  (KiB)\n",
            "resident", "private", "mapped"
        );
        for (
            name,
            MappedBytes {
                resident,
                private,
                size,
            },
        ) in &self.0
        {
            text += &format!(
                "{:>12} {:>12} {:>16}  {name}\n",
                resident / 1024,
                private / 1024,
                size / 1024
            );
        }
        text
    }
}

fn name(path: &MMapPath) -> String {
    match path {
        MMapPath::Path(path) => path.display().to_string(),
        MMapPath::Heap => "heap".into(),
        MMapPath::Anonymous => "anonymous".into(),
        MMapPath::Stack | MMapPath::TStack(_) => "stack".into(),
        MMapPath::Other(name) => name.clone(),
        other => format!("{other:?}").to_lowercase(),
    }
}
