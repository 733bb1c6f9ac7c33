//! The test of each command in the documents, or the reason why no test runs it.

use crate::documents::commands::Chapter;

pub(crate) const DOCUMENTS: [&str; 38] = [
    "README.md",
    "docs/architecture.md",
    BESIDE,
    "docs/calico-ipam.md",
    "docs/configuration.md",
    "docs/deferred-dels.md",
    "docs/faq.md",
    "docs/garbage-collection.md",
    "docs/glossary.md",
    INSTALL,
    "docs/limitations.md",
    METRICS,
    "docs/moving.md",
    FROM_ETCD,
    FROM_FLANNEL,
    TO_V3,
    "docs/neighbors.md",
    "docs/options.md",
    "docs/performance.md",
    RECOVERY,
    RELEASES,
    "docs/services.md",
    "docs/standalone.md",
    "docs/style.md",
    TESTING,
    "docs/threat-model.md",
    TROUBLESHOOTING,
    "docs/troubleshooting/cluster.md",
    "docs/troubleshooting/pods.md",
    UNINSTALL,
    UPGRADE,
    VERIFY,
    "docs/versions.md",
    "docs/what-an-add-makes.md",
    "docs/where-things-live.md",
    "docs/write-order.md",
    "deploy/README.md",
    CONTROLLERS,
];

const TESTING: &str = "docs/testing.md";
const TROUBLESHOOTING: &str = "docs/troubleshooting.md";
const CONTROLLERS: &str = "kube-controllers/README.md";
const TO_V3: &str = "docs/moving-to-v3.md";
const FROM_ETCD: &str = "docs/moving-from-etcd.md";
const FROM_FLANNEL: &str = "docs/moving-from-flannel.md";
const METRICS: &str = "docs/metrics.md";
pub(crate) const BESIDE: &str = "docs/beside-upstream.md";
pub(crate) const INSTALL: &str = "docs/install.md";
const RECOVERY: &str = "docs/recovery.md";
const RELEASES: &str = "docs/releases.md";
pub(crate) const UNINSTALL: &str = "docs/uninstall.md";
pub(crate) const UPGRADE: &str = "docs/upgrade.md";
const VERIFY: &str = "docs/verify-a-release.md";

const NO_KUBELET: &str = "no kubelet runs here: `make e2e` runs this";
const NO_PPROF: &str =
    "pprof is not installed here: unit tests of kube-controllers read the profiles";
const NO_REGISTRY: &str = "there is no registry to push to";
const PUBLISHED: &str = "the suite deploy_release publishes to a registry of its own";
const IN_CARGO: &str = "the test that reads this page runs in cargo";

const MIGRATED: &str = "the suite migration_to_v3 runs a migration on an API server";
const IMPORTED: &str = "the suites golden_calicoctl and migrate_import export and import";
const NO_FLANNEL: &str = "neither flannel nor upstream's Job runs here";

const MIGRATION: &str = "A migration to `projectcalico.org/v3`";

/// Commands that no test runs: document, heading, beginning of the command, and the reason.
const NOT_RUN: [(&str, &str, &str, &str); 41] = [
    (TESTING, "One suite or one test", "cargo test", IN_CARGO),
    (TROUBLESHOOTING, "Collecting data", "POD=", NO_KUBELET),
    (
        TROUBLESHOOTING,
        "Collecting data",
        "kubectl -n kube-system exec",
        NO_KUBELET,
    ),
    (
        TROUBLESHOOTING,
        "Collecting data",
        "kubectl -n kube-system logs",
        NO_KUBELET,
    ),
    (
        TROUBLESHOOTING,
        "Collecting data",
        "kubectl -n kube-system get lease",
        "no kube-controllers runs here: the suite controllers_leader looks at the Lease",
    ),
    (INSTALL, "Quick start", "for image in", NO_REGISTRY),
    (
        INSTALL,
        "Quick start",
        "helm install",
        "the suite deploy_helm renders the chart with these values",
    ),
    (
        INSTALL,
        "Quick start",
        "kubectl -n kube-system rollout status",
        NO_KUBELET,
    ),
    (
        BESIDE,
        "Replace the images",
        "kubectl -n kube-system rollout status",
        NO_KUBELET,
    ),
    (
        RECOVERY,
        "A busy API server",
        "kubectl get --raw /metrics",
        "the suite faults_kubernetes counts what the priority level serves",
    ),
    (
        RECOVERY,
        "Dead interfaces",
        "calico doctor --repair",
        "the suite installer_doctor runs this",
    ),
    (
        RECOVERY,
        MIGRATION,
        "kubectl -n kube-system patch",
        "the suite faults_kubernetes follows a migration",
    ),
    (
        RECOVERY,
        MIGRATION,
        "kubectl -n kube-system rollout restart",
        NO_KUBELET,
    ),
    (
        UPGRADE,
        "From one version to the next",
        "kubectl -n kube-system rollout status",
        NO_KUBELET,
    ),
    (
        UPGRADE,
        "From one version to the next",
        "kubectl -n kube-system exec",
        NO_KUBELET,
    ),
    (
        UNINSTALL,
        "Steps",
        "kubectl -n kube-system logs",
        NO_KUBELET,
    ),
    (
        RELEASES,
        "Images",
        "tar -C target/images",
        "`make e2e` imports the images into containerd",
    ),
    (
        RELEASES,
        "Images",
        "deploy/images/build.sh",
        "the suite deploy_images builds images",
    ),
    (
        VERIFY,
        "Verify the files",
        "minisign",
        "the suite deploy_release runs this with a key of its own",
    ),
    (RELEASES, "Publish a release", "helm push", PUBLISHED),
    (RELEASES, "Publish a release", "oras discover", PUBLISHED),
    (RELEASES, "Publish a release", "helm install", PUBLISHED),
    (
        CONTROLLERS,
        "kube-controllers",
        "KUBECONFIG=",
        "it goes on until it is stopped: the suite controllers_start runs it",
    ),
    (
        CONTROLLERS,
        "kube-controllers",
        "check-status",
        "the suite controllers_start runs this beside kube-controllers",
    ),
    (
        METRICS,
        "Profiles",
        "kubectl -n kube-system port-forward",
        NO_KUBELET,
    ),
    (
        METRICS,
        "Profiles",
        "pprof kube-controllers.debug",
        NO_PPROF,
    ),
    (METRICS, "Profiles", "pprof http", NO_PPROF),
    (TO_V3, "Before", "kubectl", MIGRATED),
    (TO_V3, "Dry run", "kubectl", MIGRATED),
    (TO_V3, "During", "kubectl", MIGRATED),
    (TO_V3, "After", "kubectl", MIGRATED),
    (TO_V3, "After", "calico-ipam check", MIGRATED),
    (TO_V3, "The way back", "kubectl", MIGRATED),
    (TO_V3, "If the abort does not end", "kubectl", MIGRATED),
    (TO_V3, "If no kube-controllers can run", "kubectl", MIGRATED),
    (TO_V3, "Beside upstream", "kubectl", MIGRATED),
    (FROM_ETCD, "Before", "kubectl", IMPORTED),
    (FROM_ETCD, "During", "calico-ipam", IMPORTED),
    (FROM_ETCD, "After", "calico-ipam migrate unlock", IMPORTED),
    (
        FROM_FLANNEL,
        "During",
        "calico-ipam configure",
        "the suite kubernetes_upgrade runs this",
    ),
    (FROM_FLANNEL, "During", "kubectl", NO_FLANNEL),
];

const NO_COMMANDS: [(&str, &str); 1] = [("deploy/README.md", "deploy")];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Treatment {
    Run,
    Make,
    NotRun(&'static str),
}

pub(crate) fn has_commands(chapter: &Chapter) -> bool {
    !chapter.commands.is_empty() && !NO_COMMANDS.contains(&(chapter.document, &chapter.heading))
}

pub(crate) fn of(chapter: &Chapter, command: &str) -> Treatment {
    if command.starts_with("make ") {
        return Treatment::Make;
    }
    let named = NOT_RUN.iter().find(|(document, heading, beginning, _)| {
        (*document, *heading) == (chapter.document, chapter.heading.as_str())
            && command.starts_with(beginning)
    });
    named.map_or(Treatment::Run, |(.., reason)| Treatment::NotRun(reason))
}

/// Returns the entries of these lists that no document contains.
pub(crate) fn stale(chapters: &[Chapter]) -> Vec<String> {
    let there = |document: &str, heading: &str, beginning: &str| {
        let mut chapters = chapters
            .iter()
            .filter(|chapter| (chapter.document, &*chapter.heading) == (document, heading));
        chapters.any(|chapter| {
            chapter
                .commands
                .iter()
                .any(|command| command.starts_with(beginning))
        })
    };
    let named = NOT_RUN
        .iter()
        .map(|(document, heading, beginning, _)| (*document, *heading, *beginning));
    let no_commands = NO_COMMANDS
        .iter()
        .map(|(document, heading)| (*document, *heading, ""));
    let stale = named
        .chain(no_commands)
        .filter(|(document, heading, beginning)| !there(document, heading, beginning));
    stale
        .map(|(document, heading, beginning)| format!("{document}, {heading}: {beginning}"))
        .collect()
}
