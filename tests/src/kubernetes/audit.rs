//! The audit log: user, verb, object, order and response of the requests.

use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use time::OffsetDateTime;

mod event;

/// Longer than the server needs to log a response that the client already has.
const SETTLED: Duration = Duration::from_secs(5);

/// The requests since [`super::ApiServer::audit`].
#[derive(Debug)]
pub struct Audit {
    log: PathBuf,
    begin: u64,
}

/// A request to the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` …
    pub verb: String,
    /// API group, empty for the core.
    pub group: String,
    /// The plural, or `<plural>/<subresource>`; the path of a request without a resource.
    pub resource: String,
    /// Namespace, or empty.
    pub namespace: String,
    /// Name, or empty.
    pub name: String,
    /// User; empty if the server could not authenticate the client.
    pub user: String,
    /// HTTP status; `None` while the log has no response.
    pub code: Option<u16>,
    /// Path and query.
    pub uri: String,
    /// The reason in the response to a failed request; empty if there is none.
    pub reason: String,
    /// Time of the request.
    pub received: OffsetDateTime,
    /// Time of the response; the time of the request while there is no response.
    pub answered: OffsetDateTime,
}

/// Returns the audit policy: all requests except those of the server itself, the administrator's
/// requests for `/readyz`, and all access reviews.
pub(super) fn policy(admin: &str) -> String {
    format!(
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n\
         - {{ level: None, users: [\"system:apiserver\"] }}\n\
         - {{ level: None, users: [\"{admin}\"], nonResourceURLs: [\"/readyz\"] }}\n\
         - {{ level: None, resources: [{{ group: authorization.k8s.io }}] }}\n\
         - {{ level: Metadata }}\n"
    )
}

impl Audit {
    pub(super) fn from_now(log: PathBuf) -> Result<Audit> {
        let begin = match std::fs::metadata(&log) {
            Ok(data) => data.len(),
            Err(error) if error.kind() == ErrorKind::NotFound => 0,
            Err(error) => return Err(error.into()),
        };
        Ok(Audit { log, begin })
    }

    /// Returns the logged requests in order of arrival. Waits for the responses of running
    /// requests, at most `SETTLED`.
    pub fn requests(&self) -> Result<Vec<Request>> {
        self.requests_in(|_| true)
    }

    /// Returns the requests of one user, and waits as [`Audit::requests`] does for those.
    pub fn of(&self, user: &str) -> Result<Vec<Request>> {
        // The lines of other users, most of the log, need not be parsed.
        let name = format!("\"username\":\"{user}\"");
        let mut requests = self.requests_in(|line| line.contains(&name))?;
        requests.retain(|request| request.user == user);
        Ok(requests)
    }

    fn requests_in(&self, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<Request>> {
        let deadline = Instant::now() + SETTLED;
        loop {
            let log = self.read()?;
            let requests = event::requests(log.lines().filter(|line| is_wanted(line)))?;
            if requests.iter().all(|request| request.code.is_some()) || Instant::now() > deadline {
                return Ok(requests);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Expects that a user sent requests, and that the server refused none of them. A refused
    /// request without an effect on the result would be superfluous. Dry runs are probes of the
    /// tests and do not count.
    #[track_caller]
    pub fn assert_nothing_refused(&self, user: &str) {
        let mut requests = self.of(user).unwrap();
        requests.retain(|request| !request.uri.contains("dryRun="));
        assert!(!requests.is_empty(), "{user} sent no request");
        requests.retain(|request| matches!(request.code, Some(401 | 403)));
        assert!(requests.is_empty(), "{requests:#?}");
    }

    /// Returns the logged requests as text, see [`Request`].
    pub fn lines(&self) -> Result<Vec<String>> {
        Ok(self.requests()?.iter().map(Request::to_string).collect())
    }

    fn read(&self) -> Result<String> {
        let mut text = String::new();
        if let Ok(mut log) = File::open(&self.log) {
            log.seek(SeekFrom::Start(self.begin))?;
            log.read_to_string(&mut text)?;
        }
        // The server is still writing the part after the last newline.
        text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
        Ok(text)
    }
}

/// Returns the number of sequential round trips: the largest number of requests of which each
/// arrived after the response to the one before.
pub fn rounds(requests: &[Request]) -> usize {
    let mut requests: Vec<_> = requests.iter().collect();
    requests.sort_by_key(|request| request.answered);
    let mut last = OffsetDateTime::UNIX_EPOCH;
    let mut rounds = 0;
    for request in requests {
        if request.received >= last {
            rounds += 1;
            last = request.answered;
        }
    }
    rounds
}

/// Returns the number of groups of requests that arrived together, separated by pauses longer than
/// `apart`. Behind a proxy that holds each request for longer than that, the groups are the
/// sequential round trips.
pub fn waves(requests: &[Request], apart: Duration) -> usize {
    let mut arrivals: Vec<_> = requests.iter().map(|request| request.received).collect();
    arrivals.sort();
    usize::from(!arrivals.is_empty())
        + arrivals
            .windows(2)
            .filter(|pair| pair[1] - pair[0] > apart)
            .count()
}

/// Formats a request, such as `get pods/status golden/pod1: 200`. The text of a server error has
/// the reason.
impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        match (self.namespace.is_empty(), self.name.is_empty()) {
            (true, true) => {}
            (true, false) => write!(f, " {}", self.name)?,
            (false, _) => write!(f, " {}/{}", self.namespace, self.name)?,
        }
        match self.code {
            Some(code @ 500..) => write!(f, ": {code} {}", self.reason),
            Some(code) => write!(f, ": {code}"),
            None => f.write_str(": no answer"),
        }
    }
}

#[cfg(test)]
mod tests;
