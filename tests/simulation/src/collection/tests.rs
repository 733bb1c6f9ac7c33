use crate::choices::Choices;
use crate::plants::Plant;
use crate::simulation::{Story, simulate};

/// The number of schedules, from seed 0 on.
const SCHEDULES: u64 = 100;

fn violations(plant: Plant) -> impl Iterator<Item = String> {
    let directory = tempfile::tempdir().expect("a directory for the files of nodes");
    (0..SCHEDULES).filter_map(move |seed| {
        let choices = Choices::from_seed(seed);
        let outcome = simulate(choices, plant, directory.path(), Story::Omitted);
        Some(format!("seed {seed}: {:?}", outcome.violation?))
    })
}

#[test]
fn lookup_that_misses_a_pod_violates_an_invariant() {
    assert!(violations(Plant::AbsentOwners).next().is_some());
}

#[test]
fn schedule_with_equal_numbers_tells_the_same_story() {
    let directory = tempfile::tempdir().expect("a directory for the files of nodes");
    let run = |seed| {
        let choices = Choices::from_seed(seed);
        simulate(choices, Plant::Nothing, directory.path(), Story::Told).story
    };
    for seed in 0..20 {
        let story = run(seed);
        assert!(!story.is_empty());
        assert_eq!(story, run(seed), "seed {seed}");
    }
}
