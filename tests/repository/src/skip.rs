//! Skips tests that this machine cannot run: writes a line to stderr, where `make test` counts it,
//! or panics in CI.

use std::io::Write;
use std::thread;

/// Marks the running test as skipped because this machine lacks `what`. The test must return right
/// after this call.
///
/// The line bypasses libtest's capture, so that every run shows its skips: `make test` counts the
/// lines that start with `SKIPPED`.
///
/// # Panics
/// Panics if `CI=true`: a suite that runs no tests must not succeed there.
pub fn skipped(what: &str) {
    let test = thread::current().name().unwrap_or("test").to_owned();
    assert!(
        std::env::var_os("CI").is_none_or(|ci| ci != "true"),
        "{test} cannot run in CI: {what}"
    );
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {what}");
}
