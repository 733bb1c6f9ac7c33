//! Determines the API group of Calico's custom resources (DS-22).
//!
//! Upstream discovers the group in each process, and uses `crd.projectcalico.org/v1` if the
//! discovery fails. Two plugins of one node could then write to different groups. Here a failed
//! discovery is an error.
//!
//! A cached group must not violate the rule that v3 is used only if v1 does not exist. Otherwise
//! nodes with a cached group and nodes that discover the group would assign the same addresses. A
//! cached v1 needs no check, because responses show if v1 is missing. A cached v3 needs a check:
//! the API server still serves v3 after v1 was added. Thus a process with a cached v3 looks up v1
//! in parallel with its first reads.
//!
//! The rule for a discovered group has one exception: v3 is used if upstream's migration has opened
//! v3 while v1 still exists, see [`migration`].

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use libcalico::kubernetes::{
    API_GROUPS_PATH, ApiGroup, DiscoveryError, Resource, ServedGroups, has_kind, kinds_path,
};
use os::atomic_file::regular_file;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::client::ApiClient;
use super::error::RequestError;
use super::migration;
use super::request::ApiRequest;

const V1_GROUP: &str = "crd.projectcalico.org";
const V3_GROUP: &str = "projectcalico.org";

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct CachedGroup {
    server: String,
    group: String,
}

/// The file that caches the group of one API server; `None` caches nothing.
#[derive(Debug)]
pub(super) struct GroupCache {
    file: Option<PathBuf>,
    /// True if the cached group proved wrong, even if the file cannot be removed.
    invalid: AtomicBool,
}

impl GroupCache {
    pub(super) fn new(file: Option<PathBuf>) -> Self {
        GroupCache {
            file,
            invalid: AtomicBool::new(false),
        }
    }

    /// Returns `None` if no group is cached for this server, or if it proved wrong.
    pub(super) fn load(&self, server: &str) -> Option<ApiGroup> {
        if self.invalid.load(Ordering::Relaxed) {
            return None;
        }
        let cached: CachedGroup =
            serde_json::from_slice(&regular_file::contents(self.file.as_ref()?).ok()?).ok()?;
        let mut groups = [ApiGroup::CrdV1, ApiGroup::V3]
            .into_iter()
            .filter(|_| cached.server == server);
        groups.find(|group| group.api_version() == cached.group)
    }

    /// Caches the group. A file that cannot be written is not an error.
    pub(super) fn store(&self, server: &str, group: ApiGroup) {
        let Some(file) = &self.file else { return };
        let cached = CachedGroup {
            server: server.into(),
            group: group.api_version().into(),
        };
        match write_cache(file, &cached) {
            Ok(()) => self.invalid.store(false, Ordering::Relaxed),
            Err(error) => {
                tracing::debug!(
                    file = %file.display(), %error,
                    "cannot cache the API group"
                );
            }
        }
    }

    pub(super) fn invalidate(&self) {
        self.invalid.store(true, Ordering::Relaxed);
        let _ = self.file.as_ref().map(fs::remove_file);
    }
}

/// Writes the file without syncing it. A reader of incomplete JSON asks the API server.
fn write_cache(file: &Path, cached: &CachedGroup) -> std::io::Result<()> {
    let directory = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(directory)?;
    fs::write(file, serde_json::to_vec(cached)?)
}

/// Asks the API server for the group of Calico's objects. Fails if the API server has neither
/// group.
pub(super) async fn discover_group(client: &ApiClient) -> Result<ApiGroup, RequestError> {
    let groups = client.send(&ApiRequest::get("/apis")).await?;
    Ok(match choose_group(&groups)? {
        ApiGroup::CrdV1
            if has_group(&groups, V3_GROUP) && migration::has_migrated_to_v3(client).await? =>
        {
            ApiGroup::V3
        }
        group => group,
    })
}

/// Returns true if v3 is the right group for this process, under the assumption that the API server
/// serves v3.
pub(super) async fn is_v3(client: &ApiClient) -> Result<bool, RequestError> {
    match client
        .send(&ApiRequest::get(format!("/apis/{V1_GROUP}")))
        .await
    {
        Ok(_) => migration::has_migrated_to_v3(client).await,
        Err(RequestError::Refused(refusal)) if refusal.status.code == 404 => Ok(true),
        Err(failure) => Err(failure),
    }
}

/// Returns true if the API server's discovery does not list the kind.
pub(super) async fn lacks_kind(
    client: &ApiClient,
    resource: Resource,
) -> Result<bool, RequestError> {
    Ok(
        !unlisted_plurals(client, resource.api_version, &[resource.plural])
            .await?
            .is_empty(),
    )
}

/// Returns the error of a write of a kind that the API server does not serve.
pub(super) fn not_installed(
    Resource {
        kind, api_version, ..
    }: Resource,
) -> RequestError {
    RequestError::NotInstalled(format!(
        "the API server does not serve the kind {kind} of {api_version}; install Calico's custom \
         resource definitions (deploy/crds)"
    ))
}

/// Returns those of `plurals` that the API server's discovery does not list for a group and its
/// version.
pub(super) async fn unlisted_plurals<'p>(
    client: &ApiClient,
    group_version: &str,
    plurals: &[&'p str],
) -> Result<Vec<&'p str>, RequestError> {
    // Every API server serves the core group.
    let Some((group, _)) = group_version.split_once('/') else {
        return Ok(Vec::new());
    };
    let unreadable = |error: DiscoveryError| RequestError::Unreadable(error.to_string());
    let groups =
        ServedGroups::read(&fetch_text(client, API_GROUPS_PATH).await?).map_err(unreadable)?;
    if !groups
        .versions(group)
        .any(|version| version == group_version)
    {
        return Ok(plurals.to_vec());
    }
    let kinds = fetch_text(client, kinds_path(group_version)).await?;
    let mut unlisted = Vec::new();
    for &plural in plurals {
        if !has_kind(group_version, &kinds, &[plural]).map_err(unreadable)? {
            unlisted.push(plural);
        }
    }
    Ok(unlisted)
}

async fn fetch_text(client: &ApiClient, path: impl Into<String>) -> Result<String, RequestError> {
    Ok(client.send(&ApiRequest::get(path)).await?.to_string())
}

/// Chooses the group by upstream's rule, but fails if neither group exists, where upstream would
/// use v1.
fn choose_group(groups: &Value) -> Result<ApiGroup, RequestError> {
    if has_group(groups, V1_GROUP) || has_group(groups, V3_GROUP) {
        return Ok(ApiGroup::from_served(group_names(groups)));
    }
    Err(RequestError::NotInstalled(
        "the API server has neither crd.projectcalico.org nor projectcalico.org; install Calico's \
         custom resource definitions (deploy/crds)"
            .into(),
    ))
}

fn group_names(groups: &Value) -> impl Iterator<Item = &str> {
    groups["groups"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|group| group["name"].as_str())
}

fn has_group(groups: &Value, group: &str) -> bool {
    group_names(groups).any(|name| name == group)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chosen_group(names: &[&str]) -> Option<ApiGroup> {
        let groups: Vec<_> = names.iter().map(|name| json!({ "name": name })).collect();
        choose_group(&json!({ "groups": groups })).ok()
    }

    #[test]
    fn api_group_is_v3_only_without_v1() {
        assert_eq!(
            chosen_group(&["apps", "projectcalico.org"]),
            Some(ApiGroup::V3)
        );
        assert_eq!(
            chosen_group(&["crd.projectcalico.org"]),
            Some(ApiGroup::CrdV1)
        );
        assert_eq!(
            chosen_group(&["projectcalico.org", "crd.projectcalico.org"]),
            Some(ApiGroup::CrdV1)
        );
        assert_eq!(chosen_group(&["apps"]), None);
    }

    #[test]
    fn api_group_is_cached_for_a_single_server_until_invalidated() {
        let dir = tempfile::tempdir().unwrap();
        let cache = GroupCache::new(Some(dir.path().join("state/api-group")));
        assert_eq!(cache.load("https://a"), None);
        cache.invalidate();
        cache.store("https://a", ApiGroup::V3);
        assert_eq!(cache.load("https://a"), Some(ApiGroup::V3));
        assert_eq!(cache.load("https://b"), None);
        assert_eq!(fs::read_dir(dir.path().join("state")).unwrap().count(), 1);
        let whole = fs::read(dir.path().join("state/api-group")).unwrap();
        for cut in 0..whole.len() {
            fs::write(dir.path().join("state/api-group"), &whole[..cut]).unwrap();
            assert_eq!(cache.load("https://a"), None);
        }
        // Two concurrent writers may leave such a file.
        fs::write(
            dir.path().join("state/api-group"),
            [&whole[..], b"}"].concat(),
        )
        .unwrap();
        assert_eq!(cache.load("https://a"), None);
        cache.store("https://a", ApiGroup::CrdV1);
        cache.invalidate();
        assert_eq!(cache.load("https://a"), None);
        // A file that `invalidate` could not remove.
        fs::write(dir.path().join("state/api-group"), &whole).unwrap();
        assert_eq!(cache.load("https://a"), None);
    }

    #[test]
    fn api_group_file_of_0_1_0_is_read_and_written_unchanged() {
        const SERVER: &str = "https://10.96.0.1:443";
        for (stored, group) in [
            (
                include_str!("../../../tests/formats/0.1.0/api-group/v1.json"),
                ApiGroup::CrdV1,
            ),
            (
                include_str!("../../../tests/formats/0.1.0/api-group/v3.json"),
                ApiGroup::V3,
            ),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("api-group.json");
            fs::write(&file, stored).unwrap();
            let cache = GroupCache::new(Some(file.clone()));
            assert_eq!(cache.load(SERVER), Some(group));
            fs::remove_file(&file).unwrap();
            cache.store(SERVER, group);
            assert_eq!(fs::read_to_string(&file).unwrap(), stored);
        }
    }
}
