//! `simulate`: runs schedules, and tells the first one that violates an invariant.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Parser;
use simulation::choices::Choices;
use simulation::plants::Plant;
use simulation::shrink::shrink;
use simulation::simulation::{Outcome, Story, simulate};

/// Runs the operations of many nodes in one process, in orders that a seed determines.
#[derive(Debug, Parser)]
struct Options {
    /// The number of schedules.
    #[arg(long, default_value_t = 10_000)]
    schedules: u64,
    /// The seed of the first schedule; each further one has the next seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The number of threads; by default one for each processor.
    #[arg(long)]
    threads: Option<usize>,
    /// A fault to plant at a seam, which the schedules must find; see plants.rs.
    #[arg(long)]
    plant: Option<String>,
    /// Tell the schedule of the seed, even if no invariant is violated.
    #[arg(long)]
    tell: bool,
}

/// The sums of all schedules.
#[derive(Default)]
struct Tally {
    schedules: AtomicU64,
    steps: AtomicU64,
    faults: AtomicU64,
    late_writes: AtomicU64,
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    let plant = match &options.plant {
        None => Plant::Nothing,
        Some(name) => match Plant::named(name) {
            Some(plant) => plant,
            None => bail!("no fault is named {name}; there are {:?}", Plant::ALL),
        },
    };
    let directory = directory()?;
    if options.tell {
        let choices = Choices::from_seed(options.seed);
        let outcome = simulate(choices, plant, directory.path(), Story::Told);
        print(&outcome)?;
        return Ok(exit_code(outcome.violation.is_some()));
    }
    let failed = run(&options, plant, &directory)?;
    let Some((seed, outcome)) = failed else {
        return Ok(ExitCode::SUCCESS);
    };
    eprintln!("seed {seed} violates an invariant; searching for a shorter schedule");
    let numbers = shrink(&outcome, plant, directory.path());
    let choices = Choices::given(numbers);
    print(&simulate(choices, plant, directory.path(), Story::Told))?;
    Ok(ExitCode::FAILURE)
}

/// Returns a directory for the files of nodes, in memory if possible.
fn directory() -> anyhow::Result<tempfile::TempDir> {
    let in_memory = PathBuf::from("/dev/shm");
    let parent = match in_memory.is_dir() {
        true => in_memory,
        false => std::env::temp_dir(),
    };
    tempfile::tempdir_in(parent).context("cannot create a directory for the files of nodes")
}

fn run(
    options: &Options,
    plant: Plant,
    directory: &tempfile::TempDir,
) -> anyhow::Result<Option<(u64, Outcome)>> {
    let begin = Instant::now();
    let (tally, next, has_failed) = (Tally::default(), AtomicU64::new(0), AtomicBool::new(false));
    let failed = Mutex::new(None);
    let work = || {
        while !has_failed.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= options.schedules {
                break;
            }
            let seed = options.seed.wrapping_add(number);
            let choices = Choices::from_seed(seed);
            let outcome = simulate(choices, plant, directory.path(), Story::Omitted);
            tally.schedules.fetch_add(1, Ordering::Relaxed);
            tally
                .steps
                .fetch_add(outcome.steps as u64, Ordering::Relaxed);
            tally
                .faults
                .fetch_add(outcome.faults as u64, Ordering::Relaxed);
            let late_writes = outcome.excused.late_writes as u64;
            tally.late_writes.fetch_add(late_writes, Ordering::Relaxed);
            if outcome.violation.is_some() {
                has_failed.store(true, Ordering::Relaxed);
                let mut failed = failed.lock().expect("no thread panicked");
                failed.get_or_insert((seed, outcome));
            }
        }
    };
    let available = thread::available_parallelism().map_or(1, usize::from);
    let threads = options.threads.unwrap_or(available).max(1);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut reported = Instant::now();
        while workers.iter().any(|worker| !worker.is_finished()) {
            thread::sleep(Duration::from_millis(50));
            if reported.elapsed() > Duration::from_secs(10) {
                reported = Instant::now();
                eprintln!("{}", in_words(&tally, begin.elapsed()));
            }
        }
    });
    writeln!(std::io::stdout(), "{}", in_words(&tally, begin.elapsed()))?;
    Ok(failed.into_inner().expect("no thread panicked"))
}

fn in_words(tally: &Tally, took: Duration) -> String {
    let sums = [
        &tally.schedules,
        &tally.steps,
        &tally.faults,
        &tally.late_writes,
    ];
    let [schedules, steps, faults, late_writes] = sums.map(|sum| sum.load(Ordering::Relaxed));
    format!(
        "{schedules} schedules, {steps} steps, {faults} faults, {late_writes} excused late writes \
         in {took:.1?}"
    )
}

fn print(outcome: &Outcome) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for step in &outcome.story {
        writeln!(out, "{step}")?;
    }
    if let Some(violation) = &outcome.violation {
        writeln!(
            out,
            "Violated: {}. {}.",
            violation.invariant, violation.text
        )?;
    }
    Ok(())
}

fn exit_code(has_failed: bool) -> ExitCode {
    match has_failed {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}
