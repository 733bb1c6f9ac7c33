//! The lines about one pod in the log file and its rotated files, the oldest first.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};

use node_process::logging::rotated_path;

/// Maximum number of rotated files that a configuration can set.
const MAX_ROTATED_FILES: usize = 999;

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
        PodLogLines { namespace, pod, containers: BTreeSet::new(), limit, lines: VecDeque::new(), omitted: 0 }
    }

    /// Reads the rotated files and then the log file. Returns the files that cannot be read.
    pub(super) fn read(&mut self, path: &Path) -> Vec<(PathBuf, io::Error)> {
        let rotated = (1..=MAX_ROTATED_FILES).map(|number| rotated_path(path, number));
        let rotated: Vec<PathBuf> = rotated.take_while(|rotated| rotated.exists()).collect();
        let mut failed = Vec::new();
        for file in rotated.iter().rev().map(PathBuf::as_path).chain([path]) {
            match self.read_one(file) {
                // Another process may be rotating the file.
                Err(error) if error.kind() == ErrorKind::NotFound && !rotated.is_empty() => {}
                Err(error) => failed.push((file.to_owned(), error)),
                Ok(()) => {}
            }
        }
        failed
    }

    fn read_one(&mut self, path: &Path) -> io::Result<()> {
        let mut file = BufReader::new(File::open(path)?);
        let mut bytes = Vec::new();
        while file.read_until(b'\n', &mut bytes)? > 0 {
            let line = String::from_utf8_lossy(&bytes);
            let line = line.trim_end_matches('\n');
            if self.is_about_pod(line) {
                self.push_line(line.to_owned());
            }
            bytes.clear();
        }
        Ok(())
    }

    /// Returns true if the line is about the pod, or about one of its containers. Upstream's log lines of a DEL name
    /// only the container.
    fn is_about_pod(&mut self, line: &str) -> bool {
        let fields = fields_of(line);
        let of_pod = fields.get("Pod") == Some(&self.pod) && fields.get("Namespace") == Some(&self.namespace);
        let Some(&container) = fields.get("ContainerID") else { return of_pod };
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

/// Returns the quoted fields at the end of a line. The text before them may contain another pod's name.
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
    let is_plain = !value.contains('"') && !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_plain.then_some((before, key, value))
}

#[cfg(test)]
mod tests {
    use std::fs;

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

    const OF_WEB: &str = r#" ContainerID="c1" Namespace="default" Pod="web" WorkloadEndpoint="n-k8s-web-eth0""#;

    #[test]
    fn log_lines_of_rotated_files_precede_newer_lines() {
        let text = |word: &str| format!("{word}{OF_WEB}\nother ContainerID=\"c2\" Namespace=\"default\" Pod=\"db\"\n");
        let files = [("cni.log", text("third")), ("cni.log.1", text("second")), ("cni.log.2", text("first"))];
        let files: Vec<_> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
        let (found, omitted) = lines(&files, 9);
        assert_eq!(found, ["first", "second", "third"].map(|word| format!("{word}{OF_WEB}")));
        assert_eq!(omitted, 0);
        assert_eq!(lines(&files[1..], 1), (vec![format!("second{OF_WEB}")], 1));
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
        let failed: Vec<_> = wanted.read(&path).into_iter().map(|(file, _)| file).collect();
        assert_eq!(failed, [directory.path().join("cni.log.1")]);
        assert_eq!(wanted.into_lines().0, [OF_WEB]);
    }
}
