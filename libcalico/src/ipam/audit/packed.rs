//! Objects as the audit keeps them. A large cluster has as many handles and endpoints as addresses,
//! and decoded objects would take several times the memory of their JSON.

mod attribute;
mod block;
mod endpoint;
mod handle;
#[cfg(test)]
mod tests;

pub use self::block::{PackedAllocation, PackedBlock};
pub use self::endpoint::PackedEndpoint;
pub use self::handle::PackedHandle;

/// At most eight texts, in one allocation of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Texts<const N: usize> {
    joined: Box<str>,
    /// The end of each text.
    ends: [u32; N],
    /// A bit for each text that is not `None`.
    present: u8,
}

impl<const N: usize> Texts<N> {
    fn of(texts: [Option<&str>; N]) -> Self {
        let length = texts.iter().flatten().map(|text| text.len()).sum();
        let (mut joined, mut present) = (String::with_capacity(length), 0);
        let mut ends = [0; N];
        for (index, text) in texts.into_iter().enumerate() {
            present |= u8::from(text.is_some()) << index;
            joined.push_str(text.unwrap_or_default());
            // A datastore stores no value of 4 GiB.
            ends[index] = u32::try_from(joined.len()).unwrap_or(u32::MAX);
        }
        Texts {
            joined: joined.into(),
            ends,
            present,
        }
    }

    fn get(&self, index: usize) -> Option<&str> {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.joined
            .get(start as usize..self.ends[index] as usize)
            .filter(|_| self.present & (1 << index) != 0)
    }
}

/// Values, of which a single one takes no allocation of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Few<T> {
    One([T; 1]),
    Other(Box<[T]>),
}

impl<T: Copy> Few<T> {
    fn of(values: &[T]) -> Self {
        if let [one] = values {
            Few::One([*one])
        } else {
            Few::Other(values.into())
        }
    }

    fn get(&self) -> &[T] {
        match self {
            Few::One(one) => one,
            Few::Other(values) => values,
        }
    }
}
