//! Custom resources: POST, PUT and DELETE.

use libcalico::api::{IpPool, IpPoolSpec, ObjectKey, Profile, ProfileSpec};
use libcalico::ipam::{Block, Handle, HandleId};
use libcalico::kubernetes::{ApiGroup, ObjectRevision, Preconditions};
use libcalico::store::{Kind, Revision, Write};
use serde_json::json;
use time::{Duration, OffsetDateTime};

use super::{
    ApiServer, GROUPS, at, block, cidr, create_affinity, create_block, edit, found, kind_of,
};

const RANGE: &str = "10.65.0.0/26";
const NAME: &str = "10-65-0-0-26";

fn create_pool(server: &mut ApiServer) -> ObjectKey {
    let spec = IpPoolSpec {
        cidr: "10.65.0.0/16".into(),
        ..IpPoolSpec::default()
    };
    let key = ObjectKey::global("p");
    server
        .apply(&Write::create::<IpPool>(&key, &IpPool::new("p", spec)).unwrap())
        .unwrap();
    key
}

#[test]
fn create_sets_the_metadata_of_the_server() {
    for group in GROUPS {
        let mut server = ApiServer::new(group);
        server.set_time(OffsetDateTime::UNIX_EPOCH + Duration::milliseconds(61_500));
        let first = create_block(&mut server, RANGE);
        create_block(&mut server, "10.65.0.64/26");
        let metadata = &server.object(&at(&server, "IPAMBlock", NAME)).unwrap()["metadata"];
        assert_eq!(metadata["creationTimestamp"], "1970-01-01T00:01:01Z");
        assert_eq!(metadata["generation"], 1);
        assert_eq!(
            metadata["resourceVersion"].as_str().unwrap(),
            first.revision.resource_version()
        );
        let second = &server
            .object(&at(&server, "IPAMBlock", "10-65-0-64-26"))
            .unwrap()["metadata"];
        assert_ne!(metadata["uid"], second["uid"]);
        assert_eq!(
            second["resourceVersion"].as_str().unwrap(),
            server.revision().to_string()
        );
    }
}

#[test]
fn uid_of_the_client_is_replaced_at_creation() {
    for group in GROUPS {
        let mut server = ApiServer::new(group);
        let mut pool = IpPool::new("p", IpPoolSpec::default());
        pool.metadata.uid = "7f9c24e8-3b0a-4c5d-9e1f-a2b3c4d5e6f7".into();
        let key = ObjectKey::global("p");
        server
            .apply(&Write::create::<IpPool>(&key, &pool).unwrap())
            .unwrap();
        let stored = found::<IpPool>(&server, &key).value;
        assert_ne!(stored.metadata.uid, pool.metadata.uid);
        assert!(!stored.metadata.uid.is_empty());
    }
}

#[test]
fn create_of_an_existing_object_already_exists_and_changes_nothing() {
    for group in GROUPS {
        let mut server = ApiServer::new(group);
        create_block(&mut server, RANGE);
        let before = server.revision();
        let again = Write::create::<Block>(&cidr(RANGE), &block(RANGE, "n2")).unwrap();
        assert_eq!(kind_of(server.apply(&again)), "AlreadyExists");
        assert_eq!(server.revision(), before);
        assert_eq!(
            found::<Block>(&server, &cidr(RANGE)).value,
            block(RANGE, "n1")
        );
    }
}

#[test]
fn update_and_delete_at_an_old_revision_conflict() {
    for group in GROUPS {
        let mut server = ApiServer::new(group);
        let read = create_block(&mut server, RANGE);
        let mut changed = read.value.clone();
        changed.count_write();
        let update = Write::update::<Block>(&cidr(RANGE), &changed, &read.revision).unwrap();
        let newer = server.apply(&update).unwrap();
        let stored = found::<Block>(&server, &cidr(RANGE));
        assert_eq!((&stored.value, &stored.revision), (&changed, &newer));
        assert_eq!(kind_of(server.apply(&update)), "Conflict");
        let delete = Write::delete::<Block>(&cidr(RANGE), Some(&read.revision));
        assert_eq!(kind_of(server.apply(&delete)), "Conflict");
        let delete = Write::delete::<Block>(&cidr(RANGE), Some(&newer));
        assert_eq!(server.apply(&delete), Ok(newer));
        assert!(server.get::<Block>(&cidr(RANGE)).unwrap().is_none());
    }
}

#[test]
fn update_without_a_change_keeps_the_revision_after_the_reset_of_field_managers() {
    for group in GROUPS {
        let mut server = ApiServer::new(group);
        let created = create_block(&mut server, RANGE);
        let update = |server: &mut ApiServer, revision: &Revision| {
            let write = Write::update::<Block>(&cidr(RANGE), &created.value, revision);
            server.apply(&write.unwrap()).unwrap()
        };
        let reset = update(&mut server, &created.revision);
        assert_ne!(reset, created.revision);
        assert_eq!(update(&mut server, &reset), reset);

        let handle = HandleId::new("h");
        let write = Write::create::<Handle>(&handle, &Handle::default()).unwrap();
        let revision = server.apply(&write).unwrap();
        let same = Write::update::<Handle>(&handle, &Handle::default(), &revision).unwrap();
        assert_eq!(server.apply(&same), Ok(revision));
    }
}

#[test]
fn update_without_a_revision_conflicts() {
    for group in GROUPS {
        let mut server = ApiServer::new(group);
        let read = create_block(&mut server, RANGE);
        let none = Revision(String::new());
        let update = Write::update::<Block>(&cidr(RANGE), &read.value, &none).unwrap();
        assert_eq!(kind_of(server.apply(&update)), "Conflict");
    }
}

#[test]
fn write_of_a_missing_object_is_not_found() {
    for group in GROUPS {
        let mut server = ApiServer::new(group);
        let read = create_block(&mut server, RANGE);
        let delete = Write::delete::<Block>(&cidr(RANGE), None);
        assert_eq!(server.apply(&delete), Ok(Revision(String::new())));
        assert_eq!(kind_of(server.apply(&delete)), "NotFound");
        let update = Write::update::<Block>(&cidr(RANGE), &read.value, &read.revision).unwrap();
        assert_eq!(kind_of(server.apply(&update)), "NotFound");
    }
}

#[test]
fn update_of_another_handle_with_the_same_id_is_not_found() {
    for group in GROUPS {
        let mut server = ApiServer::new(group);
        let id = HandleId::new("h");
        let create = Write::create::<Handle>(&id, &Handle::default()).unwrap();
        server.apply(&create).unwrap();
        let old = found::<Handle>(&server, &id);
        server.apply(&Write::delete::<Handle>(&id, None)).unwrap();
        let update = Write::update::<Handle>(&id, &old.value, &old.revision).unwrap();
        assert_eq!(kind_of(server.apply(&update)), "NotFound");
        server.apply(&create).unwrap();
        assert_eq!(kind_of(server.apply(&update)), "NotFound");
        // The text of this refusal is not that of a PUT, so the client reports a conflict.
        let delete = Write::delete::<Handle>(&id, Some(&old.revision));
        assert_eq!(kind_of(server.apply(&delete)), "Conflict");
    }
}

#[test]
fn object_with_a_finalizer_remains_until_the_finalizer_is_removed() {
    for group in GROUPS {
        let mut server = ApiServer::new(group);
        let key = create_pool(&mut server);
        let location = at(&server, "IPPool", "p");
        edit(&mut server, &location, |pool| {
            pool["metadata"]["finalizers"] = json!(["a/b"]);
        });
        server.apply(&Write::delete::<IpPool>(&key, None)).unwrap();
        let marked = server.object(&location).unwrap().clone();
        assert!(marked["metadata"]["deletionTimestamp"].is_string());
        let revision = server.revision();
        server.apply(&Write::delete::<IpPool>(&key, None)).unwrap();
        assert_eq!(
            server.revision(),
            revision,
            "a second DELETE changes nothing"
        );

        // The client writes the finalizers back, and no client removes the mark.
        let read = found::<IpPool>(&server, &key);
        let mut pool = read.value;
        pool.metadata.deletion_timestamp = None;
        pool.spec.disabled = true;
        server
            .apply(&Write::update::<IpPool>(&key, &pool, &read.revision).unwrap())
            .unwrap();
        let kept = &server.object(&location).unwrap()["metadata"];
        assert_eq!(kept["finalizers"], json!(["a/b"]));
        assert_eq!(
            kept["deletionTimestamp"],
            marked["metadata"]["deletionTimestamp"]
        );
        edit(&mut server, &location, |pool| {
            pool["metadata"]["finalizers"] = json!([]);
        });
        assert!(server.object(&location).is_none());
    }
}

#[test]
fn update_counts_generations_of_the_spec_only() {
    for group in GROUPS {
        let mut server = ApiServer::new(group);
        create_pool(&mut server);
        let location = at(&server, "IPPool", "p");
        edit(&mut server, &location, |pool| {
            pool["metadata"]["labels"] = json!({ "a": "b" });
        });
        assert_eq!(
            server.object(&location).unwrap()["metadata"]["generation"],
            1
        );
        edit(&mut server, &location, |pool| {
            pool["spec"]["disabled"] = true.into();
        });
        assert_eq!(
            server.object(&location).unwrap()["metadata"]["generation"],
            2
        );
    }
}

#[test]
fn status_and_spec_are_written_by_different_requests() {
    let mut server = ApiServer::new(ApiGroup::V3);
    let key = create_pool(&mut server);
    let read = found::<IpPool>(&server, &key);
    let mut pool = read.value;
    pool.status = Some(json!({ "conditions": [] }));
    pool.spec.disabled = true;
    let status = Write::update_status::<IpPool>(&key, &pool, &read.revision).unwrap();
    server.apply(&status).unwrap();
    let read = found::<IpPool>(&server, &key);
    assert_eq!(read.value.status, Some(json!({ "conditions": [] })));
    assert!(!read.value.spec.disabled);

    let mut pool = read.value;
    pool.status = None;
    pool.spec.disabled = true;
    server
        .apply(&Write::update::<IpPool>(&key, &pool, &read.revision).unwrap())
        .unwrap();
    let read = found::<IpPool>(&server, &key).value;
    assert_eq!(read.status, Some(json!({ "conditions": [] })));
    assert!(read.spec.disabled);
}

#[test]
fn unknown_fields_are_dropped_and_defaults_are_stored() {
    for group in GROUPS {
        let mut server = ApiServer::new(group);
        let location = at(&server, "IPPool", "p");
        let pool = json!({ "spec": {
            "cidr": "10.0.0.0/8", "invented": 1, "blockSize": null, "nodeSelector": null,
        } });
        server.create_object(&location, pool).unwrap();
        let spec = &server.object(&location).unwrap()["spec"];
        assert_eq!(spec.get("invented"), None);
        assert_eq!(spec["cidr"], "10.0.0.0/8");
        if group == ApiGroup::V3 {
            assert_eq!(spec["nodeSelector"], "all()");
        } else {
            assert!(spec.get("blockSize").is_none(), "{spec}");
        }
        create_block(&mut server, RANGE);
        let block = &server.object(&at(&server, "IPAMBlock", NAME)).unwrap()["spec"];
        assert_eq!(
            block["allocations"].as_array().unwrap().len(),
            64,
            "nulls in a list stay"
        );
    }
}

#[test]
fn delete_with_false_preconditions_conflicts() {
    for group in GROUPS {
        let mut server = ApiServer::new(group);
        let read = create_block(&mut server, RANGE);
        let location = at(&server, "IPAMBlock", NAME);
        let ObjectRevision {
            resource_version,
            uid,
            ..
        } = ObjectRevision::parse(&read.revision);
        for (uid, resource_version) in [
            (Some("other".into()), None),
            (uid.clone(), Some("1".into())),
        ] {
            let wanted = Preconditions {
                uid,
                resource_version,
            };
            assert_eq!(
                kind_of(server.delete_object(&location, &wanted)),
                "Conflict"
            );
        }
        let wanted = Preconditions {
            uid,
            resource_version: Some(resource_version),
        };
        server.delete_object(&location, &wanted).unwrap();
    }
}

#[test]
fn clone_keeps_its_objects_when_the_server_changes() {
    let mut server = ApiServer::new(ApiGroup::CrdV1);
    create_block(&mut server, RANGE);
    let snapshot = server.clone();
    create_affinity(&mut server, "n1", RANGE);
    server
        .apply(&Write::delete::<Block>(&cidr(RANGE), None))
        .unwrap();
    assert_eq!(snapshot.list::<Block>(&None).len(), 1);
    assert!(server.list::<Block>(&None).is_empty());
    assert!(snapshot.revision() < server.revision());
}

#[test]
fn put_object_replaces_any_state_and_keeps_the_uid() {
    let mut server = ApiServer::new(ApiGroup::CrdV1);
    let location = at(&server, "IPAMHandle", "h");
    let handle = |n: u64| json!({ "spec": { "handleID": "h", "block": { "10.0.0.0/30": n } } });
    server.put_object(&location, handle(1));
    let uid = server.object(&location).unwrap()["metadata"]["uid"].clone();
    server.put_object(&location, handle(2));
    let stored = server.object(&location).unwrap();
    assert_eq!(stored["metadata"]["uid"], uid);
    assert_eq!(stored["spec"]["block"]["10.0.0.0/30"], 2);
    server.remove_object(&location);
    assert!(server.get::<Handle>(&HandleId::new("h")).unwrap().is_none());
    assert_eq!(Handle::KIND, "IPAMHandle");
}

#[test]
fn write_that_the_codec_refuses_is_an_error() {
    let mut server = ApiServer::new(ApiGroup::CrdV1);
    let key = ObjectKey::global("kns.default");
    let profile = Profile::new("kns.default", ProfileSpec::default());
    let before = server.revision();
    let create = Write::create::<Profile>(&key, &profile).unwrap();
    assert_eq!(kind_of(server.apply(&create)), "Other");
    assert_eq!(server.revision(), before);
}
