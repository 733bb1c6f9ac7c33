//! Profiles in the format of pprof, at the paths of Go programs.
//!
//! `profile` samples processor time for some seconds. It contains addresses; the function names are in the release's
//! `kube-controllers.debug`, which the reader of a profile passes to `pprof`. Go's own `go tool pprof` resolves only
//! functions of Go. `heap` shows memory by mapping. Rust keeps no record of the code that allocated memory, and an
//! allocator with such a record uses more memory all the time.

mod cpu;
mod format;
mod memory;

#[cfg(test)]
pub(super) use format::tests::folded;

pub(super) use cpu::profile as cpu;
pub(super) use format::ProfileError;
pub(super) use memory::profile as heap;

/// The index page.
pub(super) const INDEX: &str = "/debug/pprof/profile?seconds=30  processor time, for pprof kube-controllers.debug URL\n\
                                /debug/pprof/heap                memory by mapping, for pprof; ?debug=1 as text\n";

/// The response to a request for function names. pprof sends such a request for each mapping whose names it lacks, and
/// discards the whole profile if the request fails.
pub(super) const SYMBOLS: &str = "num_symbols: 0\n";
