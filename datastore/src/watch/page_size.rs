//! [`PageSize`]: the number of objects for which a page has about the same size in bytes.

/// Target size of a page in bytes. A page is in memory as a whole, and several times while it arrives.
const BYTES: usize = 512 << 10;
const FIRST: usize = 50;
const FEWEST: usize = 10;
const MOST: usize = 1000;

/// The number of objects to request with the next page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageSize(usize);

impl Default for PageSize {
    fn default() -> Self {
        PageSize(FIRST)
    }
}

impl PageSize {
    /// Returns the number of objects.
    pub fn get(self) -> usize {
        self.0
    }

    /// Adjusts the size to a page of `objects` that took `bytes`. The size grows at most by a factor of four, since the
    /// first objects may be small.
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
