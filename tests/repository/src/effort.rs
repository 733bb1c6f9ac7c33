//! The effort of tests: little in `make check`, all in `make test`.

use std::num::NonZero;
use std::str::FromStr;
use std::time::Duration;

/// Returns the duration of a search for an input that breaks a function: `FUZZ_SECONDS`, or a
/// second.
///
/// # Panics
/// Panics if the variable is no number.
pub fn fuzz_time() -> Duration {
    Duration::from_secs(number("FUZZ_SECONDS").unwrap_or(1))
}

/// Returns 1 if a test that stops a program at each of its requests tries each one. A larger number
/// of `KILL_EVERY` leaves requests out: with 4, the test tries the first, the fifth, the ninth.
///
/// # Panics
/// Panics if the variable is no number above zero.
pub fn kill_every() -> usize {
    number::<NonZero<usize>>("KILL_EVERY").map_or(1, NonZero::get)
}

fn number<N: FromStr>(variable: &str) -> Option<N> {
    let text = std::env::var(variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable} is no number that a test can use: {text}")))
}
