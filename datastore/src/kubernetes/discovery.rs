//! Which API group holds Calico's custom resources (DS-22): configured, remembered, or asked for with one request.
//!
//! Upstream asks in each process, and takes `crd.projectcalico.org/v1` when the question fails: two plugins of one node
//! could then write to different places. Here a question that fails is an error.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use libcalico::kubernetes::ApiGroup;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::client::{ApiClient, ApiRequest};
use super::failure::Failure;

/// What an earlier process found out.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Remembered {
    server: String,
    group: String,
}

/// A file that remembers the group, for one API server; or none, where one process lasts.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    file: Option<PathBuf>,
}

impl Memory {
    pub(super) fn new(file: Option<PathBuf>) -> Self {
        Memory { file }
    }

    /// What is remembered of this server.
    pub(super) fn recall(&self, server: &str) -> Option<ApiGroup> {
        let remembered: Remembered = serde_json::from_slice(&fs::read(self.file.as_ref()?).ok()?).ok()?;
        (remembered.server == server).then(|| of_name(&remembered.group)).flatten()
    }

    /// Remembers. A file that cannot be written costs the next process a request and nothing else.
    pub(super) fn keep(&self, server: &str, group: ApiGroup) {
        let Some(file) = &self.file else { return };
        let remembered = Remembered { server: server.into(), group: group.api_version().into() };
        if let Err(error) = write(file, &remembered) {
            tracing::debug!(file = %file.display(), %error, "cannot remember the API group");
        }
    }

    /// The API server does not have what is remembered.
    pub(super) fn forget(&self) {
        let _ = self.file.as_ref().map(fs::remove_file);
    }
}

/// Under another name first: another process may be reading.
fn write(file: &Path, remembered: &Remembered) -> std::io::Result<()> {
    let directory = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(directory)?;
    let draft = file.with_extension(format!("{}.tmp", std::process::id()));
    let written = fs::File::create(&draft)
        .and_then(|mut draft| draft.write_all(&serde_json::to_vec(remembered)?))
        .and_then(|()| fs::rename(&draft, file));
    written.inspect_err(|_| {
        let _ = fs::remove_file(&draft);
    })
}

/// Asks the API server which groups it has.
pub(super) async fn ask(client: &ApiClient) -> Result<ApiGroup, Failure> {
    choose(&client.send(&ApiRequest::get("/apis")).await?)
}

/// Where neither group is there, upstream would go on with v1.
fn choose(groups: &Value) -> Result<ApiGroup, Failure> {
    let names: Vec<&str> =
        groups["groups"].as_array().into_iter().flatten().filter_map(|group| group["name"].as_str()).collect();
    if names.contains(&"crd.projectcalico.org") || names.contains(&"projectcalico.org") {
        return Ok(ApiGroup::among(names));
    }
    Err(Failure::Unreadable(
        "the API server has neither crd.projectcalico.org nor projectcalico.org; install Calico's custom resource \
         definitions (deploy/crds)"
            .into(),
    ))
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
        fs::write(dir.path().join("state/api-group"), "{").unwrap();
        assert_eq!(memory.recall("https://a"), None);
        memory.keep("https://a", ApiGroup::CrdV1);
        memory.forget();
        assert_eq!(memory.recall("https://a"), None);
    }
}
