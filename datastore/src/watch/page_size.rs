//! [`PageSize`]: as many objects as fit into a page of a steady size.

/// Bytes that a page should have. A page is in memory as a whole, several times while it arrives.
const BYTES: usize = 512 << 10;
const FIRST: usize = 50;
const FEWEST: usize = 10;
const MOST: usize = 1000;

/// How many objects to ask for next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageSize(usize);

impl Default for PageSize {
    fn default() -> Self {
        PageSize(FIRST)
    }
}

impl PageSize {
    /// That many.
    pub fn get(self) -> usize {
        self.0
    }

    /// Learns from a page of `objects` that took `bytes`. Grows step by step: the first objects may be small ones.
    pub fn learn(&mut self, objects: usize, bytes: usize) {
        if objects > 0 {
            let fitting = BYTES * objects / bytes.max(1);
            self.0 = fitting.min(4 * self.0).clamp(FEWEST, MOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_get_the_size_that_fits() {
        let mut size = PageSize::default();
        size.learn(50, 50 * 5000);
        assert_eq!(size.get(), BYTES / 5000);
        size.learn(100, 100 * 200_000);
        assert_eq!(size.get(), FEWEST);
        size.learn(0, 300);
        assert_eq!(size.get(), FEWEST);
        for expected in [40, 160, 640, MOST, MOST] {
            size.learn(10, 10 * 100);
            assert_eq!(size.get(), expected);
        }
    }
}
