//! [`Running`]: a neighbor's program that runs beside the test, and acts on each change in the
//! configuration directory.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent};

use crate::controllers::PATIENCE;

/// Number of rounds after which programs count as writing without end.
const MAX_ANSWERS: usize = 50;

/// Pause between two looks at the directory.
const PAUSE: Duration = Duration::from_millis(1);

/// A program that acts on changes in the configuration directory.
pub trait Program: Send {
    /// Acts on the events since the last call, at first on none. Returns the number of its writes,
    /// renames and removals.
    fn act(&mut self, directory: &Path, events: &[InotifyEvent]) -> Result<usize>;

    /// Returns true if the program also acts without an event, again and again.
    fn polls(&self) -> bool {
        false
    }
}

/// A running program. It ends when it is dropped.
#[derive(Debug)]
pub struct Running {
    progress: Arc<Progress>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Progress {
    is_stopped: AtomicBool,
    looks: AtomicUsize,
    writes: AtomicUsize,
    failure: Mutex<Option<String>>,
}

impl Running {
    /// Starts a program.
    pub fn start(mut program: impl Program + 'static, directory: &Path) -> Result<Running> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK)?;
        let changes = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_DELETE;
        inotify.add_watch(directory, changes)?;
        let progress = Arc::new(Progress::default());
        let (shared, directory) = (progress.clone(), directory.to_owned());
        let thread = thread::spawn(move || {
            if let Err(error) = run(&mut program, &inotify, &directory, &shared) {
                *shared.failure.lock().expect("no other thread panicked") =
                    Some(format!("{error:#}"));
            }
        });
        Ok(Running {
            progress,
            thread: Some(thread),
        })
    }

    /// Returns the number of the program's writes, renames and removals.
    pub fn writes(&self) -> usize {
        self.progress.writes.load(Ordering::SeqCst)
    }

    /// Waits until the program has acted on all events until now.
    fn await_looks(&self) -> Result<()> {
        // The look that runs at present may have read its events before.
        let (wanted, deadline) = (
            self.progress.looks.load(Ordering::SeqCst) + 2,
            Instant::now() + PATIENCE,
        );
        while self.progress.looks.load(Ordering::SeqCst) < wanted {
            if let Some(failure) = &*self
                .progress
                .failure
                .lock()
                .expect("no other thread panicked")
            {
                bail!("a neighbor failed: {failure}");
            }
            ensure!(
                Instant::now() < deadline,
                "a neighbor does not look at the directory"
            );
            thread::sleep(PAUSE);
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.progress.is_stopped.store(true, Ordering::SeqCst);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn run(
    program: &mut impl Program,
    inotify: &Inotify,
    directory: &Path,
    progress: &Progress,
) -> Result<()> {
    let mut is_first = true;
    while !progress.is_stopped.load(Ordering::SeqCst) {
        let events = read_events(inotify)?;
        if is_first || program.polls() || !events.is_empty() {
            let writes = program.act(directory, if is_first { &[] } else { &events })?;
            progress.writes.fetch_add(writes, Ordering::SeqCst);
        }
        is_first = false;
        progress.looks.fetch_add(1, Ordering::SeqCst);
        if events.is_empty() {
            thread::sleep(PAUSE);
        }
    }
    Ok(())
}

pub(super) fn read_events(inotify: &Inotify) -> Result<Vec<InotifyEvent>> {
    let mut all = Vec::new();
    loop {
        match inotify.read_events() {
            Ok(events) => all.extend(events),
            Err(Errno::EAGAIN) => return Ok(all),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits until the programs have acted on all changes, those of each other included.
pub fn settle(programs: &[Running]) -> Result<()> {
    let writes = || programs.iter().map(Running::writes).sum::<usize>();
    for _ in 0..MAX_ANSWERS {
        let before = writes();
        programs.iter().try_for_each(Running::await_looks)?;
        if writes() == before {
            return Ok(());
        }
    }
    bail!("the neighbors write again and again: {programs:?}")
}
