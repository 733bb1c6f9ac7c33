//! `get`: prints stored objects.

use clap::Args;
use comfy_table::Table;
use datastore::Datastore;
use libcalico::api::{
    API_VERSION, ClusterInformation, IpPool, IpReservation, IpamConfiguration, Node, Object,
    ObjectKey, ObjectSelect, Spec,
};
use libcalico::ipam::DEFAULT_BLOCK_LIMIT;
use libcalico::store::{Store, StoreError, identifier};
use serde_json::{Value, json};

use super::app::{App, CommandOutcome};
use super::documents;
use super::error::CliError;
use super::kind::ResourceKind;
use super::settings::StoredSettings;

/// Print pools, reservations, settings, nodes or cluster information
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam get ippools
  calico-ipam get ippool demo -o yaml
  calico-ipam get nodes -o json | jq -r '.items[].metadata.name'

Kinds: ippool (pool), ipreservation (reservation), ipamconfiguration (ipamconfig), node, clusterinformation.
YAML and JSON output can be applied again.

Exit status: 0; 1 after an error; 2 if the arguments are invalid.")]
pub(super) struct GetArgs {
    /// Kind of the objects, singular or plural
    #[arg(value_name = "KIND")]
    kind: ResourceKind,
    /// Name of a single object
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

type KindObjects = (Vec<Value>, Table);

pub(super) async fn run(args: &GetArgs, app: &mut App<'_>) -> Result<CommandOutcome, CliError> {
    let progress = app.progress("reading objects");
    let (objects, table) = read_objects(args, app).await?;
    drop(progress);
    let list_kind = format!("{}List", args.kind.name());
    let document = match (&args.name, objects) {
        (Some(_), mut objects) => objects.pop().unwrap_or_default(),
        (None, items) => json!({"apiVersion": API_VERSION, "kind": list_kind, "items": items}),
    };
    if !documents::print_document(app.format, app.out, &document)? {
        documents::print_table(app.out, &table)?;
    }
    Ok(CommandOutcome::Success)
}

async fn read_objects(args: &GetArgs, app: &mut App<'_>) -> Result<KindObjects, CliError> {
    let (store, name) = (app.store, args.name.as_deref());
    match args.kind {
        ResourceKind::IpPool => {
            let header = [
                "NAME",
                "CIDR",
                "BLOCK SIZE",
                "DISABLED",
                "ASSIGNMENT",
                "NODE SELECTOR",
            ];
            rows(
                header,
                list::<libcalico::api::IpPoolSpec>(store, name).await?,
                pool_row,
            )
        }
        ResourceKind::IpReservation => {
            let row = |reservation: &IpReservation| {
                [
                    reservation.metadata.name.clone(),
                    reservation.spec.reserved_cidrs.join("\n"),
                ]
            };
            rows(["NAME", "RESERVED CIDRS"], list(store, name).await?, row)
        }
        ResourceKind::IpamConfiguration => settings(app, name).await,
        ResourceKind::Node => rows(
            ["NAME", "IPV4", "IPV6", "LABELS"],
            list(store, name).await?,
            node_row,
        ),
        ResourceKind::ClusterInformation => {
            let row = |information: &ClusterInformation| {
                let ready = information
                    .spec
                    .datastore_ready
                    .map_or("unset".into(), |ready| ready.to_string());
                let spec = &information.spec;
                [
                    information.metadata.name.clone(),
                    ready,
                    spec.cluster_guid.clone(),
                    spec.calico_version.clone(),
                ]
            };
            rows(
                ["NAME", "DATASTORE READY", "CLUSTER GUID", "CALICO VERSION"],
                list(store, name).await?,
                row,
            )
        }
    }
}

async fn list<S: Spec>(store: &Datastore, name: Option<&str>) -> Result<Vec<Object<S>>, CliError> {
    let entries = match name {
        Some(name) => vec![store.get::<Object<S>>(&ObjectKey::global(name)).await?],
        None => store.list::<Object<S>>(&ObjectSelect::default()).await?,
    };
    Ok(entries.into_iter().map(|entry| entry.value).collect())
}

fn rows<S: Spec, const N: usize>(
    header: [&str; N],
    objects: Vec<Object<S>>,
    row: impl Fn(&Object<S>) -> [String; N],
) -> Result<KindObjects, CliError> {
    let mut table = documents::new_table(header);
    for object in &objects {
        table.add_row(row(object).map(documents::table_cell));
    }
    let encoded: Result<Vec<Value>, _> = objects.iter().map(serde_json::to_value).collect();
    Ok((encoded.map_err(CliError::encode)?, table))
}

fn pool_row(pool: &IpPool) -> [String; 6] {
    let spec = &pool.spec;
    let block_size = spec.range().map_or_else(
        |_| "-".into(),
        |range| spec.block_prefix(range.version()).to_string(),
    );
    let mode = spec
        .assignment_mode
        .as_ref()
        .map_or_else(|| "Automatic".into(), |mode| format!("{mode:?}"));
    let selector = if spec.node_selector.is_empty() {
        "all()"
    } else {
        &spec.node_selector
    };
    [
        pool.metadata.name.clone(),
        spec.cidr.clone(),
        block_size,
        spec.disabled.to_string(),
        mode,
        selector.into(),
    ]
}

fn node_row(node: &Node) -> [String; 4] {
    let (v4, v6) = node
        .spec
        .bgp
        .as_ref()
        .map(|bgp| (bgp.ipv4_address.clone(), bgp.ipv6_address.clone()))
        .unzip();
    let labels: Vec<String> = node
        .metadata
        .labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    [
        node.metadata.name.clone(),
        v4.unwrap_or_default(),
        v6.unwrap_or_default(),
        labels.join("\n"),
    ]
}

/// Returns the stored limit, with the limit in force if the stored one is none.
fn block_limit(stored: i64) -> String {
    if stored > 0 {
        stored.to_string()
    } else {
        format!("{stored} ({DEFAULT_BLOCK_LIMIT})")
    }
}

async fn settings(app: &mut App<'_>, name: Option<&str>) -> Result<KindObjects, CliError> {
    if let Some(other) = name.filter(|name| *name != "default") {
        let key = identifier::<IpamConfiguration>(&ObjectKey::global(other));
        return Err(StoreError::NotFound { key }.into());
    }
    let stored = StoredSettings::read(app.store).await?;
    if let Some(difference) = stored.difference() {
        app.notice(difference);
    } else if stored.effective.is_none() {
        app.notice("note: no settings are stored; these are the built-in ones");
    }
    if let Some(ignored) = StoredSettings::ignored(app.store).await? {
        app.notice(ignored);
    }
    let row = |settings: &IpamConfiguration| {
        let spec = &settings.spec;
        [
            settings.metadata.name.clone(),
            spec.strict_affinity.to_string(),
            spec.auto_allocate_blocks.unwrap_or(true).to_string(),
            block_limit(spec.max_blocks_per_host),
            format!("{} s", spec.ip_cooldown_seconds),
        ]
    };
    let header = [
        "NAME",
        "STRICT AFFINITY",
        "AUTO ALLOCATE BLOCKS",
        "MAX BLOCKS PER HOST",
        "IP COOLDOWN",
    ];
    rows(header, vec![stored.effective_settings()], row)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::cli::testing::Shell;

    #[test]
    fn get_prints_lists_objects_and_tables() {
        let shell = Shell::with_pool();
        let pools = shell.json(&["get", "ippools"]);
        assert_eq!(
            (&pools["kind"], &pools["items"][0]["metadata"]["name"]),
            (&json!("IPPoolList"), &json!("default-ipv4-ippool"))
        );
        let yaml = shell.ok(&["get", "pool", "default-ipv4-ippool", "-o", "yaml"]);
        assert!(
            yaml.starts_with("apiVersion: projectcalico.org/v3\nkind: IPPool\n"),
            "{yaml}"
        );
        assert!(
            yaml.contains("  blockSize: 29\n  cidr: 10.0.0.0/24\n"),
            "{yaml}"
        );
        let table = shell.ok(&["get", "pools"]);
        assert!(
            table.contains(
                "| default-ipv4-ippool | 10.0.0.0/24 | 29         | false    | Automatic  | all()"
            ),
            "{table}"
        );
        assert!(shell.ok(&["get", "nodes"]).contains("| node1 |"));
        assert!(
            shell
                .ok(&["get", "clusterinformation"])
                .contains("| default | true ")
        );
        assert!(
            shell
                .ok(&["get", "ipreservations"])
                .contains("RESERVED CIDRS")
        );
    }

    #[test]
    fn output_of_get_can_be_applied_unchanged() {
        let shell = Shell::with_pool();
        for kind in [
            "ippools",
            "nodes",
            "clusterinformations",
            "ipamconfigurations",
        ] {
            for format in ["yaml", "json"] {
                let file = shell.file("printed", &shell.ok(&["get", kind, "-o", format]));
                shell.ok(&["apply", "-f", &file]);
                assert!(
                    shell.ok(&["apply", "-f", &file]).ends_with(" unchanged\n"),
                    "{kind} {format}"
                );
            }
        }
    }

    #[test]
    fn get_of_a_missing_object_is_an_error() {
        let shell = Shell::new();
        assert_eq!(
            shell.error(&["get", "ippool", "nope"]),
            "resource does not exist: IPPool(nope)"
        );
        assert!(
            shell
                .error(&["get", "ipamconfig", "nope"])
                .contains("IPAMConfiguration(nope)")
        );
    }

    #[test]
    fn get_reports_effective_and_ineffective_ipam_settings() {
        let shell = Shell::new();
        let builtin = shell.run(&["get", "ipamconfig", "default", "-o", "json"]);
        assert!(builtin.notices.contains("built-in"), "{}", builtin.notices);
        assert!(builtin.out.contains("\"autoAllocateBlocks\": true"));

        shell.put(
            "/calico/ipam/v2/config",
            r#"{"strict_affinity":true,"auto_allocate_blocks":true}"#,
        );
        assert_eq!(shell.run(&["get", "ipamconfig"]).notices, "");
        shell.put(
            "/calico/resources/v3/projectcalico.org/ipamconfigurations/default",
            r#"{"kind":"IPAMConfiguration","apiVersion":"projectcalico.org/v3","metadata":{"name":"default"},
                "spec":{"strictAffinity":false,"maxBlocksPerHost":2}}"#,
        );
        let ran = shell.run(&["get", "ipamconfig", "default", "-o", "json"]);
        assert!(ran.out.contains("\"strictAffinity\": true"), "{}", ran.out);
        for expected in [
            "/calico/ipam/v2/config",
            "strictAffinity is true, not false",
            "maxBlocksPerHost is 0, not 2",
        ] {
            assert!(ran.notices.contains(expected), "{}", ran.notices);
        }
    }
}
