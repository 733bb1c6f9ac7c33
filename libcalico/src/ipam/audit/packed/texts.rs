//! [`Texts`]: several texts in one allocation of memory.

/// Texts that are stored one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Texts<const N: usize> {
    joined: Box<str>,
    /// The end of each text.
    ends: [u32; N],
}

impl<const N: usize> Texts<N> {
    pub(super) fn of(texts: [&str; N]) -> Self {
        let mut joined = String::with_capacity(texts.iter().map(|text| text.len()).sum());
        let ends = texts.map(|text| {
            joined.push_str(text);
            // A datastore stores no value of 4 GiB.
            u32::try_from(joined.len()).unwrap_or(u32::MAX)
        });
        Texts { joined: joined.into(), ends }
    }

    pub(super) fn get(&self, index: usize) -> &str {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.joined.get(start as usize..self.ends[index] as usize).unwrap_or_default()
    }

    /// Returns the number of bytes on the heap.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> usize {
        self.joined.len()
    }
}
