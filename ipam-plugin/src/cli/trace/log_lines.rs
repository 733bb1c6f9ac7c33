//! The lines about one pod in the log file and its rotated files, the oldest first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use node_process::logging::compressed::LogText;
use node_process::logging::{RotatedLog, list_rotated};

/// Maximum number of times that the files are read, because the agent compresses or removes files
/// meanwhile.
const MAX_READS: u32 = 3;
/// Maximum size in bytes of a line. The rest of a longer one counts as a line of its own.
const MAX_LINE: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct PodLogLines<'a> {
    namespace: &'a str,
    pod: &'a str,
    pub(super) containers: BTreeSet<String>,
    limit: usize,
    lines: VecDeque<String>,
    omitted: usize,
}

impl<'a> PodLogLines<'a> {
    pub(super) fn new(namespace: &'a str, pod: &'a str, limit: usize) -> Self {
        PodLogLines {
            namespace,
            pod,
            containers: BTreeSet::new(),
            limit,
            lines: VecDeque::new(),
            omitted: 0,
        }
    }

    /// Reads the rotated files and then the log file. Returns the files that cannot be read.
    pub(super) fn read(&mut self, path: &Path) -> Vec<(PathBuf, io::Error)> {
        for _ in 1..MAX_READS {
            let (failed, is_complete) = self.read_all(path);
            if is_complete {
                return failed;
            }
            *self = PodLogLines::new(self.namespace, self.pod, self.limit);
        }
        self.read_all(path).0
    }

    /// Also returns false if a rotated file is gone before it is read.
    fn read_all(&mut self, path: &Path) -> (Vec<(PathBuf, io::Error)>, bool) {
        // An unreadable directory may contain a readable log file. The error of that file names a
        // missing directory.
        let rotated = list_rotated(path).unwrap_or_default();
        let (mut failed, mut is_complete) = (Vec::new(), true);
        for RotatedLog { name, path } in &rotated {
            match self.read_one(path, name.is_compressed()) {
                // The lines may be in a compressed file or under another number now.
                Err(error) if error.kind() == ErrorKind::NotFound => is_complete = false,
                Err(error) => failed.push((path.clone(), error)),
                Ok(()) => {}
            }
        }
        match self.read_one(path, false) {
            // Another process may be rotating the file.
            Err(error) if error.kind() == ErrorKind::NotFound && !rotated.is_empty() => {}
            Err(error) => failed.push((path.to_owned(), error)),
            Ok(()) => {}
        }
        (failed, is_complete)
    }

    fn read_one(&mut self, path: &Path, is_compressed: bool) -> io::Result<()> {
        let file = BufReader::new(File::open(path)?);
        if is_compressed {
            self.read_lines(BufReader::new(LogText::new(file)))
        } else {
            self.read_lines(file)
        }
    }

    fn read_lines(&mut self, mut text: impl BufRead) -> io::Result<()> {
        let mut bytes = Vec::new();
        while text.by_ref().take(MAX_LINE).read_until(b'\n', &mut bytes)? > 0 {
            let line = String::from_utf8_lossy(&bytes);
            let line = line.trim_end_matches('\n');
            if self.is_about_pod(line) {
                self.push_line(line.to_owned());
            }
            bytes.clear();
        }
        Ok(())
    }

    /// Returns true if the line is about the pod, or about one of its containers. Upstream's log
    /// lines of a DEL name only the container.
    fn is_about_pod(&mut self, line: &str) -> bool {
        let fields = fields_of(line);
        let of_pod = fields.get("Pod") == Some(&self.pod)
            && fields.get("Namespace") == Some(&self.namespace);
        let Some(&container) = fields.get("ContainerID") else {
            return of_pod;
        };
        if of_pod {
            self.containers.insert(container.to_owned());
        }
        of_pod || !fields.contains_key("Pod") && self.containers.contains(container)
    }

    fn push_line(&mut self, line: String) {
        self.lines.push_back(line);
        if self.lines.len() > self.limit {
            self.lines.pop_front();
            self.omitted += 1;
        }
    }

    /// Returns the lines, and the number of earlier lines left out.
    pub(super) fn into_lines(self) -> (Vec<String>, usize) {
        (self.lines.into(), self.omitted)
    }
}

/// Returns the quoted fields at the end of a line. The text before them may contain another pod's
/// name.
fn fields_of(line: &str) -> BTreeMap<&str, &str> {
    let mut rest = line;
    let mut fields = BTreeMap::new();
    while let Some((before, key, value)) = last_field(rest) {
        fields.entry(key).or_insert(value);
        rest = before;
    }
    fields
}

fn last_field(line: &str) -> Option<(&str, &str, &str)> {
    let (before, value) = line.strip_suffix('"')?.rsplit_once("=\"")?;
    let (before, key) = before.rsplit_once(' ')?;
    let is_plain = !value.contains('"')
        && !key.is_empty()
        && key.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_plain.then_some((before, key, value))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use node_process::logging::compressed::frame;

    use super::*;

    fn lines(files: &[(&str, &str)], limit: usize) -> (Vec<String>, usize) {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(directory.path().join(name), text).unwrap();
        }
        let mut wanted = PodLogLines::new("default", "web", limit);
        assert!(wanted.read(&directory.path().join("cni.log")).is_empty());
        wanted.into_lines()
    }

    const OF_WEB: &str =
        r#" ContainerID="c1" Namespace="default" Pod="web" WorkloadEndpoint="n-k8s-web-eth0""#;

    #[test]
    fn log_lines_of_rotated_files_precede_newer_lines() {
        let text = |word: &str| {
            format!("{word}{OF_WEB}\nother ContainerID=\"c2\" Namespace=\"default\" Pod=\"db\"\n")
        };
        let files = [
            ("cni.log", text("third")),
            ("cni.log.1", text("second")),
            ("cni.log.2", text("first")),
        ];
        let files: Vec<_> = files
            .iter()
            .map(|(name, text)| (*name, text.as_str()))
            .collect();
        let (found, omitted) = lines(&files, 9);
        assert_eq!(
            found,
            ["first", "second", "third"].map(|word| format!("{word}{OF_WEB}"))
        );
        assert_eq!(omitted, 0);
        assert_eq!(lines(&files[1..], 1), (vec![format!("second{OF_WEB}")], 1));
    }

    #[test]
    fn trace_reads_compressed_logs() {
        let directory = tempfile::tempdir().unwrap();
        let text = |word: &str| format!("{word}{OF_WEB}\n");
        let two_frames = [
            frame(text("second").as_bytes()),
            frame(text("third").as_bytes()),
        ]
        .concat();
        for (name, content) in [
            // The first file is of upstream's plugin.
            (
                "cni-2026-11-25T01-02-03.456-size.log",
                text("first").into_bytes(),
            ),
            ("cni-2026-11-26T01-02-03.456-size.log.zst", two_frames),
            (
                "cni-2026-11-27T01-02-03.456-size.log.zst",
                frame(text("fourth").as_bytes()),
            ),
            // The agent has compressed the files between.
            ("cni.log.7", text("fifth").into_bytes()),
            ("cni.log", text("sixth").into_bytes()),
        ] {
            fs::write(directory.path().join(name), content).unwrap();
        }
        let mut wanted = PodLogLines::new("default", "web", 9);
        assert!(wanted.read(&directory.path().join("cni.log")).is_empty());
        let words = ["first", "second", "third", "fourth", "fifth", "sixth"];
        assert_eq!(
            wanted.into_lines().0,
            words.map(|word| format!("{word}{OF_WEB}"))
        );
    }

    /// The read of a FIFO waits for the interference.
    #[test]
    fn log_that_is_compressed_while_others_are_read_is_not_missing() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let text = |word: &str| format!("{word}{OF_WEB}\n");
        fs::write(path("cni.log.1"), text("second")).unwrap();
        fs::write(path("cni.log"), text("third")).unwrap();
        assert!(
            Command::new("mkfifo")
                .arg(path("cni.log.2"))
                .status()
                .unwrap()
                .success()
        );
        let mut wanted = PodLogLines::new("default", "web", 9);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut fifo = fs::OpenOptions::new()
                    .write(true)
                    .open(path("cni.log.2"))
                    .unwrap();
                fs::remove_file(path("cni.log.2")).unwrap();
                let compressed = path("cni-2026-11-27T01-02-03.456-size.log.zst");
                fs::write(compressed, frame(text("second").as_bytes())).unwrap();
                fs::remove_file(path("cni.log.1")).unwrap();
                fifo.write_all(text("first").as_bytes()).unwrap();
            });
            assert!(wanted.read(&path("cni.log")).is_empty());
        });
        assert_eq!(
            wanted.into_lines().0,
            ["second", "third"].map(|word| format!("{word}{OF_WEB}"))
        );
    }

    #[test]
    fn rotated_log_that_cannot_be_found_again_leaves_the_other_lines_once() {
        let directory = tempfile::tempdir().unwrap();
        symlink("nowhere", directory.path().join("cni.log.1")).unwrap();
        fs::write(directory.path().join("cni.log"), OF_WEB).unwrap();
        let mut wanted = PodLogLines::new("default", "web", 9);
        assert!(wanted.read(&directory.path().join("cni.log")).is_empty());
        assert_eq!(wanted.into_lines(), (vec![OF_WEB.to_owned()], 0));
    }

    #[test]
    fn damaged_compressed_log_is_reported_after_its_readable_lines() {
        let directory = tempfile::tempdir().unwrap();
        let damaged = directory
            .path()
            .join("cni-2026-11-27T01-02-03.456-size.log.zst");
        let line = format!("first{OF_WEB}\n");
        fs::write(
            &damaged,
            [frame(line.as_bytes()), b"no frame".to_vec()].concat(),
        )
        .unwrap();
        fs::write(
            directory.path().join("cni.log"),
            format!("second{OF_WEB}\n"),
        )
        .unwrap();
        let mut wanted = PodLogLines::new("default", "web", 9);
        let failed: Vec<_> = wanted
            .read(&directory.path().join("cni.log"))
            .into_iter()
            .map(|(file, _)| file)
            .collect();
        assert_eq!(failed, [damaged]);
        assert_eq!(
            wanted.into_lines().0,
            ["first", "second"].map(|word| format!("{word}{OF_WEB}"))
        );
    }

    #[test]
    fn only_log_lines_of_the_container_match_despite_forged_fields() {
        let log = [
            format!("added{OF_WEB}"),
            r#"upstream's DEL ContainerID="c1""#.into(),
            r#"of another ContainerID="c2""#.into(),
            r#"x Pod="web" Namespace="default" ContainerID="c1" error=no ContainerID="c3" Namespace="a" Pod="b""#
                .into(),
            r#"quoted error="a\" Namespace=\"default\" Pod=\"web" ContainerID="c4" Namespace="a" Pod="b""#.into(),
            r#"sandbox of another name ContainerID="c1" Namespace="default" Pod="web-2""#.into(),
            "no fields".into(),
        ];
        let (found, _) = lines(&[("cni.log", &log.join("\n"))], 9);
        assert_eq!(found, log[..2], "{found:?}");
    }

    #[test]
    fn invalid_utf8_in_the_log_is_replaced_and_a_missing_file_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cni.log");
        let mut wanted = PodLogLines::new("default", "web", 9);
        assert_eq!(wanted.read(&path)[0].1.kind(), ErrorKind::NotFound);
        fs::write(&path, [b"\xff\x00", OF_WEB.as_bytes()].concat()).unwrap();
        assert!(wanted.read(&path).is_empty());
        assert_eq!(wanted.into_lines().0, [format!("\u{fffd}\0{OF_WEB}")]);
    }

    #[test]
    fn unreadable_log_file_is_reported_and_other_files_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cni.log");
        fs::write(&path, OF_WEB).unwrap();
        // Any user can open a directory, but not read it as a file.
        fs::create_dir(directory.path().join("cni.log.1")).unwrap();
        let mut wanted = PodLogLines::new("default", "web", 9);
        let failed: Vec<_> = wanted
            .read(&path)
            .into_iter()
            .map(|(file, _)| file)
            .collect();
        assert_eq!(failed, [directory.path().join("cni.log.1")]);
        assert_eq!(wanted.into_lines().0, [OF_WEB]);
    }
}
