//! The invariants hold in drawn schedules, and find planted faults.

use crate::choices::{Choices, Numbers};
use crate::plants::Plant;
use crate::simulation::{Outcome, Story, simulate};

/// The number of schedules, which have the first seeds.
const SCHEDULES: u64 = 100;

/// Planted faults, each with a seed whose schedule finds it.
const FOUND: [(Plant, u64); 6] = [
    (Plant::UncheckedUpdates, 20),
    (Plant::StaleReads, 0),
    (Plant::RemovalByName, 5),
    (Plant::LostJournals, 16),
    (Plant::StoppedClocks, 7),
    (Plant::AbsentOwners, 114),
];

fn run(choices: Choices, plant: Plant) -> Outcome {
    let directory = tempfile::tempdir().unwrap();
    simulate(choices, plant, directory.path(), Story::Told)
}

#[test]
fn schedules_of_the_first_seeds_violate_no_invariant() {
    for seed in 0..SCHEDULES {
        let outcome = run(Choices::from_seed(seed), Plant::Nothing);
        let story = outcome.story.join("\n");
        assert_eq!(outcome.violation, None, "seed {seed}:\n{story}");
        assert!(outcome.steps > 0);
    }
}

#[test]
fn schedule_with_the_numbers_of_another_takes_the_same_steps() {
    for seed in [1, 7, 23] {
        let first = run(Choices::from_seed(seed), Plant::Nothing);
        let again = run(Choices::given(first.choices.clone()), Plant::Nothing);
        assert_eq!(first.story, again.story, "seed {seed}");
    }
}

#[test]
fn schedule_without_numbers_has_no_faults() {
    let outcome = run(Choices::given(Numbers::new()), Plant::Nothing);
    assert_eq!((outcome.faults, outcome.violation), (0, None));
}

#[test]
fn schedules_of_kept_seeds_find_planted_faults() {
    for (plant, seed) in FOUND {
        let outcome = run(Choices::from_seed(seed), plant);
        assert!(outcome.violation.is_some(), "{plant:?}, seed {seed}");
    }
}
