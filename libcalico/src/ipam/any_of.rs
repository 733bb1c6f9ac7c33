//! Fixed lists: the addresses of the annotation [`ANY_OF`], of which a pod gets the first free one
//! of each family.

mod candidates;
mod parse;
#[cfg(test)]
mod tests;
mod unavailable;

pub use self::candidates::{Candidate, Candidates, candidates};
pub use self::parse::{ANY_OF, AnyOf};
pub use self::unavailable::{Obstacle, Unavailable, list_for_caller, list_for_log};
