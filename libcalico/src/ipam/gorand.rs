//! [`GoRand`]: the random numbers of Go's `math/rand`, from which upstream draws the start of a
//! [`BlockWalk`](super::BlockWalk) (IPAM-119).
//!
//! The source is an additive lagged Fibonacci generator over 607 words with taps 607 and 273,
//! seeded from a Lehmer sequence.

mod cooked;

use cooked::COOKED;

const WORDS: usize = 607;
const LAG: usize = 273;
const LEHMER_MODULUS: i64 = (1 << 31) - 1;
const LEHMER_FACTOR: i64 = 48271;
/// The seed that Go uses in place of 0, because a Lehmer sequence from 0 has only zeros.
const SEED_FOR_ZERO: i64 = 89_482_311;

/// A generator of Go's pseudo-random numbers.
#[derive(Debug, Clone)]
pub struct GoRand {
    state: Box<[u64; WORDS]>,
    tap: usize,
    feed: usize,
}

impl GoRand {
    /// Creates the generator that Go's `rand.NewSource(seed)` returns.
    pub fn new(seed: i64) -> Self {
        let mut x = match seed.rem_euclid(LEHMER_MODULUS) {
            0 => SEED_FOR_ZERO,
            seed => seed,
        };
        let mut lehmer = || {
            x = x * LEHMER_FACTOR % LEHMER_MODULUS;
            x
        };
        for _ in 0..20 {
            lehmer();
        }
        let mut state = Box::new([0; WORDS]);
        for (word, cooked) in state.iter_mut().zip(COOKED) {
            let (high, middle, low) = (lehmer(), lehmer(), lehmer());
            *word = ((high << 40) ^ (middle << 20) ^ low ^ cooked) as u64;
        }
        GoRand {
            state,
            tap: 0,
            feed: WORDS - LAG,
        }
    }

    fn next_word(&mut self) -> u64 {
        self.tap = (self.tap + WORDS - 1) % WORDS;
        self.feed = (self.feed + WORDS - 1) % WORDS;
        let sum = self.state[self.feed].wrapping_add(self.state[self.tap]);
        self.state[self.feed] = sum;
        sum
    }

    /// Returns 32 random bits: the top bits of a 63-bit draw.
    pub fn next_u32(&mut self) -> u32 {
        (self.next_word() << 1 >> 32) as u32
    }

    /// Returns a number below `limit` with uniform probability, as Go's `big.Int` draws it; 0 for a
    /// limit of 0.
    ///
    /// Each attempt draws the 64-bit words of a number, low half first, cut to the bit length of
    /// the limit.
    pub fn below(&mut self, limit: u128) -> u128 {
        if limit == 0 {
            return 0;
        }
        let bits = u128::BITS - limit.leading_zeros();
        let mask = u128::MAX >> (u128::BITS - bits);
        loop {
            let mut drawn = 0;
            for shift in (0..bits.next_multiple_of(64)).step_by(32) {
                drawn |= u128::from(self.next_u32()) << shift;
            }
            if drawn & mask < limit {
                return drawn & mask;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Results of Go: a seed, its first outputs, and its numbers below several limits.
    #[rustfmt::skip]
    const VECTORS: [(i64, [u32; 4], [u128; 8]); 8] = [
        (568266999, [1549122234, 1132198735, 1704301745, 1885019871],
         [2, 10, 186, 698, 57290, 302237, 251070522519304890, 908753216152714721978]),
        (568266996, [2557795999, 40204838, 2147711849, 1843339792],
         [1, 9, 159, 873, 56991, 228201, 172678466908774047, 43179536098986735384]),
        (1258779341, [2116163800, 214878802, 369933460, 2624510797],
         [0, 15, 216, 216, 6360, 137432, 284634091543377649, 369857778903500855512]),
        (2118914743, [3160670226, 3974490273, 745810942, 128505113],
         [2, 7, 18, 18, 18, 262162, 72910642265314497, 722782160262710870138]),
        (1440555195, [1447772715, 1442234823, 1578544994, 560858964],
         [3, 11, 43, 555, 44898, 737835, 103027900413292386, 630866610156911169499]),
        (4270604816, [4281500234, 943329576, 918144769, 2905540302],
         [2, 10, 74, 586, 33354, 173026, 16344416427082314, 22498313756260598346]),
        (3957252814, [3217423002, 3224389328, 3819509332, 696161099],
         [2, 7, 154, 666, 2887, 391834, 13588661266676378, 628109767315690228551]),
        (3957252813, [800420256, 1562075156, 1073812524, 2203157193],
         [0, 0, 44, 416, 45103, 70700, 239116056101196844, 818365800952934789536]),
    ];

    #[test]
    fn first_random_outputs_match_gos() {
        for (seed, outputs, _) in VECTORS {
            let mut rand = GoRand::new(seed);
            assert_eq!(
                std::array::from_fn(|_| rand.next_u32()),
                outputs,
                "seed {seed}"
            );
        }
    }

    #[test]
    fn uniform_random_draws_match_gos() {
        for (seed, _, starts) in VECTORS {
            for (bits, start) in [2, 4, 8, 10, 16, 20, 58, 70].into_iter().zip(starts) {
                assert_eq!(
                    GoRand::new(seed).below(1 << bits),
                    start,
                    "seed {seed} below 2^{bits}"
                );
            }
        }
    }

    #[test]
    fn extreme_random_limits_and_seeds_terminate() {
        for limit in [0, 1] {
            assert_eq!(GoRand::new(7).below(limit), 0);
        }
        assert!(GoRand::new(7).below(u128::MAX) < u128::MAX);
        assert_eq!(
            GoRand::new(0).next_u32(),
            GoRand::new(SEED_FOR_ZERO).next_u32()
        );
        assert_eq!(
            GoRand::new(-1).next_u32(),
            GoRand::new(LEHMER_MODULUS - 1).next_u32()
        );
    }
}
