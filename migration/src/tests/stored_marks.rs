//! The marks that version 0.1.0 writes. Another version may continue a migration, and the plugins
//! of all versions read the marks of both groups.

use std::fs;
use std::path::Path;

use libcalico::migration::{DATASTORE_MIGRATIONS, DRY_RUN, FOLLOW, MIGRATION_TYPE, PLUGINS, Phase};

use super::*;
use crate::late_writes::{self, LateWrites};
use crate::lock;
use crate::marks::{CREATED_BY, V1Lock, V3Access, has_mark};
use crate::object::Control;
use crate::v3_access;

const MIGRATION: &str = "0a1b2c3d-0000-4000-8000-000000000001";

fn stored(name: &str) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/formats/0.1.0/migration");
    serde_json::from_slice(&fs::read(folder.join(name)).unwrap()).unwrap()
}

/// Returns an object without the fields that the API server sets.
fn written(mut object: Value) -> Value {
    let metadata = object["metadata"].as_object_mut().unwrap();
    for field in ["uid", "resourceVersion", "creationTimestamp", "generation"] {
        metadata.remove(field);
    }
    // The value is a resourceVersion, unless it is empty.
    if let Some(Value::String(attempt)) =
        object.pointer_mut("/metadata/annotations/migration.projectcalico.org~1attempt")
        && attempt.parse::<u64>().is_ok()
    {
        *attempt = "4711".to_owned();
    }
    object
}

#[test]
fn marks_of_0_1_0_are_read() {
    let v1 = |name: &str| V1Lock::of(Some(&stored(name)));
    assert_eq!(v1("v1-locked.json"), V1Lock::ByMigration);
    assert_eq!(v1("v1-confirmed.json"), V1Lock::Confirmed);
    for origin in ["created", "existing"] {
        let closed = stored(&format!("v3-{origin}-closed.json"));
        let open = stored(&format!("v3-{origin}-open.json"));
        assert_eq!(V3Access::of(Some(&closed)), V3Access::Closed);
        assert_eq!(V3Access::of(Some(&open)), V3Access::Open);
        assert_eq!(has_mark(&closed, CREATED_BY), origin == "created");
    }
}

#[tokio::test(start_paused = true)]
async fn marks_are_written_as_by_0_1_0() {
    for origin in ["created", "existing"] {
        let cluster = MigratedCluster::new();
        let requests = cluster.requests();
        let v3 = cluster_information(ApiGroup::V3);
        if origin == "existing" {
            let spec = json!({ "clusterGUID": "g", "datastoreReady": true });
            cluster
                .server
                .with_store(|store| store.put(&v3, json!({ "spec": spec })));
        }
        let expect = |group: ApiGroup, name: &str| {
            let information = cluster.server.object(&cluster_information(group)).unwrap();
            assert_eq!(written(information), stored(name), "{name}");
        };
        assert!(lock::lock(&requests, MIGRATION).await.unwrap());
        expect(ApiGroup::CrdV1, "v1-locked.json");
        let mut closed = v3_access::close(&requests, MIGRATION).await.unwrap();
        expect(ApiGroup::V3, &format!("v3-{origin}-closed.json"));
        assert!(lock::confirm(&requests).await.unwrap());
        expect(ApiGroup::CrdV1, "v1-confirmed.json");
        late_writes::record(&mut closed, "5");
        v3_access::open(&requests, closed, MIGRATION).await.unwrap();
        expect(ApiGroup::V3, &format!("v3-{origin}-open.json"));
        // The objects of address management in v1 have later resourceVersions.
        assert!(LateWrites::default().look(&requests).await.unwrap() > 0);
    }
}

#[tokio::test(start_paused = true)]
async fn controlling_object_of_0_1_0_is_read_and_written_unchanged() {
    let stored = stored("datastore-migration.json");
    let read = Control::of(object(), stored.clone());
    let service = read.saved_api_service().unwrap();
    assert_eq!(service["spec"]["service"]["name"], "calico-api");
    assert!(read.has_finalizer());
    assert_eq!(read.requested_dry_run(), Some("second"));
    assert_eq!(read.annotation(PLUGINS), Some(FOLLOW));
    assert_eq!(read.status.phase, Phase::Migrating);
    assert_eq!(read.condition("DryRun").unwrap()["message"], "first");

    let cluster = MigratedCluster::new();
    let requests = cluster.requests();
    let annotations = json!({ DRY_RUN: "second", PLUGINS: FOLLOW });
    cluster.server.with_store(|store| {
        let metadata = json!({ "annotations": annotations });
        let spec = json!({ "type": MIGRATION_TYPE });
        store.put(&object(), json!({ "metadata": metadata, "spec": spec }))
    });
    let mut control = Control::read(&requests, DATASTORE_MIGRATIONS)
        .await
        .unwrap()
        .unwrap();
    control.add_finalizer(&requests).await.unwrap();
    control
        .save_api_service(&requests, Some(&service))
        .await
        .unwrap();
    control
        .write_status(&requests, |status| *status = read.status)
        .await
        .unwrap();
    assert_eq!(written(cluster.server.object(&object()).unwrap()), stored);
}
