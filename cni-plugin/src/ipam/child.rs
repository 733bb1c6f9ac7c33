//! Runs the process of a delegated IPAM plugin: writes its stdin, reads its output, and kills it at the deadline.

use std::io::{self, Read, Write as _};
use std::process::{Child, ChildStdin, ExitStatus, Output};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum interval between two checks whether a process that closed its streams has exited.
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

/// Receives the content of one stream of the process when the stream is closed.
type Said = Receiver<io::Result<Vec<u8>>>;

/// Writes `stdin` to the process and waits until it exits. Returns `None` if it does not exit within `limit`, and kills
/// it. All three pipes are served at the same time: a full pipe would block the process, and with it the other pipes.
pub(super) fn finish(mut child: Child, stdin: &[u8], limit: Duration) -> io::Result<Option<Output>> {
    let outcome = converse(&mut child, stdin, Instant::now() + limit);
    if !matches!(outcome, Ok(Some(_))) {
        // The process may be dead already. No further wait is necessary: when this process exits, init reaps the child.
        let _ = child.kill();
        let _ = child.try_wait();
    }
    outcome
}

/// Writes stdin and collects the output and the exit status until the time limit. The threads continue after the limit:
/// a grandchild may keep the pipes open indefinitely.
fn converse(child: &mut Child, stdin: &[u8], until: Instant) -> io::Result<Option<Output>> {
    feed(child.stdin.take(), stdin.to_vec())?;
    let (stdout, stderr) = (listen(child.stdout.take())?, listen(child.stderr.take())?);
    let Some(stdout) = closed(&stdout, until)? else { return Ok(None) };
    let Some(stderr) = closed(&stderr, until)? else { return Ok(None) };
    Ok(ended(child, until)?.map(|status| Output { status, stdout, stderr }))
}

/// Writes stdin on a separate thread. Ignores a broken pipe: a plugin that fails early may close its stdin, and its
/// output states the reason.
fn feed(pipe: Option<ChildStdin>, stdin: Vec<u8>) -> io::Result<()> {
    let feeder = move || pipe.map(|mut pipe| pipe.write_all(&stdin));
    thread::Builder::new().name("ipam-stdin".into()).spawn(feeder).map(drop)
}

fn listen(pipe: Option<impl Read + Send + 'static>) -> io::Result<Said> {
    let (sender, said) = channel();
    let listener = move || {
        let mut bytes = Vec::new();
        let read = pipe.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut bytes));
        // The receiver no longer exists if the time limit has passed.
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

/// Waits for the process to exit. The exit usually closes the streams, so this takes microseconds unless the process
/// closed them itself.
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
