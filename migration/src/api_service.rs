//! The APIService `v3.projectcalico.org` of Calico's aggregated API server. While the APIService
//! exists, the definitions of v3 are unreachable: the API server forwards the whole group to the
//! other server (MIG-59).

use std::time::Duration;

use libcalico::kubernetes::{Location, Preconditions, Resource};
use serde_json::Value;
use tokio::time::sleep;

use super::object::{Control, remove_annotations};
use super::requests::{Created, Problem, Requests};

const API_SERVICES: Resource = Resource {
    api_version: "apiregistration.k8s.io/v1",
    kind: "APIService",
    plural: "apiservices",
    namespaced: false,
};
const NAME: &str = "v3.projectcalico.org";
/// Label of an APIService that the API server made itself for a group of custom resources.
const AUTOMANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";
/// Annotation that an APIService has for a moment.
const TOUCHED: &str = "migration.projectcalico.org/touched";
/// Collection by which the definitions of v3 show that they are served.
const PROBE: &str = "/apis/projectcalico.org/v3/clusterinformations?limit=1";
const PROBES: u32 = 20;
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which all replicas of the API server have noticed a removed APIService.
const SETTLING: Duration = Duration::from_secs(2);
/// Fields that the API server sets.
const SET_BY_SERVER: [&str; 5] = [
    "creationTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "uid",
];

/// Returns the APIService if another server serves v3.
pub(super) async fn aggregated(requests: &Requests) -> Result<Option<Value>, Problem> {
    Ok(requests.get(&location()).await?.filter(is_aggregated))
}

fn is_aggregated(service: &Value) -> bool {
    service["spec"]["service"].is_object() && service["metadata"]["labels"][AUTOMANAGED] != "true"
}

/// Saves the APIService in the controlling object, and removes it, if another server serves v3.
///
/// A former leader may have been interrupted while it restored the APIService. Then the late
/// request must not take effect after v3 is open, so the present APIService gets another
/// resourceVersion.
///
/// # Errors
/// [`Problem::Refused`] if the API server does not serve the definitions of v3 afterwards.
pub(super) async fn take_away(requests: &Requests, control: &mut Control) -> Result<(), Problem> {
    let Some(service) = requests.get(&location()).await? else {
        return Ok(());
    };
    if !is_aggregated(&service) {
        return match control.saved_api_service() {
            Some(_) => touch(requests, service).await,
            None => Ok(()),
        };
    }
    control
        .save_api_service(requests, Some(&to_saved(&service)))
        .await?;
    let text = |field: &str| service["metadata"][field].as_str().map(str::to_owned);
    let unchanged = Preconditions {
        uid: text("uid"),
        resource_version: text("resourceVersion"),
    };
    requests.delete(&location(), &unchanged).await?;
    tracing::info!("migration: APIService {NAME} is removed");
    sleep(SETTLING).await;
    for _ in 0..PROBES {
        match requests.discover(PROBE).await {
            Ok(Some(_)) => return Ok(()),
            Ok(None) | Err(Problem::Transient(_)) => sleep(PROBE_INTERVAL).await,
            Err(problem) => return Err(problem),
        }
    }
    let text = format!("projectcalico.org/v3 is not served after the removal of APIService {NAME}");
    Err(Problem::Refused { code: 503, text })
}

/// Restores the saved APIService, if there is one, unless another server serves v3 already
/// (MIG-71).
pub(super) async fn give_back(requests: &Requests, control: &mut Control) -> Result<(), Problem> {
    let Some(mut saved) = control.saved_api_service() else {
        return Ok(());
    };
    let at = location();
    match requests.get(&at).await? {
        Some(present) if is_aggregated(&present) => touch(requests, present).await?,
        // A replacement, because the API server would create its own APIService again after a
        // deletion.
        Some(present) => {
            saved["metadata"]["resourceVersion"] = present["metadata"]["resourceVersion"].clone();
            requests.replace(&at, &saved).await?;
        }
        None => match requests.create(&at, &saved, false).await? {
            Created::New(_) => {}
            Created::Exists => return Err(Problem::Lost),
            Created::Refused(text) => return Err(Problem::Refused { code: 422, text }),
        },
    }
    tracing::info!("migration: APIService {NAME} is restored");
    control.save_api_service(requests, None).await
}

/// Changes the resourceVersion of an APIService and nothing else. Otherwise a late request of a
/// former leader could remove the APIService after the migration has ended.
async fn touch(requests: &Requests, mut service: Value) -> Result<(), Problem> {
    service["metadata"]["annotations"][TOUCHED] = "true".into();
    let mut touched = requests.replace(&location(), &service).await?;
    remove_annotations(&mut touched, &[TOUCHED]);
    requests.replace(&location(), &touched).await.map(drop)
}

/// Returns the location of the APIService.
pub(super) fn location() -> Location {
    Location::global(API_SERVICES, NAME)
}

/// Returns the part of an APIService that can be created again.
fn to_saved(service: &Value) -> Value {
    let mut saved = service.clone();
    if let Some(fields) = saved.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = saved["metadata"].as_object_mut() {
        metadata.retain(|key, _| !SET_BY_SERVER.contains(&key.as_str()));
    }
    saved
}

#[cfg(test)]
mod tests {
    use libcalico::kubernetes::ApiGroup;
    use libcalico::migration::{DATASTORE_MIGRATIONS, cluster_information};

    use super::*;
    use crate::testing::{MigratedCluster, definition};

    async fn control(cluster: &MigratedCluster) -> Control {
        Control::read(&cluster.requests(), DATASTORE_MIGRATIONS)
            .await
            .unwrap()
            .unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn removed_api_service_is_restored_over_that_of_the_api_server() {
        let cluster = MigratedCluster::new();
        let requests = cluster.requests();
        cluster.start();
        cluster.aggregate();
        let service = aggregated(&requests).await.unwrap().unwrap();
        take_away(&requests, &mut control(&cluster).await)
            .await
            .unwrap();
        assert_eq!(aggregated(&requests).await.unwrap(), None);
        assert!(
            requests.get(&location()).await.unwrap().is_some(),
            "the API server's own"
        );

        // Another process restores the APIService, and does so once.
        give_back(&requests, &mut control(&cluster).await)
            .await
            .unwrap();
        let restored = aggregated(&requests).await.unwrap().unwrap();
        assert_eq!(restored["spec"], service["spec"]);
        assert_eq!(control(&cluster).await.saved_api_service(), None);
        give_back(&requests, &mut control(&cluster).await)
            .await
            .unwrap();
        assert_eq!(aggregated(&requests).await.unwrap(), Some(restored.clone()));

        // An interrupted removal leaves the APIService, and a late request does not remove it.
        control(&cluster)
            .await
            .save_api_service(&requests, Some(&restored))
            .await
            .unwrap();
        give_back(&requests, &mut control(&cluster).await)
            .await
            .unwrap();
        let text = |field: &str| restored["metadata"][field].as_str().map(str::to_owned);
        let late = Preconditions {
            uid: text("uid"),
            resource_version: text("resourceVersion"),
        };
        assert_eq!(
            requests.delete(&location(), &late).await,
            Err(Problem::Lost)
        );
        let kept = aggregated(&requests).await.unwrap().unwrap();
        assert_eq!(to_saved(&kept), to_saved(&restored));
    }

    #[tokio::test(start_paused = true)]
    async fn api_service_without_a_successor_is_reported() {
        let cluster = MigratedCluster::new();
        let requests = cluster.requests();
        cluster.start();
        cluster.aggregate();
        cluster.server.with_store(|store| {
            store.remove(&definition(&cluster_information(ApiGroup::V3).resource));
        });
        let taken = take_away(&requests, &mut control(&cluster).await).await;
        assert!(matches!(taken, Err(Problem::Refused { .. })), "{taken:?}");
    }
}
