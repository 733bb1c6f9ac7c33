//! Profiles in the format of pprof, at the paths of Go programs.
//!
//! `profile` samples processor time for some seconds. It contains addresses; the function names are in the release's
//! `kube-controllers.debug`, which the reader of a profile passes to `pprof`. Go's own `go tool pprof` resolves only
//! functions of Go. `heap` shows memory by mapping. Rust keeps no record of the code that allocated memory, and an
//! allocator with such a record uses more memory all the time.

mod code;
mod cpu;
mod format;
mod memory;

#[cfg(test)]
pub(super) use format::tests::folded;

use hyper::StatusCode;
use hyper::header::HeaderValue;

use super::pages::{Page, page, text};

/// The index page.
pub(super) const INDEX: &str = "/debug/pprof/profile?seconds=30  processor time, for pprof kube-controllers.debug URL\n\
                                /debug/pprof/heap                memory by mapping, for pprof; ?debug=1 as text\n";

/// The response to a request for function names. pprof sends such a request for each mapping whose names it lacks, and
/// discards the whole profile if the request fails.
pub(super) const SYMBOLS: &str = "num_symbols: 0\n";

/// Default duration of a profile, as in Go, and the longest duration, so that a forgotten request ends.
const SECONDS: u64 = 30;
const MOST_SECONDS: u64 = 300;

const BINARY: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// A reason why there is no profile.
#[derive(Debug, thiserror::Error)]
enum ProfileError {
    /// The process has only one timer.
    #[error("another profile is being taken; ask again when it is done")]
    Busy,
    /// An error of the sampler.
    #[error("cannot take a profile: {0}")]
    Sampler(#[from] pprof::Error),
    /// /proc is missing or unreadable.
    #[error("cannot read the memory map: {0}")]
    Map(#[from] procfs::ProcError),
    /// The task that encodes the profile panicked or was aborted.
    #[error("the profile was cut off: {0}")]
    Interrupted(#[from] tokio::task::JoinError),
}

/// Samples the processor for the `seconds` of the query.
pub(super) async fn cpu(query: &str) -> Page {
    let seconds = match parameter(query, "seconds").map(str::parse).unwrap_or(Ok(SECONDS)) {
        Ok(seconds @ 1..=MOST_SECONDS) => seconds,
        _ => return text(StatusCode::BAD_REQUEST, format!("seconds must be from 1 to {MOST_SECONDS}\n")),
    };
    answer(cpu::profile(std::time::Duration::from_secs(seconds)).await)
}

/// Returns the present use of memory.
pub(super) async fn memory(query: &str) -> Page {
    match memory::mappings() {
        Ok(mappings) if parameter(query, "debug").is_some_and(|debug| debug != "0") => {
            text(StatusCode::OK, memory::as_text(&mappings))
        }
        mappings => answer(mappings.map(|mappings| memory::profile(&mappings))),
    }
}

fn answer(profile: Result<Vec<u8>, ProfileError>) -> Page {
    match profile {
        Ok(profile) => page(StatusCode::OK, BINARY, profile),
        Err(error @ ProfileError::Busy) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

fn parameter<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}
