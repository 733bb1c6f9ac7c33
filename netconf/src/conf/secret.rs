//! Text that must not be printed.

use std::fmt;

use crate::decode::{DecodeError, FromNode, Node};

/// Text that must not be printed: a key, a password or a token. Empty if not set.
#[derive(Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, schemars::JsonSchema), schemars(inline))]
pub struct Secret(String);

impl Secret {
    /// Wraps the text.
    pub fn new(text: String) -> Secret {
        Secret(text)
    }

    /// Returns the text. Callers use it only to authenticate.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns true if the text is empty, which means not set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "\"\"" } else { "<hidden>" })
    }
}

impl FromNode for Secret {
    fn from_node(node: &Node<'_>) -> Result<Secret, DecodeError> {
        String::from_node(&node.secret()).map(Secret)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_hides_the_text() {
        assert_eq!(format!("{:?}", Secret::new("hunter2".to_owned())), "<hidden>");
    }
}
