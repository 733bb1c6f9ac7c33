//! Doubles for tests: a clock that stands still, a store that loses races on purpose.

mod clock;

pub(crate) use clock::TestClock;
