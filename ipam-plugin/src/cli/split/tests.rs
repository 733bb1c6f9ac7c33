//! Refusals on the embedded datastore, and interruptions on a store without transactions.

use libcalico::api::{
    ClusterInformation, ClusterInformationSpec, IP_POOL_FINALIZER, IpPool, IpPoolSpec, ObjectKey,
};
use libcalico::net::Cidr;
use serde_json::json;

use super::plan::{Lock, Selection, plan};
use super::writes::replace;
use crate::cli::error::CliError;
use crate::cli::testing::Shell;
use allocation::testing::{Fault, MemoryStore};
use node_process::process::block_on;

const POOL: &str = "default-ipv4-ippool";

fn set_ready(shell: &Shell, ready: bool) {
    let ran = shell.apply(&json!({
        "apiVersion": "projectcalico.org/v3", "kind": "ClusterInformation",
        "metadata": {"name": "default"},
        "spec": {"datastoreReady": ready},
    }));
    assert!(ran.outcome.is_ok(), "{ran:?}");
}

#[test]
fn split_replaces_the_pool_and_keeps_its_blocks() {
    let shell = Shell::with_pool();
    let address = shell.allocate("a");
    set_ready(&shell, false);
    let ran = shell.run(&["split", "2", "--name", POOL]);
    let expected = "\
IP Pool default-ipv4-ippool was successfully split into 2 smaller pools.
Created split-default-ipv4-ippool-0 with CIDR 10.0.0.0/25.
Created split-default-ipv4-ippool-1 with CIDR 10.0.0.128/25.
Please refer to the documentation for final steps.
";
    assert_eq!(ran.out, expected);
    assert!(
        ran.notices
            .contains("that name default-ipv4-ippool have to name its parts"),
        "{}",
        ran.notices
    );
    assert_eq!(shell.stored::<IpPool>(&ObjectKey::global(POOL)), None);
    assert_eq!(shell.json(&["show", "--ip", &address])["state"], "inUse");
    assert_eq!(shell.json(&["show"])["pools"].as_array().unwrap().len(), 2);
}

#[test]
fn split_by_range_prints_json() {
    let shell = Shell::with_pool();
    set_ready(&shell, false);
    let ran = shell.run(&["split", "2", "--cidr", "10.0.0.7/24", "-o", "json"]);
    assert!(ran.notices.contains("have to name its parts"), "{ran:?}");
    let shown: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(shown["pool"], POOL);
    assert_eq!(
        shown["parts"][1],
        json!({"name": "split-default-ipv4-ippool-1", "cidr": "10.0.0.128/25"})
    );
}

#[test]
fn split_refused_before_the_first_write_changes_no_key() {
    let shell = Shell::with_pool();
    set_ready(&shell, false);
    let before = shell.ok(&["export"]);
    for (line, text) in [
        (
            &["split", "0", "--name", POOL][..],
            "number to split CIDR into is not a valid power of 2: 0",
        ),
        (
            &["split", "1", "--name", POOL],
            "number to split CIDR into is not a valid power of 2: 1",
        ),
        (
            &["split", "3", "--name", POOL],
            "number to split CIDR into is not a valid power of 2: 3",
        ),
        (
            &["split", "64", "--name", POOL],
            "IP pool size is too small",
        ),
        (
            &["split", "512", "--name", POOL],
            "the CIDR 10.0.0.0/24 is not large enough to be split into 512 parts",
        ),
        (
            &["split", "2", "--name", "nothing"],
            "unable to find IP pool with name nothing",
        ),
        (
            &["split", "2", "--cidr", "10.0.0.0/25"],
            "unable to find IP pool with CIDR 10.0.0.0/25",
        ),
        (&["split", "2"], "no name or CIDR provided"),
    ] {
        let error = shell.error(line);
        assert!(error.contains(text), "{line:?}: {error}");
    }
    shell.ok(&["split", "2", "--name", POOL, "--dry-run"]);
    assert_eq!(shell.ok(&["export"]), before);
}

#[test]
fn split_without_lock_is_refused() {
    let shell = Shell::with_pool();
    let error = shell.error(&["split", "2", "--name", POOL]);
    assert!(
        error.starts_with("datastore is not locked. Run ")
            && error.contains("calico-ipam migrate lock"),
        "{error}"
    );
    let shown = shell.ok(&["split", "2", "--name", POOL, "--dry-run"]);
    assert!(
        shown.starts_with("IP Pool default-ipv4-ippool would be split into 2 smaller pools.\n"),
        "{shown}"
    );
    assert!(shell.stored::<IpPool>(&ObjectKey::global(POOL)).is_some());
}

fn locked(store: MemoryStore) -> MemoryStore {
    let spec = ClusterInformationSpec {
        datastore_ready: Some(false),
        ..ClusterInformationSpec::default()
    };
    store.put(
        &ObjectKey::global("default"),
        &ClusterInformation::new("default", spec),
    );
    let spec = IpPoolSpec {
        cidr: "10.0.0.0/24".into(),
        block_size: Some(28),
        ..IpPoolSpec::default()
    };
    let mut pool = IpPool::new("big", spec);
    pool.metadata
        .unknown
        .insert("finalizers".into(), json!([IP_POOL_FINALIZER]));
    store.put(&ObjectKey::global("big"), &pool);
    store
}

fn run_split(store: &MemoryStore) -> Result<(), CliError> {
    block_on(async {
        let planned = plan(store, &Selection::Name("big".into()), 4, Lock::Required).await?;
        replace(store, &planned).await
    })
}

/// Returns name, range, service and finalizer of each pool.
fn pools(store: &MemoryStore) -> Vec<(String, Cidr, bool, bool)> {
    let pools = store
        .pairs()
        .list::<IpPool>(&libcalico::api::ObjectSelect::default());
    let row = |(key, pool): (ObjectKey, IpPool)| {
        let has_finalizer = pool.metadata.unknown.contains_key("finalizers");
        (
            key.name,
            pool.spec.range().unwrap(),
            !pool.spec.disabled,
            has_finalizer,
        )
    };
    pools.into_iter().map(row).collect()
}

fn names(store: &MemoryStore) -> Vec<String> {
    pools(store).into_iter().map(|(name, ..)| name).collect()
}

const PARTS: [&str; 4] = ["split-big-0", "split-big-1", "split-big-2", "split-big-3"];

#[test]
fn split_without_transactions_disables_the_pool_before_the_first_part() {
    let store = locked(MemoryStore::sequential());
    store.before_each(|_, writes, pairs| {
        let creates =
            writes.is_some_and(|writes| writes.iter().any(|write| write.path.contains("/split-")));
        let old = pairs.get::<IpPool>(&ObjectKey::global("big")).unwrap();
        let is_retired = old.spec.disabled && !old.metadata.unknown.contains_key("finalizers");
        assert!(!creates || is_retired);
        Fault::None
    });
    run_split(&store).unwrap();
    assert_eq!(names(&store), PARTS);
    assert!(
        pools(&store)
            .iter()
            .all(|(_, _, in_service, _)| *in_service)
    );
}

#[test]
fn split_killed_at_any_request_is_completed_by_a_second_run() {
    for killed_at in 0.. {
        let store = locked(MemoryStore::sequential());
        store.before_each(move |number, _, _| {
            if number >= killed_at {
                Fault::LostRequest
            } else {
                Fault::None
            }
        });
        let is_complete = run_split(&store).is_ok();
        store.end_faults();
        if is_complete {
            assert!(killed_at > 6, "no request was lost");
            return;
        }
        run_split(&store).unwrap();
        assert_eq!(names(&store), PARTS, "killed at request {killed_at}");
    }
}

#[test]
fn split_with_a_refused_write_leaves_the_pools_as_before() {
    let store = locked(MemoryStore::sequential());
    let before = pools(&store);
    store.before_each(|_, writes, _| {
        let is_refused = writes.is_some_and(|writes| {
            writes
                .iter()
                .any(|write| write.path.ends_with("/split-big-2"))
        });
        if is_refused {
            Fault::Refused
        } else {
            Fault::None
        }
    });
    let error = run_split(&store).unwrap_err().to_string();
    assert!(
        error.starts_with("splitting IPPool big failed: "),
        "{error}"
    );
    assert!(
        error.ends_with("the pools are as before this command"),
        "{error}"
    );
    assert_eq!(pools(&store), before);
}

#[test]
fn split_without_the_answer_to_its_first_write_names_the_state() {
    let store = locked(MemoryStore::sequential());
    store.before_each(|_, writes, _| {
        if writes.is_some() {
            Fault::LostAnswer
        } else {
            Fault::None
        }
    });
    let error = run_split(&store).unwrap_err().to_string();
    store.end_faults();
    assert!(
        error.ends_with(
            "the pool may be disabled: run the command again, which completes the split"
        ),
        "{error}"
    );
    assert_eq!(pools(&store).len(), 1);
    run_split(&store).unwrap();
    assert_eq!(names(&store), PARTS);
}

#[test]
fn split_beside_another_run_of_it_is_completed() {
    let store = locked(MemoryStore::sequential());
    store.before_each(|_, writes, pairs| {
        for write in writes
            .into_iter()
            .flatten()
            .filter(|write| write.path.ends_with("/split-big-2"))
        {
            if let libcalico::store::WriteOp::Create(value) = &write.op {
                pairs.put(write.path.clone(), value.clone());
            }
        }
        Fault::None
    });
    run_split(&store).unwrap();
    assert_eq!(names(&store), PARTS);
}

#[test]
fn split_deletes_a_pool_that_kube_controllers_writes_meanwhile() {
    let store = locked(MemoryStore::sequential());
    let mut touched = 0;
    store.before_each(move |_, writes, pairs| {
        let is_delete = |write: &libcalico::store::Write| {
            matches!(write.op, libcalico::store::WriteOp::Delete(_))
        };
        if writes.is_some_and(|writes| writes.iter().any(is_delete)) && touched < 3 {
            touched += 1;
            let key = ObjectKey::global("big");
            let mut old = pairs.get::<IpPool>(&key).unwrap();
            old.metadata
                .unknown
                .insert("finalizers".into(), json!([IP_POOL_FINALIZER]));
            pairs.put(
                <IpPool as libcalico::store::Kind>::path(&key),
                serde_json::to_vec(&old).unwrap(),
            );
        }
        Fault::None
    });
    run_split(&store).unwrap();
    assert_eq!(names(&store), PARTS);
}
