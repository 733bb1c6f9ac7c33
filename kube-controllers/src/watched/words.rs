//! [`Words`].

use std::collections::HashSet;
use std::sync::Arc;

/// Interns strings that many objects share, such as node names.
#[derive(Debug, Default)]
pub struct Words {
    known: HashSet<Arc<str>>,
    /// Number of strings left after the last removal of unused strings.
    swept: usize,
}

/// Number of strings below which unused ones are not removed.
const FEW: usize = 1024;

impl Words {
    /// Returns the shared copy of `word`.
    pub fn share(&mut self, word: &str) -> Arc<str> {
        if let Some(known) = self.known.get(word) {
            return known.clone();
        }
        if self.known.len() >= (2 * self.swept).max(FEW) {
            self.known.retain(|word| Arc::strong_count(word) > 1);
            self.swept = self.known.len();
        }
        let word: Arc<str> = word.into();
        self.known.insert(word.clone());
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_nobody_says_is_forgotten() {
        let mut words = Words::default();
        let kept: Vec<Arc<str>> = (0..10).map(|n| words.share(&format!("kept{n}"))).collect();
        for n in 0..10 * FEW {
            words.share(&format!("passing{n}"));
        }
        assert!(words.known.len() <= FEW, "{}", words.known.len());
        for word in &kept {
            assert!(Arc::ptr_eq(word, &words.share(word)));
        }
    }
}
