//! [`Patterns`]: the templates' regular expressions.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use regex::bytes::{Regex, RegexBuilder};

/// Most patterns that are kept; those of settings that are no longer in force are dropped with all others.
const MOST: usize = 64;

/// Patterns, compiled when they are first asked for.
#[derive(Debug, Default)]
pub(super) struct Patterns {
    compiled: Mutex<HashMap<String, Result<Regex, String>>>,
}

impl Patterns {
    /// Whether `pattern` is found anywhere in `interface`, or what is wrong with it. Classes such as `\d` are of ASCII, as
    /// in Go.
    pub(super) fn is_match(&self, pattern: &str, interface: &str) -> Result<bool, String> {
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if !compiled.contains_key(pattern) && compiled.len() >= MOST {
            compiled.clear();
        }
        let regex = compiled
            .entry(pattern.to_owned())
            .or_insert_with(|| RegexBuilder::new(pattern).unicode(false).build().map_err(|error| error.to_string()));
        regex.as_ref().map(|regex| regex.is_match(interface.as_bytes())).map_err(Clone::clone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_found_anywhere() {
        let patterns = Patterns::default();
        for (pattern, interface, found) in [
            ("eth", "veth0", true),
            ("^eth0$|eth1", "eth1", true),
            (r"^eth\d+$", "eth12", true),
            (r"^eth\d+$", "eth", false),
            (r"[[:alpha:]]\w.", "ens3", true),
        ] {
            assert_eq!(patterns.is_match(pattern, interface), Ok(found), "{pattern} {interface}");
        }
        assert!(patterns.is_match("(", "eth0").is_err());
    }
}
