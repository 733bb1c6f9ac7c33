//! `simulate`: runs schedules, and shrinks and tells those that fail.
fn main() {
    let dir = std::path::Path::new("/dev/shm");
    let first: u64 = std::env::args().nth(1).map_or(0, |a| a.parse().unwrap());
    let n: u64 = std::env::args().nth(2).map_or(100, |a| a.parse().unwrap());
    let mut steps = 0;
    let t = std::time::Instant::now();
    for seed in first..first + n {
        let o = simulation::simulation::simulate(simulation::choices::Choices::from_seed(seed), dir, simulation::simulation::Story::Omitted);
        steps += o.steps;
        if let Some(v) = o.violation {
            eprintln!("seed {seed}: {v:?} after {} steps, {} choices", o.steps, o.choices.len());
            let o = simulation::simulation::simulate(simulation::choices::Choices::given(o.choices), dir, simulation::simulation::Story::Told);
            for l in o.story { eprintln!("  {l}"); }
            break;
        }
    }
    eprintln!("{steps} steps in {:?}", t.elapsed());
}
