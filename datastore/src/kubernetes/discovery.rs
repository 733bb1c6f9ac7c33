//! Which API group holds Calico's custom resources (DS-22): configured, remembered, or asked for with one request.
//!
//! Upstream asks in each process, and takes `crd.projectcalico.org/v1` when the question fails: two plugins of one node
//! could then write to different places. Here a question that fails is an error.
//!
//! What is remembered must not outlive the rule, which is that v3 is it only where v1 is not: nodes that remember and
//! nodes that ask would give out each other's addresses. v1 keeps the rule by itself: as long as it answers it is the
//! right one, whatever else came, and when it does not the answers say so. v3 does not: it answers also after v1 came
//! beside it, and on another cluster behind the same URL, where Calico's API server serves it from v1. So a process
//! that remembers v3 asks for v1, beside its first reads: a request more, and no round trip.
//!
//! A third rule is for the time in which upstream's migration has opened v3 and v1 is still there, see [`migration`].

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use libcalico::kubernetes::{ApiGroup, GROUPS, Resource, Served, has_kind, kinds_path};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::client::ApiClient;
use super::failure::Failure;
use super::migration;
use super::request::ApiRequest;

const V1: &str = "crd.projectcalico.org";
const V3: &str = "projectcalico.org";

/// What an earlier process found out.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Remembered {
    /// Its URL.
    server: String,
    group: String,
}

/// A file that remembers the group, for one API server; or none, where one process lasts.
#[derive(Debug)]
pub(super) struct Memory {
    file: Option<PathBuf>,
    /// What the file says was wrong, whether or not the file could be removed.
    forgotten: AtomicBool,
}

impl Memory {
    pub(super) fn new(file: Option<PathBuf>) -> Self {
        Memory { file, forgotten: AtomicBool::new(false) }
    }

    /// What is remembered of this server.
    pub(super) fn recall(&self, server: &str) -> Option<ApiGroup> {
        if self.forgotten.load(Ordering::Relaxed) {
            return None;
        }
        let remembered: Remembered = serde_json::from_slice(&fs::read(self.file.as_ref()?).ok()?).ok()?;
        (remembered.server == server).then(|| of_name(&remembered.group)).flatten()
    }

    /// Remembers. A file that cannot be written costs the next process a request and nothing else.
    pub(super) fn keep(&self, server: &str, group: ApiGroup) {
        let Some(file) = &self.file else { return };
        let remembered = Remembered { server: server.into(), group: group.api_version().into() };
        match write(file, &remembered) {
            Ok(()) => self.forgotten.store(false, Ordering::Relaxed),
            Err(error) => tracing::debug!(file = %file.display(), %error, "cannot remember the API group"),
        }
    }

    /// What is remembered is not so.
    pub(super) fn forget(&self) {
        self.forgotten.store(true, Ordering::Relaxed);
        let _ = self.file.as_ref().map(fs::remove_file);
    }
}

/// In place, and not made durable: whoever finds half of it, or none, after a power failure or beside another who
/// writes, finds no JSON, and asks the API server as if there were no file.
fn write(file: &Path, remembered: &Remembered) -> std::io::Result<()> {
    let directory = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(directory)?;
    fs::write(file, serde_json::to_vec(remembered)?)
}

/// Asks the API server which group Calico's objects are in.
pub(super) async fn ask(client: &ApiClient) -> Result<ApiGroup, Failure> {
    let groups = client.send(&ApiRequest::get("/apis")).await?;
    match choose(&groups)? {
        ApiGroup::CrdV1 if has(&groups, V3) && migration::has_moved(client).await? => Ok(ApiGroup::V3),
        group => Ok(group),
    }
}

/// Returns whether v3 is the right group, if the API server has it.
pub(super) async fn is_v3(client: &ApiClient) -> Result<bool, Failure> {
    match client.send(&ApiRequest::get(format!("/apis/{V1}"))).await {
        Ok(_) => migration::has_moved(client).await,
        Err(Failure::Refused(refusal)) if refusal.status.code == 404 => Ok(true),
        Err(failure) => Err(failure),
    }
}

/// Returns whether the API server lacks a kind, by the lists of its groups and of their kinds.
pub(super) async fn lacks_kind(client: &ApiClient, resource: Resource) -> Result<bool, Failure> {
    // Each API server has those of the core.
    let Some((group, _)) = resource.api_version.split_once('/') else { return Ok(false) };
    let list = async |path: String| Ok::<_, Failure>(client.send(&ApiRequest::get(path)).await?.to_string());
    let groups = Served::read(&list(GROUPS.into()).await?).map_err(Failure::Unreadable)?;
    if !groups.versions(group).any(|version| version == resource.api_version) {
        return Ok(true);
    }
    let kinds = list(kinds_path(resource.api_version)).await?;
    let has_kind = has_kind(resource.api_version, &kinds, &[resource.plural]).map_err(Failure::Unreadable)?;
    Ok(!has_kind)
}

/// Where neither group is there, upstream would go on with v1.
fn choose(groups: &Value) -> Result<ApiGroup, Failure> {
    if has(groups, V1) || has(groups, V3) {
        return Ok(ApiGroup::among(names(groups)));
    }
    Err(Failure::NotInstalled(
        "the API server has neither crd.projectcalico.org nor projectcalico.org; install Calico's custom resource \
         definitions (deploy/crds)"
            .into(),
    ))
}

fn names(groups: &Value) -> impl Iterator<Item = &str> {
    groups["groups"].as_array().into_iter().flatten().filter_map(|group| group["name"].as_str())
}

fn has(groups: &Value, group: &str) -> bool {
    names(groups).any(|name| name == group)
}

fn of_name(name: &str) -> Option<ApiGroup> {
    [ApiGroup::CrdV1, ApiGroup::V3].into_iter().find(|group| group.api_version() == name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(names: &[&str]) -> Option<ApiGroup> {
        let groups: Vec<_> = names.iter().map(|name| json!({ "name": name })).collect();
        choose(&json!({ "groups": groups })).ok()
    }

    #[test]
    fn v3_only_without_v1() {
        assert_eq!(of(&["apps", "projectcalico.org"]), Some(ApiGroup::V3));
        assert_eq!(of(&["crd.projectcalico.org"]), Some(ApiGroup::CrdV1));
        assert_eq!(of(&["projectcalico.org", "crd.projectcalico.org"]), Some(ApiGroup::CrdV1));
        assert_eq!(of(&["apps"]), None);
    }

    #[test]
    fn a_group_is_remembered_for_one_server_until_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let memory = Memory::new(Some(dir.path().join("state/api-group")));
        assert_eq!(memory.recall("https://a"), None);
        memory.forget();
        memory.keep("https://a", ApiGroup::V3);
        assert_eq!(memory.recall("https://a"), Some(ApiGroup::V3));
        assert_eq!(memory.recall("https://b"), None);
        assert_eq!(fs::read_dir(dir.path().join("state")).unwrap().count(), 1);
        let whole = fs::read(dir.path().join("state/api-group")).unwrap();
        for cut in 0..whole.len() {
            fs::write(dir.path().join("state/api-group"), &whole[..cut]).unwrap();
            assert_eq!(memory.recall("https://a"), None);
        }
        // Two who wrote at once.
        fs::write(dir.path().join("state/api-group"), [&whole[..], b"}"].concat()).unwrap();
        assert_eq!(memory.recall("https://a"), None);
        memory.keep("https://a", ApiGroup::CrdV1);
        memory.forget();
        assert_eq!(memory.recall("https://a"), None);
        // A file that cannot be removed.
        fs::write(dir.path().join("state/api-group"), &whole).unwrap();
        assert_eq!(memory.recall("https://a"), None);
    }
}
