//! The network configuration as a text with placeholders. Read `values`, then `document`.

mod document;
mod problems;
mod values;

pub use self::document::{TemplateError, kind, parse, plugins};
pub use self::problems::{ConfigProblem, find_problems};
pub use self::values::{BUILT_IN, TOKEN, Tls, Values};

#[cfg(test)]
mod tests;
