//! [`Patterns`]: the compiled regular expressions of templates.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use regex::bytes::{Regex, RegexBuilder};

/// Maximum number of cached patterns. When it is reached, all are dropped, including those of old settings.
const MOST: usize = 64;

/// Patterns, compiled at their first use.
#[derive(Debug, Default)]
pub(super) struct Patterns {
    compiled: Mutex<HashMap<String, Result<Regex, String>>>,
}

impl Patterns {
    /// Returns true if `pattern` matches any part of `interface`. Returns an error for an invalid pattern. Classes such
    /// as `\d` are ASCII only, as in Go.
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
