//! Tests that this machine cannot run: they fail, or are skipped by name if `MAY_SKIP=1` permits.

use std::io::Write;
use std::thread;

/// Ends a test that this machine cannot run because it lacks `what`. With `MAY_SKIP=1` the function
/// returns, and the test must return right after it.
///
/// libtest counts a test that returns as passed. So the function writes a line that begins with
/// `SKIPPED` to stderr, past libtest's capture, and `make test` counts these lines.
///
/// # Panics
/// Panics without `MAY_SKIP=1`.
pub fn skipped(what: &str) {
    let test = thread::current().name().unwrap_or("test").to_owned();
    assert!(
        std::env::var_os("MAY_SKIP").is_some_and(|may| may == "1"),
        "{test} cannot run here: {what}\n`make suite NAME=SUITE` installs all that a suite needs; \
         MAY_SKIP=1 skips such tests"
    );
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {what}");
}
