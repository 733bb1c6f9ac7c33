//! [`Choices`]: the numbers that determine a schedule.

use fastrand::Rng;

/// A sequence of numbers, each below a limit. Equal sequences give equal schedules. Zero is always
/// the plainest choice: no fault, no change of the running task.
#[derive(Debug)]
pub struct Choices {
    made: Vec<u32>,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Drawn(Rng),
    /// Numbers given in advance. After the last one, all are zero.
    Given(Vec<u32>),
}

impl Choices {
    /// Draws the numbers from a seed.
    pub fn from_seed(seed: u64) -> Self {
        Choices {
            made: Vec::new(),
            source: Source::Drawn(Rng::with_seed(seed)),
        }
    }

    /// Uses these numbers, and zero after the last one.
    pub fn given(numbers: Vec<u32>) -> Self {
        Choices {
            made: Vec::new(),
            source: Source::Given(numbers),
        }
    }

    /// Returns the numbers chosen so far.
    pub fn into_made(self) -> Vec<u32> {
        self.made
    }

    /// Chooses a number below `limit`, each with the same probability.
    pub fn below(&mut self, limit: usize) -> usize {
        self.choose(limit, |rng, limit| rng.u32(0..limit))
    }

    /// Chooses true once in `times`; never if `times` is 0.
    pub fn one_in(&mut self, times: usize) -> bool {
        times > 0 && self.choose(2, |rng, _| u32::from(rng.usize(0..times) == 0)) == 1
    }

    /// Chooses zero, except once in `times`: then any number below `limit`.
    pub fn mostly_zero(&mut self, limit: usize, times: usize) -> usize {
        self.choose(limit, |rng, limit| match rng.usize(0..times.max(1)) {
            0 => rng.u32(0..limit),
            _ => 0,
        })
    }

    fn choose(&mut self, limit: usize, draw: impl FnOnce(&mut Rng, u32) -> u32) -> usize {
        if limit < 2 {
            return 0;
        }
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let number = match &mut self.source {
            Source::Drawn(rng) => draw(rng, limit),
            Source::Given(numbers) => numbers.get(self.made.len()).map_or(0, |n| n % limit),
        };
        self.made.push(number);
        number as usize
    }
}
