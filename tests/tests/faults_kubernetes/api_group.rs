//! The API group that the last process found out, and that is another now.

use std::fs;

use datastore::kubernetes::GROUP_FILE;
use integration_tests::cluster::Faulty;
use libcalico::kubernetes::ApiGroup;

use super::on_faulty_api;

/// How often the group was asked for since the proxy was armed.
fn questions(faulty: &Faulty<'_>) -> usize {
    faulty.proxy.requests().iter().filter(|request| *request == "GET /apis").count()
}

#[test]
fn a_remembered_group_that_is_not_there_is_forgotten_and_asked_for_again() {
    on_faulty_api(ApiGroup::V3, |faulty, _| {
        faulty.conf.as_object_mut().unwrap().remove("calico_api_group");
        let (first, second) = (faulty.pod(), faulty.pod());
        faulty.run("ADD", &first);
        assert_eq!(questions(faulty), 1);
        faulty.run("ADD", &second);
        assert_eq!(questions(faulty), 0, "it is remembered");

        for (verb, pod) in [("DEL", &first), ("STATUS", &second), ("DEL", &second), ("ADD", &first)] {
            let remembered = fs::read_to_string(GROUP_FILE).unwrap();
            let (ours, other) = (ApiGroup::V3.api_version(), ApiGroup::CrdV1.api_version());
            assert!(remembered.contains(ours), "{remembered}");
            fs::write(GROUP_FILE, remembered.replace(ours, other)).unwrap();
            faulty.proxy.arm(None);
            faulty.call(verb, pod).run().unwrap().success();
            assert_eq!(questions(faulty), 1, "{verb}");
        }
        faulty.run("DEL", &first);
        faulty.cluster.assert_nothing_left();
    });
}

/// Fresh nodes and upstream's take v1 from then on (DS-22): a node that went on with v3 would give out their addresses.
#[test]
fn a_remembered_v3_ends_when_v1_comes_beside_it() {
    on_faulty_api(ApiGroup::V3, |faulty, control_plane| {
        faulty.conf.as_object_mut().unwrap().remove("calico_api_group");
        let (first, second) = (faulty.pod(), faulty.pod());
        faulty.run("ADD", &first);
        // All but the handle that an ADD makes ahead of its reads.
        let kept = |faulty: &Faulty<'_>| {
            let mut objects = faulty.cluster.store.dump().unwrap();
            objects.retain(|key, _| !key.contains("ipamhandles"));
            objects
        };
        let before = kept(faulty);
        control_plane.servers.api.define(ApiGroup::CrdV1.api_version()).unwrap();
        control_plane.servers.api.await_group("crd.projectcalico.org").unwrap();
        faulty.proxy.arm(None);
        // There is nothing in it yet.
        let error = faulty.call("ADD", &second).run().unwrap().error();
        assert!(error.msg.contains("ClusterInformation"), "{error:?}");
        assert_eq!(questions(faulty), 1);
        let remembered = fs::read_to_string(GROUP_FILE).unwrap();
        assert!(remembered.contains(ApiGroup::CrdV1.api_version()), "{remembered}");
        assert_eq!(kept(faulty), before);
    });
}
