//! [`Thresholds`]: the moments at which the use of a pool crosses a threshold.

use std::collections::BTreeMap;
use std::time::Duration;

/// The thresholds in percent, lowest first.
const THRESHOLDS: [u8; 2] = [80, 95];
/// Percentage points below a threshold at which the threshold is armed again.
const REARM_BELOW: u8 = 5;
/// The shortest interval between two crossings of a threshold by a pool. The owner of pods decides
/// when their addresses are released, and could otherwise cause any number of crossings.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(600);

/// A crossing of a threshold by a pool.
#[derive(Debug, Clone, Copy)]
pub struct Crossing {
    /// The threshold in percent.
    pub threshold: u8,
    /// The pool's state before the assessment that found the crossing; `None` if it was the first
    /// assessment.
    before: Option<PoolState>,
}

impl Crossing {
    /// Returns true if the pool was assessed for the first time, so that the time of the crossing
    /// is unknown.
    pub fn is_first(&self) -> bool {
        self.before.is_none()
    }
}

/// The thresholds that each pool has crossed.
#[derive(Debug, Default)]
pub struct Thresholds {
    pools: BTreeMap<String, PoolState>,
}

/// The state of each of [`THRESHOLDS`] for a pool.
type PoolState = [Threshold; THRESHOLDS.len()];

/// A threshold of a pool.
#[derive(Debug, Clone, Copy, Default)]
struct Threshold {
    /// True if the pool has crossed the threshold and has not fallen clearly below since.
    is_crossed: bool,
    /// The time of the last crossing.
    crossed_at: Option<Duration>,
}

impl Thresholds {
    /// Assesses the used share of a pool, from 0 to 1. Returns the threshold that the pool has
    /// crossed since the last assessment, if any. While the pool is above both thresholds, it
    /// crosses only the higher one.
    pub fn cross(&mut self, pool: &str, share: f64, now: Duration) -> Option<Crossing> {
        let before = self.pools.get(pool).copied();
        let states = self.pools.entry(pool.to_owned()).or_default();
        let (mut crossing, mut is_above_higher) = (None, false);
        for (threshold, state) in THRESHOLDS.into_iter().zip(states).rev() {
            let is_above = share >= f64::from(threshold) / 100.0;
            if share < f64::from(threshold - REARM_BELOW) / 100.0 {
                state.is_crossed = false;
            }
            let may_cross = state
                .crossed_at
                .is_none_or(|at| now >= at.saturating_add(SHORTEST_INTERVAL));
            if is_above_higher {
                state.is_crossed = true;
            } else if is_above && !state.is_crossed && may_cross {
                *state = Threshold {
                    is_crossed: true,
                    crossed_at: Some(now),
                };
                crossing = Some(Crossing { threshold, before });
            }
            is_above_higher |= is_above;
        }
        crossing
    }

    /// Restores the state of a pool before a crossing that could not be reported, so that the next
    /// assessment finds the crossing again.
    pub fn undo(&mut self, pool: &str, crossing: &Crossing) {
        match crossing.before {
            Some(before) => self.pools.insert(pool.to_owned(), before),
            None => self.pools.remove(pool),
        };
    }

    /// Removes the state of all other pools.
    pub fn retain(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.pools.retain(|pool, _| is_kept(pool));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minutes: u64) -> Duration {
        Duration::from_secs(minutes * 60)
    }

    /// Assesses a pool each 20 minutes. Returns the thresholds that it crosses.
    fn crossed(shares: &[f64]) -> Vec<Option<u8>> {
        let mut thresholds = Thresholds::default();
        let mut threshold =
            |(n, share): (u64, &f64)| Some(thresholds.cross("p", *share, at(n * 20))?.threshold);
        (0..).zip(shares).map(&mut threshold).collect()
    }

    #[test]
    fn each_crossing_is_told_once() {
        let shares = [0.5, 0.79, 0.8, 0.85, 0.94, 0.95, 1.0, 1.0];
        assert_eq!(
            crossed(&shares),
            [None, None, Some(80), None, None, Some(95), None, None]
        );
        assert_eq!(
            crossed(&[0.5, 0.97, 0.97, 0.81]),
            [None, Some(95), None, None],
            "the higher threshold only"
        );
        assert_eq!(crossed(&[0.97, 0.96]), [Some(95), None]);
    }

    /// Shows SEC-26.
    #[test]
    fn pool_between_rearm_and_threshold_is_silent() {
        assert_eq!(
            crossed(&[0.8, 0.76, 0.81, 0.75, 0.8]),
            [Some(80), None, None, None, None]
        );
        assert_eq!(crossed(&[0.8, 0.74, 0.81]), [Some(80), None, Some(80)]);
        assert_eq!(
            crossed(&[0.95, 0.91, 0.95, 0.89, 0.95]),
            [Some(95), None, None, None, Some(95)]
        );
    }

    /// Shows SEC-26.
    #[test]
    fn pool_that_flaps_crosses_a_threshold_once_in_ten_minutes() {
        let mut thresholds = Thresholds::default();
        let mut crossings = Vec::new();
        for minute in 0..30 {
            for share in [0.1, 0.9] {
                crossings.extend(
                    thresholds
                        .cross("p", share, at(minute))
                        .map(|crossing| (minute, crossing.threshold)),
                );
            }
        }
        assert_eq!(crossings, [(0, 80), (10, 80), (20, 80)]);
    }

    #[test]
    fn crossing_within_ten_minutes_is_told_after_them_if_it_lasts() {
        let mut thresholds = Thresholds::default();
        let told = [(0, 0.9), (1, 0.1), (2, 0.9), (9, 0.9), (10, 0.9), (11, 0.9)]
            .map(|(minute, share)| thresholds.cross("p", share, at(minute)).is_some());
        assert_eq!(told, [true, false, false, false, true, false]);
    }

    #[test]
    fn lower_threshold_is_not_told_after_the_higher_one() {
        let mut thresholds = Thresholds::default();
        let told = [
            (0, 0.85),
            (1, 0.5),
            (2, 0.96),
            (10, 0.96),
            (20, 0.96),
            (21, 0.85),
        ]
        .map(|(minute, share)| {
            thresholds
                .cross("p", share, at(minute))
                .map(|crossing| crossing.threshold)
        });
        assert_eq!(told, [Some(80), None, Some(95), None, None, None]);
    }

    #[test]
    fn first_assessment_of_a_pool_is_marked() {
        let mut thresholds = Thresholds::default();
        let cross = |thresholds: &mut Thresholds, pool: &str, share| {
            thresholds
                .cross(pool, share, at(0))
                .map(|crossing| (crossing.threshold, crossing.is_first()))
        };
        assert_eq!(cross(&mut thresholds, "p", 0.9), Some((80, true)));
        assert_eq!(cross(&mut thresholds, "p", 0.96), Some((95, false)));
        assert_eq!(cross(&mut thresholds, "q", 0.9), Some((80, true)));
        thresholds.retain(|pool| pool == "q");
        assert_eq!(cross(&mut thresholds, "p", 0.9), Some((80, true)));
        assert_eq!(cross(&mut thresholds, "q", 0.9), None);
    }

    #[test]
    fn undone_crossing_is_found_again_with_the_pause_of_the_earlier_one() {
        let mut thresholds = Thresholds::default();
        let told = [
            (0, 0.5, false),
            (1, 0.9, false),
            (2, 0.1, false),
            (11, 0.9, true),
            (12, 0.9, false),
            (13, 0.1, false),
        ]
        .map(|(minute, share, is_undone)| {
            let crossing = thresholds.cross("p", share, at(minute))?;
            if is_undone {
                thresholds.undo("p", &crossing);
            }
            Some((minute, crossing.is_first()))
        });
        assert_eq!(
            told,
            [
                None,
                Some((1, false)),
                None,
                Some((11, false)),
                Some((12, false)),
                None
            ]
        );
        assert!(
            thresholds.cross("p", 0.9, at(21)).is_none(),
            "the pause begins at the crossing that was reported"
        );
        assert!(thresholds.cross("p", 0.9, at(22)).is_some());
    }

    #[test]
    fn undone_first_crossing_is_again_the_first() {
        let mut thresholds = Thresholds::default();
        for _ in 0..2 {
            let crossing = thresholds.cross("p", 0.9, at(0)).unwrap();
            assert!(crossing.is_first());
            thresholds.undo("p", &crossing);
        }
    }
}
