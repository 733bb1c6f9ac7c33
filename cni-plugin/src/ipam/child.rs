//! The process of a foreign plugin: fed, listened to, and ended when it takes too long.

use std::io::{self, Read, Write as _};
use std::process::{Child, ChildStdin, ExitStatus, Output};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Longest pause between two looks at whether a process that closed its streams has ended.
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// What one of the process's streams said, once it is closed.
type Said = Receiver<io::Result<Vec<u8>>>;

/// Feeds `stdin` to the process and waits for its end. `None` when it did not come within `limit`; the process is
/// killed then. Its three pipes are served at once, so that none that is full stops the others.
pub(super) fn finish(mut child: Child, stdin: &[u8], limit: Duration) -> io::Result<Option<Output>> {
    let outcome = converse(&mut child, stdin, Instant::now() + limit);
    if !matches!(outcome, Ok(Some(_))) {
        // What is dead or dying already needs no more; our own end hands it to init.
        let _ = child.kill();
        let _ = child.try_wait();
    }
    outcome
}

/// The threads are left behind when the time is over: a grandchild may keep the pipes open for as long as it likes.
fn converse(child: &mut Child, stdin: &[u8], until: Instant) -> io::Result<Option<Output>> {
    feed(child.stdin.take(), stdin.to_vec())?;
    let (stdout, stderr) = (listen(child.stdout.take())?, listen(child.stderr.take())?);
    let Some(stdout) = closed(&stdout, until)? else { return Ok(None) };
    let Some(stderr) = closed(&stderr, until)? else { return Ok(None) };
    Ok(ended(child, until)?.map(|status| Output { status, stdout, stderr }))
}

/// A plugin that fails early may close its end; what it printed says why, so a broken pipe is no news.
fn feed(pipe: Option<ChildStdin>, stdin: Vec<u8>) -> io::Result<()> {
    let feeder = move || pipe.map(|mut pipe| pipe.write_all(&stdin));
    thread::Builder::new().name("ipam-stdin".into()).spawn(feeder).map(drop)
}

fn listen(pipe: Option<impl Read + Send + 'static>) -> io::Result<Said> {
    let (sender, said) = channel();
    let listener = move || {
        let mut bytes = Vec::new();
        let read = pipe.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut bytes));
        // Nobody listens any more when the time is over.
        let _ = sender.send(read.map(|_| bytes));
    };
    thread::Builder::new().name("ipam-output".into()).spawn(listener)?;
    Ok(said)
}

fn closed(said: &Said, until: Instant) -> io::Result<Option<Vec<u8>>> {
    match said.recv_timeout(until.saturating_duration_since(Instant::now())) {
        Ok(bytes) => bytes.map(Some),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("the thread that reads its output ended")),
    }
}

/// Its streams are closed by its end, so that this is a matter of microseconds unless it closed them itself.
fn ended(child: &mut Child, until: Instant) -> io::Result<Option<ExitStatus>> {
    let mut pause = Duration::from_micros(50);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            return Ok(None);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
