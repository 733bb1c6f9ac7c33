//! [`shrink`]: finds the plainest schedule that violates the same invariant.

use std::path::Path;

use crate::choices::{Choices, Numbers};
use crate::plants::Plant;
use crate::simulation::{Outcome, Story, simulate};

/// The number of schedules after which the search ends.
const MOST_TRIES: usize = 4_000;

/// Returns plain numbers whose schedule violates the same invariant as `failed` does, in as few
/// steps as the search finds.
pub fn shrink(failed: &Outcome, plant: Plant, directory: &Path) -> Numbers {
    let Some(violation) = &failed.violation else {
        return failed.choices.clone();
    };
    let mut search = Search {
        best: failed.choices.clone(),
        cost: (failed.steps, weight(&failed.choices)),
        tries: 0,
        fails: |numbers: &Numbers| {
            let choices = Choices::given(numbers.clone());
            let outcome = simulate(choices, plant, directory, Story::Omitted);
            let found = outcome.violation?;
            (found.invariant == violation.invariant).then_some((outcome.steps, outcome.choices))
        },
    };
    while search.tries < MOST_TRIES && search.pass() {}
    search.best
}

struct Search<F> {
    best: Numbers,
    /// The number of steps, and the weight of the numbers.
    cost: (usize, u64),
    tries: usize,
    fails: F,
}

impl<F: Fn(&Numbers) -> Option<(usize, Numbers)>> Search<F> {
    /// Tries to leave out or to lower numbers. Returns true if that was possible.
    fn pass(&mut self) -> bool {
        let before = self.cost;
        let tasks: Vec<String> = self.best.keys().cloned().collect();
        for task in &tasks {
            self.try_change(task, Vec::clear);
        }
        for task in &tasks {
            let mut size = self.length(task).next_power_of_two() / 2;
            while size > 0 {
                self.change_pieces(task, size, |numbers, from, to| numbers[from..to].fill(0));
                self.change_pieces(task, size, |numbers, from, to| {
                    drop(numbers.drain(from..to))
                });
                size /= 2;
            }
            self.change_pieces(task, 1, |numbers, at, _| numbers[at] /= 2);
            self.change_pieces(task, 1, |numbers, at, _| {
                numbers[at] = numbers[at].saturating_sub(1);
            });
        }
        self.cost < before
    }

    fn length(&self, task: &str) -> usize {
        self.best.get(task).map_or(0, Vec::len)
    }

    /// Changes each piece of this size, the last one first.
    fn change_pieces(
        &mut self,
        task: &str,
        size: usize,
        change: impl Fn(&mut Vec<u32>, usize, usize),
    ) {
        let mut end = self.length(task);
        while end > 0 && self.tries < MOST_TRIES {
            end = end.min(self.length(task));
            let begin = end.saturating_sub(size);
            self.try_change(task, |numbers| change(numbers, begin, end));
            end = begin;
        }
    }

    /// Keeps a change if the schedule still fails, and costs less.
    fn try_change(&mut self, task: &str, change: impl FnOnce(&mut Vec<u32>)) {
        let mut numbers = self.best.clone();
        numbers.entry(task.to_owned()).and_modify(change);
        if numbers == self.best {
            return;
        }
        self.tries += 1;
        if let Some((steps, used)) = (self.fails)(&numbers) {
            let cost = (steps, weight(&used));
            if cost < self.cost {
                (self.best, self.cost) = (used, cost);
            }
        }
    }
}

fn weight(numbers: &Numbers) -> u64 {
    let all = numbers.values().flatten();
    all.map(|number| u64::from(*number) + 1).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_finds_the_plainest_numbers_that_fail() {
        let numbers: Vec<u32> = (0..100).map(|number| number % 7).collect();
        let best: Numbers = [("a".into(), numbers.clone()), ("b".into(), numbers)].into();
        let mut search = Search {
            cost: (usize::MAX, weight(&best)),
            best,
            tries: 0,
            fails: |numbers: &Numbers| {
                let of_a = numbers.get("a").into_iter().flatten();
                let threes = of_a.filter(|number| **number >= 3).count();
                (threes >= 2).then(|| (0, numbers.clone()))
            },
        };
        while search.pass() {}
        assert_eq!(search.best["a"], [3, 3]);
        assert!(search.best.get("b").is_none_or(Vec::is_empty));
    }
}
