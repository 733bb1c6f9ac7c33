//! [`Progress`]: signs of life on stderr of a step that takes longer than a second.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use datastore::kubernetes::may_be_asking;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time before the first sign.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two lines on a stderr that is no terminal.
const INTERVAL: Duration = Duration::from_secs(10);
/// Time between two looks at the counts.
const REDRAW: Duration = Duration::from_millis(100);

const WITH_TOTAL: &str = "{prefix:>24} [{bar:40}] {human_pos}/{human_len} {elapsed}";
const WITHOUT_TOTAL: &str = "{prefix:>24} {spinner} {elapsed}";

/// A bar on a terminal, which disappears when this is dropped. On another stderr, a line from time
/// to time.
pub(super) struct Progress {
    counts: Arc<Counts>,
    /// The signs end when the sender is dropped.
    stop: Option<Sender<()>>,
    signs: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Counts {
    completed: AtomicUsize,
    /// 0 if the number of steps is unknown.
    total: AtomicUsize,
}

impl Progress {
    /// `what` names the action, such as `reading pods`.
    pub(super) fn new(what: &'static str, total: usize) -> Self {
        let counts = Arc::new(Counts {
            completed: AtomicUsize::new(0),
            total: AtomicUsize::new(total),
        });
        let (stop, stopped) = mpsc::channel();
        let shown = Arc::clone(&counts);
        // Without a thread there are no signs, and the command works.
        let signs = thread::Builder::new()
            .name("progress".into())
            .spawn(move || show(what, &shown, &stopped))
            .ok();
        Progress {
            counts,
            stop: Some(stop),
            signs,
        }
    }

    pub(super) fn set(&self, completed: usize, total: usize) {
        self.counts.total.store(total, Ordering::Relaxed);
        self.counts.completed.store(completed, Ordering::Relaxed);
    }

    pub(super) fn step(&self) {
        self.counts.completed.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.stop.take();
        // The bar is gone before the caller prints its result.
        if let Some(signs) = self.signs.take() {
            let _ = signs.join();
        }
    }
}

fn show(what: &'static str, counts: &Counts, stopped: &Receiver<()>) {
    let started = Instant::now();
    let is_over =
        |pause: Duration| !matches!(stopped.recv_timeout(pause), Err(RecvTimeoutError::Timeout));
    if is_over(PATIENCE) {
        return;
    }
    if io::stderr().is_terminal() {
        return draw_bar(what, started, counts, is_over);
    }
    let mut lines = Lines::new(what);
    loop {
        if let Some(line) = lines.due(started.elapsed(), counts.get()) {
            let _ = writeln!(io::stderr(), "{line}");
        }
        if is_over(REDRAW) {
            return;
        }
    }
}

fn draw_bar(
    what: &'static str,
    started: Instant,
    counts: &Counts,
    is_over: impl Fn(Duration) -> bool,
) {
    let mut bar: Option<Bar> = None;
    loop {
        // A credential plugin asks on the same terminal.
        if may_be_asking() {
            bar = None;
        } else {
            bar.get_or_insert_with(|| Bar::new(what, started))
                .draw(counts.get());
        }
        if is_over(REDRAW) {
            return;
        }
    }
}

/// A bar, which disappears when this is dropped.
struct Bar {
    bar: ProgressBar,
    /// True if the style has a total; `None` before the first drawing.
    shows_total: Option<bool>,
}

impl Bar {
    fn new(what: &'static str, started: Instant) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())
            .with_elapsed(started.elapsed());
        bar.set_prefix(what);
        Bar {
            bar,
            shows_total: None,
        }
    }

    fn draw(&mut self, (completed, total): (usize, usize)) {
        if self.shows_total != Some(total > 0) {
            self.shows_total = Some(total > 0);
            let template = if total > 0 { WITH_TOTAL } else { WITHOUT_TOTAL };
            if let Ok(style) = ProgressStyle::with_template(template) {
                self.bar.set_style(style.progress_chars("## "));
            }
        }
        if total > 0 {
            self.bar.set_length(total as u64);
            self.bar.set_position(completed as u64);
        }
        self.bar.tick();
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

impl Counts {
    fn get(&self) -> (usize, usize) {
        (
            self.completed.load(Ordering::Relaxed),
            self.total.load(Ordering::Relaxed),
        )
    }
}

/// The lines for a stderr that is no terminal.
struct Lines {
    what: &'static str,
    /// Time from the start to the next line.
    next: Duration,
}

impl Lines {
    fn new(what: &'static str) -> Self {
        Lines {
            what,
            next: PATIENCE,
        }
    }

    /// Returns the line that is due `elapsed` after the start, if there is one.
    fn due(&mut self, elapsed: Duration, (completed, total): (usize, usize)) -> Option<String> {
        if elapsed < self.next {
            return None;
        }
        self.next = elapsed + INTERVAL;
        let (what, seconds) = (self.what, elapsed.as_secs());
        let count = if total > 0 {
            format!("{completed} of {total}, ")
        } else {
            String::new()
        };
        Some(format!("{what}: {count}{seconds} s"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines of a step that takes this number of seconds.
    fn lines_of(seconds: u64, counts: (usize, usize)) -> Vec<String> {
        let mut lines = Lines::new("reading pods");
        let looks = (0..seconds * 10).map(|look| Duration::from_millis(look * 100));
        looks
            .filter_map(|elapsed| lines.due(elapsed, counts))
            .collect()
    }

    #[test]
    fn progress_of_a_short_command_is_silent() {
        assert_eq!(lines_of(1, (0, 0)), Vec::<String>::new());
    }

    #[test]
    fn progress_without_a_terminal_is_one_line_per_interval() {
        let expected = [
            "reading pods: 1 s",
            "reading pods: 11 s",
            "reading pods: 21 s",
            "reading pods: 31 s",
        ];
        assert_eq!(lines_of(35, (0, 0)), expected);
        assert_eq!(lines_of(2, (3, 40)), ["reading pods: 3 of 40, 1 s"]);
    }

    #[test]
    fn progress_ends_with_its_step() {
        let progress = Progress::new("counting", 2);
        progress.step();
        progress.set(2, 3);
        assert_eq!(progress.counts.get(), (2, 3));
        drop(progress);
    }
}
