//! Profiles in the format of pprof, at the addresses that Go programs have (KC-151).
//!
//! `profile` is where processor time goes, sampled over some seconds, as addresses: names of functions are in
//! `kube-controllers.debug` of the release, which the reader of a profile gives to `pprof`. That of Go's own tools knows no functions but
//! Go's. `heap` is where memory is, by mapping: Rust keeps no record of who allocated what, and one that does costs memory all the time.

mod code;
mod cpu;
mod format;
mod memory;

#[cfg(test)]
pub(super) use format::tests::folded;

use hyper::StatusCode;
use hyper::header::HeaderValue;

use super::pages::{Page, page, text};

/// What there is.
pub(super) const INDEX: &str = "/debug/pprof/profile?seconds=30  processor time, for pprof kube-controllers.debug URL\n\
                                /debug/pprof/heap                memory by mapping, for pprof; ?debug=1 as text\n";

/// The answer to whoever asks for names of functions. pprof does for each mapping of which it has none itself, and gives up the
/// whole profile when it gets no answer.
pub(super) const SYMBOLS: &str = "num_symbols: 0\n";

/// How long the processor is watched: Go's default, and so long that a forgotten request ends.
const SECONDS: u64 = 30;
const MOST_SECONDS: u64 = 300;

const BINARY: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
enum ProfileError {
    /// There is one timer in a process.
    #[error("another profile is being taken; ask again when it is done")]
    Busy,
    /// The sampler's words.
    #[error("cannot take a profile: {0}")]
    Sampler(#[from] pprof::Error),
    /// /proc is not there, or not readable.
    #[error("cannot read the memory map: {0}")]
    Map(#[from] procfs::ProcError),
    /// Somebody's code was interrupted.
    #[error("the profile was cut off: {0}")]
    Interrupted(#[from] tokio::task::JoinError),
}

/// Samples the processor for `seconds` of the query.
pub(super) async fn cpu(query: &str) -> Page {
    let seconds = match parameter(query, "seconds").map(str::parse).unwrap_or(Ok(SECONDS)) {
        Ok(seconds @ 1..=MOST_SECONDS) => seconds,
        _ => return text(StatusCode::BAD_REQUEST, format!("seconds must be from 1 to {MOST_SECONDS}\n")),
    };
    answer(cpu::profile(std::time::Duration::from_secs(seconds)).await)
}

/// The memory at this moment.
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
