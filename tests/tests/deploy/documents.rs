//! The commands of the documents are run as documented, are targets of the Makefile, or are listed
//! with the reason why no test runs them.

mod commands;
mod mentions;
mod shell;
mod treatment;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use commands::Chapter;
use integration_tests::kubernetes::{Kubernetes, on_kubernetes, program};
use integration_tests::namespaces::{Host, isolated};
use shell::{Output, Shell};
use treatment::{BESIDE, DOCUMENTS, INSTALL, Treatment, UNINSTALL, UPGRADE};

const STANDALONE: &str = "docs/standalone.md";
const AFTER_AN_ADD: &str = "docs/what-an-add-makes.md";
const TROUBLESHOOTING: &str = "docs/troubleshooting.md";

/// Chapters that are run with the embedded datastore, in this order.
const ON_THE_LOCAL_FILE: [(&str, &str); 4] = [
    (STANDALONE, "Without a cluster"),
    (AFTER_AN_ADD, "In the pod's network namespace"),
    (AFTER_AN_ADD, "On the host"),
    (AFTER_AN_ADD, "In the datastore"),
];

/// Chapters that are run with an API server, in this order.
const ON_AN_API_SERVER: [(&str, &str); 11] = [
    ("README.md", "Quick start"),
    (STANDALONE, "Against an existing cluster, by hand"),
    (AFTER_AN_ADD, "On Kubernetes"),
    ("docs/calico-ipam.md", "First commands"),
    (TROUBLESHOOTING, "One pod"),
    (TROUBLESHOOTING, "`calico doctor`"),
    (INSTALL, "Quick start"),
    (UPGRADE, "From one version to the next"),
    (UNINSTALL, "Steps"),
    (BESIDE, "Replace the images"),
    ("kube-controllers/README.md", "kube-controllers"),
];

fn chapters() -> Vec<Chapter> {
    DOCUMENTS
        .iter()
        .flat_map(|document| commands::read(document).unwrap())
        .collect()
}

fn chapter<'c>(chapters: &'c [Chapter], (document, heading): (&str, &str)) -> &'c Chapter {
    let found = chapters
        .iter()
        .find(|chapter| (chapter.document, &*chapter.heading) == (document, heading));
    found.unwrap_or_else(|| panic!("{document} has no chapter {heading}"))
}

fn file<'c>(chapter: &'c Chapter, language: &str) -> &'c str {
    let found = chapter.files.iter().find(|(of, _)| of == language);
    found
        .map(|(_, text)| text.as_str())
        .unwrap_or_else(|| panic!("{} has no {language}", chapter.heading))
}

/// Writes to stderr around libtest's capture.
fn report(words: &str) {
    let _ = writeln!(std::io::stderr(), "documents: {words}");
}

#[test]
fn every_documented_command_is_run_or_listed_with_a_reason() {
    let chapters = chapters();
    assert_eq!(
        treatment::stale(&chapters),
        Vec::<String>::new(),
        "no document has these any more"
    );
    let run = || ON_THE_LOCAL_FILE.iter().chain(&ON_AN_API_SERVER);
    let mut targets = Vec::new();
    let mut counts = BTreeMap::<&str, [usize; 3]>::new();
    for chapter in chapters
        .iter()
        .filter(|chapter| treatment::has_commands(chapter))
    {
        let is_run = run().any(|place| *place == (chapter.document, &*chapter.heading));
        for command in &chapter.commands {
            let counts = counts.entry(chapter.document).or_default();
            match treatment::of(chapter, command) {
                Treatment::Run => {
                    assert!(
                        is_run,
                        "{}, {}: no test runs `{command}`",
                        chapter.document, chapter.heading
                    );
                    counts[0] += 1;
                }
                Treatment::Make => {
                    targets.push(
                        command
                            .split_whitespace()
                            .nth(1)
                            .unwrap_or_default()
                            .to_owned(),
                    );
                    counts[1] += 1;
                }
                Treatment::NotRun(reason) => {
                    report(&format!(
                        "{} does not run `{}`: {reason}",
                        chapter.document,
                        command.lines().next().unwrap()
                    ));
                    counts[2] += 1;
                }
            }
        }
    }
    run().for_each(|place| _ = chapter(&chapters, *place));
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let makefile = fs::read_to_string(workspace.join("Makefile")).unwrap();
    for target in targets {
        assert!(
            makefile
                .lines()
                .any(|line| line.starts_with(&format!("{target}:"))),
            "make has no target {target}"
        );
    }
    for (document, [run, make, not_run]) in counts {
        report(&format!(
            "{document}: {run} commands are run, {make} are targets of make, {not_run} are not run"
        ));
    }
}

/// The document says that `init` is unnecessary for a new file.
#[test]
fn documented_manual_sequence_works_with_and_without_init() {
    let chapters = chapters();
    let [by_hand, in_the_pod, on_the_host, in_the_datastore] =
        ON_THE_LOCAL_FILE.map(|place| chapter(&chapters, place));
    isolated(|host| {
        host.add_uplink().unwrap();
        let shell = Shell::at(host, &[]).unwrap();
        shell.write("pool.yaml", file(by_hand, "yaml")).unwrap();
        shell.write("conf.json", file(by_hand, "json")).unwrap();
        let add = by_hand
            .commands
            .iter()
            .find(|command| command.starts_with("CNI_COMMAND=ADD"))
            .unwrap();
        let del = add.replace("CNI_COMMAND=ADD", "CNI_COMMAND=DEL");
        for without in [None, Some("calico-ipam init")] {
            let is_run =
                |command: &str| without.is_none_or(|left_out| !command.starts_with(left_out));
            let written = |command: &str| is_run(command).then(|| command.to_owned());
            let Output { printed, count } = shell.run_chapter("", by_hand, written).unwrap();
            assert!(
                printed.contains("\"address\": \"10.65.")
                    || printed.contains("\"address\":\"10.65."),
                "{printed}"
            );
            assert!(printed.contains("inet 10.65."), "{printed}");
            let shown = |chapter: &Chapter, expected: &[&str]| {
                let Output { printed, count } = shell
                    .run_chapter("", chapter, |command| Some(command.to_owned()))
                    .unwrap();
                for part in expected {
                    assert!(
                        printed.contains(part),
                        "{}: {part:?} is not in {printed}",
                        chapter.heading
                    );
                }
                report(&format!(
                    "{count} commands of {}, {}",
                    chapter.document, chapter.heading
                ));
            };
            shown(
                in_the_pod,
                &[
                    "inet 10.65.",
                    "default via 169.254.1.1 dev eth0",
                    "169.254.1.1 dev eth0 scope link",
                ],
            );
            shown(
                on_the_host,
                &[
                    "ee:ee:ee:ee:ee:ee",
                    " dev cali",
                    ".proxy_arp = 1",
                    ".proxy_delay = 0",
                ],
            );
            let objects = [
                "/calico/ipam/v2/assignment/ipv4/block/10.65.",
                "/calico/ipam/v2/handle/demo.c1",
                "is in use",
            ];
            shown(in_the_datastore, &objects);
            let ended = "export PATH=$PATH:/opt/cni/bin DATASTORE_TYPE=local\n";
            let nodes = shell.run(&format!("{ended}calico-ipam get nodes")).unwrap();
            assert!(nodes.contains(&nodename()), "{nodes}");
            let script = format!(
                "{ended}{del}\ncalico-ipam check\nip netns delete pod1\nrm -r /var/lib/calico"
            );
            shell.run(&script).unwrap();
            report(&format!(
                "{count} commands of {}, {}",
                by_hand.document, by_hand.heading
            ));
        }
    });
}

fn nodename() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname")
        .unwrap()
        .trim()
        .to_lowercase()
}

/// Command that creates the objects that the documents expect in a cluster.
const CLUSTER: &str = r#"
kubectl apply -f - <<END
apiVersion: v1
kind: Node
metadata: { name: node1 }
---
apiVersion: v1
kind: ServiceAccount
metadata: { name: default, namespace: default }
---
apiVersion: v1
kind: Pod
metadata: { name: web, namespace: default }
spec: { nodeName: node1, containers: [{ name: c, image: none }] }
---
apiVersion: crd.projectcalico.org/v1
kind: ClusterInformation
metadata: { name: default }
spec: { datastoreReady: true }
END
"#;

/// Commands that write a configuration list, and run an ADD that fails because its IP pool does not
/// exist.
const FAILED_ADD: &str = r#"
jq '{name, cniVersion, plugins: [. + {log_file_path: "/var/log/calico/cni/cni.log"}]}' conf.json \
    >/etc/cni/net.d/10-calico.conflist
jq '.plugins[0] + {name, cniVersion} | .ipam.ipv4_pools = ["10.99.0.0/16"]' /etc/cni/net.d/10-calico.conflist |
    CNI_COMMAND=ADD CNI_CONTAINERID=c9 CNI_NETNS=/run/netns/web CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin \
    CNI_ARGS="K8S_POD_NAMESPACE=default;K8S_POD_NAME=web" /opt/cni/bin/calico && exit 1
"#;

/// Command that waits until the API server publishes the schema of pools, a moment after it serves
/// them. kubectl validates with the schema.
const AWAIT_POOLS: &str = r#"schema=/openapi/v3/apis/crd.projectcalico.org/v1
for _ in {1..600}; do
    kubectl get --raw $schema 2>/dev/null | grep '"kind": *"IPPool"' >/dev/null && break
    sleep 0.1
done
"#;

const PROGRAMS: &str = "install -D -t /opt/cni/bin target/plugin/calico
ln -f /opt/cni/bin/calico /opt/cni/bin/calico-ipam
export PATH=$PATH:/opt/cni/bin\n";

#[test]
fn documented_cluster_commands_work_on_an_api_server() {
    let chapters = chapters();
    on_kubernetes(|host, kubernetes| {
        host.add_uplink().unwrap();
        let shell = cluster_shell(host, &kubernetes);
        let run = |place: (&str, &str), before: &str, written: &dyn Fn(&str) -> String| {
            let chapter = chapter(&chapters, place);
            let Output { printed, count } = shell
                .run_chapter(before, chapter, |command| Some(written(command)))
                .unwrap();
            report(&format!(
                "{count} commands of {}, {}",
                chapter.document, chapter.heading
            ));
            printed
        };
        let as_is = |command: &str| command.to_owned();

        let [
            install,
            by_hand,
            after_the_add,
            first_commands,
            one_pod,
            doctor,
            quick_start,
            upgrade,
            uninstall,
            beside,
            controllers,
        ] = ON_AN_API_SERVER;
        let apply_pool = |command: &str| match command.starts_with("kubectl apply -f pool.yaml") {
            true => format!("{AWAIT_POOLS}{command}"),
            false => command.to_owned(),
        };
        run(install, PROGRAMS, &apply_pool);

        kubernetes
            .api
            .await_schema("crd.projectcalico.org/v1", "ClusterInformation")
            .unwrap();
        shell
            .write("conf.json", file(chapter(&chapters, by_hand), "json"))
            .unwrap();
        let printed = run(by_hand, &format!("{PROGRAMS}{CLUSTER}"), &as_is);
        assert!(
            printed.contains("cni.projectcalico.org/podIP: 192.168."),
            "{printed}"
        );

        let printed = run(after_the_add, PROGRAMS, &as_is);
        let annotations = ["containerID: c1", "podIP: 192.168.", "podIPs: 192.168."];
        for part in annotations.map(|annotation| format!("cni.projectcalico.org/{annotation}")) {
            assert!(printed.contains(&part), "{part:?} is not in {printed}");
        }
        for part in [
            "kind: IPAMBlock\n",
            "\nk8s-pod-network.c1 ",
            "\nnode1-192-168-",
            " cali68caf03a5f4 ",
        ] {
            assert!(printed.contains(part), "{part:?} is not in {printed}");
        }
        let printed = run(first_commands, PROGRAMS, &as_is);
        assert!(
            printed.contains("more pods with IPv4: at most "),
            "{printed}"
        );

        let names = |command: &str| command.replace("CONTAINERID", "c9");
        let printed = run(one_pod, &format!("{PROGRAMS}{FAILED_ADD}"), &names);
        let (_, after) = printed.split_once("+ grep c9 ").unwrap();
        let (grepped, traced) = after.split_once("calico-ipam trace default/web").unwrap();
        let fields = r#" ContainerID="c9" Namespace="default" Pod="web" WorkloadEndpoint="node1-k8s-web-eth0""#;
        for shown in [grepped, traced] {
            assert!(
                shown
                    .lines()
                    .any(|line| line.contains("ADD failed") && line.ends_with(fields)),
                "{printed}"
            );
        }
        let link = "\nInterface: cali68caf03a5f4, ";
        for part in [
            "\nEndpoint: node1-k8s-web-eth0\n",
            "handle k8s-pod-network.c1, ",
            link,
            "\nRoutes:\n  192.168.",
        ] {
            assert!(traced.contains(part), "{part:?} is not in {traced}");
        }

        let printed = run(doctor, PROGRAMS, &as_is);
        // The pages about messages name these checks.
        for check in ["token ", "permissions ", "busy addresses "] {
            let is_ok = |line: &str| {
                line.strip_prefix("ok")
                    .is_some_and(|rest| rest.trim_start().starts_with(check))
            };
            assert!(printed.lines().any(is_ok), "{check} is not ok in {printed}");
        }

        run(
            quick_start,
            "cp deploy/examples/ippool.yaml pool.yaml",
            &as_is,
        );
        run(upgrade, "export REGISTRY=ghcr.io/me/calico", &as_is);
        run(uninstall, "export REGISTRY=ghcr.io/me/calico", &as_is);
        let upstreams = "cp tests/tests/deploy/deploy_manifests/upstream-v3.32.yaml calico.yaml
            kubectl apply --server-side --force-conflicts -f calico.yaml
            export REGISTRY=ghcr.io/me/calico";
        let printed = run(beside, upstreams, &as_is);
        assert!(
            printed.contains("+        image: ghcr.io/me/calico/cni"),
            "{printed}"
        );
        run(controllers, "", &as_is);
    });
}

/// Returns a shell with kubectl as the administrator.
fn cluster_shell(host: &Host, kubernetes: &Kubernetes) -> Shell {
    let kubectl = program("kubectl").unwrap();
    let tools: Vec<PathBuf> = kubectl.parent().map(Path::to_owned).into_iter().collect();
    let shell = Shell::at(host, &tools).unwrap();
    fs::create_dir_all(shell.home().join(".kube")).unwrap();
    fs::copy(
        kubernetes.api.admin_kubeconfig(),
        shell.home().join(".kube/config"),
    )
    .unwrap();
    shell
}
