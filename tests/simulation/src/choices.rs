//! [`Choices`]: the numbers that determine a schedule.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;

/// The numbers of each task, by the name of the task. They are drawn from a seed or given. Equal
/// numbers give equal schedules. Zero is always the plainest choice: no fault, no delay. A task has
/// its own numbers, so that the end of one task does not change what the others do.
#[derive(Debug)]
pub struct Choices {
    seed: Option<u64>,
    given: Numbers,
    tasks: BTreeMap<Arc<str>, OfTask>,
}

/// The numbers of each task.
pub type Numbers = BTreeMap<String, Vec<u32>>;

#[derive(Debug)]
struct OfTask {
    made: Vec<u32>,
    rng: Option<Rng>,
    given: Vec<u32>,
}

impl Choices {
    /// Draws the numbers from a seed.
    pub fn from_seed(seed: u64) -> Self {
        Choices {
            seed: Some(seed),
            given: Numbers::new(),
            tasks: BTreeMap::new(),
        }
    }

    /// Uses these numbers, and zero after the last one of a task.
    pub fn given(given: Numbers) -> Self {
        Choices {
            seed: None,
            given,
            tasks: BTreeMap::new(),
        }
    }

    /// Returns the numbers chosen so far, without zeros at the end.
    pub fn into_made(self) -> Numbers {
        let made = self.tasks.into_iter().map(|(name, task)| {
            let last = task.made.iter().rposition(|number| *number != 0);
            let mut made = task.made;
            made.truncate(last.map_or(0, |last| last + 1));
            (name.to_string(), made)
        });
        made.filter(|(_, numbers)| !numbers.is_empty()).collect()
    }

    /// Chooses a number below `limit`, each with the same probability.
    pub fn below(&mut self, task: &Arc<str>, limit: usize) -> usize {
        self.choose(task, limit, |rng, limit| rng.u32(0..limit))
    }

    /// Chooses true once in `times`; never if `times` is 0.
    pub fn one_in(&mut self, task: &Arc<str>, times: usize) -> bool {
        let draw = |rng: &mut Rng, _| u32::from(rng.usize(0..times) == 0);
        times > 0 && self.choose(task, 2, draw) == 1
    }

    /// Chooses zero, except once in `times`: then any number below `limit`.
    pub fn mostly_zero(&mut self, task: &Arc<str>, limit: usize, times: usize) -> usize {
        self.choose(task, limit, |rng, limit| match rng.usize(0..times.max(1)) {
            0 => rng.u32(0..limit),
            _ => 0,
        })
    }

    fn choose(
        &mut self,
        task: &Arc<str>,
        limit: usize,
        draw: impl FnOnce(&mut Rng, u32) -> u32,
    ) -> usize {
        if limit < 2 {
            return 0;
        }
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let (seed, given) = (self.seed, &mut self.given);
        let of_task = self
            .tasks
            .entry(Arc::clone(task))
            .or_insert_with(|| OfTask {
                made: Vec::new(),
                rng: seed.map(|seed| Rng::with_seed(seed ^ hash(task))),
                given: given.remove(&**task).unwrap_or_default(),
            });
        let number = match &mut of_task.rng {
            Some(rng) => draw(rng, limit),
            None => of_task
                .given
                .get(of_task.made.len())
                .map_or(0, |number| number % limit),
        };
        of_task.made.push(number);
        number as usize
    }
}

/// Returns the FNV-1a hash of a name, so that each task draws other numbers from the same seed.
fn hash(name: &str) -> u64 {
    let add = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, add)
}
