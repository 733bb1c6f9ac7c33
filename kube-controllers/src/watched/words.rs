//! [`Words`].

use std::collections::HashSet;
use std::sync::Arc;

/// Few words that very many objects say, such as names of nodes: each is kept once.
#[derive(Debug, Default)]
pub struct Words {
    known: HashSet<Arc<str>>,
    /// How many there were when those that nobody says any more were dropped last.
    swept: usize,
}

/// Not worth looking through.
const FEW: usize = 1024;

impl Words {
    /// The one copy of `word`.
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
