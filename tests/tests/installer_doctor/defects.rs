//! A node with one defect at a time.

use std::fs;
use std::path::Path;

use integration_tests::command::ip;
use integration_tests::installation::BIN;
use integration_tests::kubernetes::{Permission, Role};
use integration_tests::migration::migrate;
use serde_json::json;

use crate::scene::{Break, Examined, NODE, is_good, make_executable, on_a_good_node};

fn rename(from: &Path, to: &Path) {
    fs::rename(from, to).unwrap();
}

#[test]
fn doctor_finds_no_problem_on_a_good_node_in_both_formats() {
    on_a_good_node(|scene| {
        is_good(scene);
        let said = scene.doctor();
        assert!(
            said.words("token")
                .contains("system:serviceaccount:kube-system:calico-cni-plugin is valid for 2")
        );
        assert!(said.words("program calico").contains("up to 1.1.0"));
        assert!(said.words("pools").starts_with("pool 10.65.0.0/16"));
        let text = scene.pod.calico(&["doctor"]).run().unwrap();
        assert_eq!(text.exit, Some(0));
        assert!(
            text.stdout.starts_with("ok       configuration"),
            "{}",
            text.stdout
        );
        assert!(
            text.stdout
                .ends_with(" ok, 0 warnings, 0 failures, 0 skipped\n"),
            "{}",
            text.stdout
        );
        let token = scene.pod.token().unwrap();
        let (_, secret) = token.rsplit_once('.').unwrap();
        assert!(!text.stdout.contains(secret) && !text.stderr.contains(secret));
        assert_eq!(
            scene
                .pod
                .calico(&["doctor", "-o", "xml"])
                .run()
                .unwrap()
                .exit,
            Some(2)
        );
    });
}

#[test]
fn doctor_reports_each_defect_of_programs_and_files() {
    on_a_good_node(|scene| {
        let container = &scene.pod.container;
        let bin = container.path(BIN);
        let (portmap, loopback, away) =
            (bin.join("portmap"), bin.join("loopback"), bin.join("away"));
        Break {
            found: &["fail program portmap"],
            words: ("program portmap", "run the installer again"),
        }
        .and_mend(
            scene,
            || rename(&portmap, &away),
            || rename(&away, &portmap),
        );
        Break {
            found: &["fail program loopback"],
            words: ("program loopback", "containerd needs it"),
        }
        .and_mend(
            scene,
            || rename(&loopback, &away),
            || rename(&away, &loopback),
        );
        Break {
            found: &["fail program portmap"],
            words: ("program portmap", "chmod 755"),
        }
        .and_mend(
            scene,
            || make_executable(&portmap, false),
            || make_executable(&portmap, true),
        );
        let nodename = container.path("var/lib/calico/nodename");
        Break {
            found: &["fail nodename"],
            words: ("nodename", "has node2"),
        }
        .and_mend(
            scene,
            || fs::write(&nodename, "node2").unwrap(),
            || fs::write(&nodename, NODE).unwrap(),
        );
        let journal = container.path("var/lib/calico/cni-journal");
        let owe = || {
            fs::create_dir_all(&journal).unwrap();
            fs::write(
                journal.join("00000000-0000-5000-8000-000000000000.json"),
                "{}",
            )
            .unwrap();
        };
        Break {
            found: &["warn journal"],
            words: ("journal", "1 deferred DELs"),
        }
        .and_mend(scene, owe, || fs::remove_dir_all(&journal).unwrap());
    });
}

/// The installer's default names v1, which a migration leaves locked.
#[test]
fn doctor_follows_a_migration_unless_v1_is_configured() {
    on_a_good_node(|scene| {
        migrate(&scene.kubernetes.api);
        let said = scene.doctor();
        assert_eq!(
            (said.wrong(), said.exit),
            (vec!["fail cluster information".to_owned()], Some(1)),
            "{said:#?}"
        );
        let words = said.words("cluster information");
        assert!(
            words.contains("moved to projectcalico.org/v3")
                && words.contains("set calico_api_group"),
            "{words}"
        );

        scene.pod.set("CALICO_API_GROUP", "");
        let outcome = scene.pod.calico(&["install"]).run().unwrap();
        assert_eq!(outcome.exit, Some(0), "{}", outcome.stderr);
        is_good(scene);
    });
}

#[test]
fn doctor_reports_wrong_mtu_and_kernel_settings() {
    on_a_good_node(|scene| {
        let mtu = |mtu: u32| ip(&format!("link set uplink0 mtu {mtu}")).unwrap();
        Break {
            found: &["warn MTU"],
            words: ("MTU", "set veth_mtu (CNI_MTU) to 1400"),
        }
        .and_mend(scene, || mtu(1400), || mtu(1500));
        let forward = |value: &str| fs::write("/proc/sys/net/ipv4/ip_forward", value).unwrap();
        let words = ("kernel settings", "sysctl -w net.ipv4.ip_forward=1");
        Break {
            found: &["fail kernel settings"],
            words,
        }
        .and_mend(scene, || forward("0"), || forward("1"));
    });
}

#[test]
fn doctor_reports_each_defect_of_the_cluster() {
    on_a_good_node(|scene| {
        let found = [
            "fail datastore",
            "skipped blocks",
            "skipped cluster information",
            "skipped permissions",
            "skipped pools",
        ];
        Break {
            found: &found,
            words: ("datastore", "kubernetes-services-endpoint"),
        }
        .and_mend(scene, || scene.proxy.go_away(), || scene.proxy.arm(None));
        let ready = |is: bool| {
            scene.patch(
                "clusterinformations/default",
                &json!({ "spec": { "datastoreReady": is } }),
            )
        };
        let words = (
            "cluster information",
            "sets spec.datastoreReady to false and then to true",
        );
        Break {
            found: &["fail cluster information"],
            words,
        }
        .and_mend(scene, || ready(false), || ready(true));
        let disabled =
            |is: bool| scene.patch("ippools/pool", &json!({ "spec": { "disabled": is } }));
        Break {
            found: &["fail pools"],
            words: ("pools", "none of 1 pools is enabled"),
        }
        .and_mend(scene, || disabled(true), || disabled(false));
        let vxlan =
            |mode: &str| scene.patch("ippools/pool", &json!({ "spec": { "vxlanMode": mode } }));
        Break {
            found: &["warn MTU"],
            words: ("MTU", "encapsulation uses 50"),
        }
        .and_mend(scene, || vxlan("Always"), || vxlan("Never"));
        let admin = scene.kubernetes.api.admin();
        Break {
            found: &["fail node object"],
            words: ("node object", "has no Node node1"),
        }
        .and_mend(
            scene,
            || {
                drop(
                    admin
                        .delete(&format!("/api/v1/nodes/{NODE}"))
                        .unwrap()
                        .success()
                        .unwrap(),
                )
            },
            || admin.node(NODE).unwrap(),
        );
    });
}

#[test]
fn doctor_reports_missing_permissions() {
    on_a_good_node(|scene| {
        let (api, ours) = (&scene.kubernetes.api, Role::ours().unwrap());
        let without = |resource: &str, verb: &str| {
            let lost = |p: &&Permission| {
                p.resource == resource && p.verb == verb && p.group != "projectcalico.org"
            };
            ours.without(ours.0.iter().find(lost).unwrap())
        };
        let grant = |role: &Role| api.grant(&scene.plugins, role).unwrap();
        let words =
            "may not update ipamblocks.crd.projectcalico.org -> kubectl apply -f deploy/rbac/";
        let role = without("ipamblocks", "update");
        Break {
            found: &["fail permissions"],
            words: ("permissions", words),
        }
        .and_mend(scene, || grant(&role), || grant(&ours));
        let role = without("virtualmachines", "get");
        Break {
            found: &["warn permissions"],
            words: ("permissions", "if there are virtual machines"),
        }
        .and_mend(scene, || grant(&role), || grant(&ours));
    });
}
