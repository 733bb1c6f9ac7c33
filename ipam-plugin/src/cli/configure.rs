//! `configure`: changes single settings of allocation.

use clap::Args;
use datastore::Datastore;
use libcalico::api::go_bool;
use libcalico::failure::Failure;
use libcalico::ipam::{Block, DEFAULT_BLOCK_LIMIT, borrowed};
use libcalico::store::Store;
use serde::Serialize;
use serde_json::{Value, json};

use super::app::{App, CommandOutcome};
use super::documents;
use super::error::CliError;
use super::settings::{self, SettingsChange};
use super::store_object::retry_races;

/// Change settings of allocation
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  calico-ipam configure --strictaffinity true
  calico-ipam configure --strictaffinity true --max-blocks-per-host 4
  calico-ipam configure --ip-cooldown-seconds 60

The other settings stay; `calico-ipam show --show-configuration` prints all. Addresses that are borrowed when strict
affinity begins stay with their owners.

Exit status: 0; 1 after an error or if the settings contradict each other; 2 if the arguments are invalid.")]
pub(super) struct ConfigureArgs {
    /// Whether to forbid borrowing addresses from the blocks of other nodes: true or false
    #[arg(long, value_name = "BOOL", value_parser = strict_affinity)]
    strictaffinity: Option<bool>,
    /// Maximum number of blocks of a node; 0 is the built-in limit. Requires strict affinity
    #[arg(long, value_name = "N")]
    max_blocks_per_host: Option<i64>,
    /// Persistence of the addresses of a KubeVirt VM when its pod is replaced: Enabled or Disabled
    #[arg(long, value_name = "MODE", value_parser = persistence)]
    kubevirt_ip_persistence: Option<&'static str>,
    /// Seconds between the release of an address and its next assignment, 0 to 1200
    #[arg(long, value_name = "N")]
    ip_cooldown_seconds: Option<i64>,
}

#[derive(Serialize)]
struct Row {
    property: &'static str,
    value: Value,
}

pub(super) async fn run(
    args: &ConfigureArgs,
    app: &mut App<'_>,
) -> Result<CommandOutcome, CliError> {
    let rows = args.rows();
    if rows.is_empty() {
        // Upstream's text.
        return Err(
            Failure::new("at least one configuration option must be specified")
                .way_out("`calico-ipam configure --help` lists them")
                .into(),
        );
    }
    let (store, change) = (app.store, args.change());
    let progress = app.progress("changing the settings");
    let before = retry_races("the settings", async || {
        settings::change(store, &change).await
    })
    .await?;
    drop(progress);
    if !documents::print_document(app.format, app.out, &rows)? {
        for Row { property, value } in &rows {
            // Upstream's text.
            app.print_line(format_args!(
                "Successfully set {property} to: {}",
                text(value)
            ))?;
        }
    }
    if change.max_blocks_per_host == Some(0) {
        app.notice(format!(
            "note: MaxBlocksPerHost 0 is the built-in limit of {DEFAULT_BLOCK_LIMIT} blocks per \
             node"
        ));
    }
    if change.strict_affinity == Some(true) && !before.strict_affinity {
        note_borrowed(store, app).await;
    }
    Ok(CommandOutcome::Success)
}

/// The settings are written already, so that an error here is only a note.
async fn note_borrowed(store: &Datastore, app: &mut App<'_>) {
    let progress = app.progress("reading blocks");
    let blocks = store.list::<Block>(&None).await;
    drop(progress);
    match blocks.map(|blocks| borrowed(blocks.iter().map(|entry| &entry.value)).rows.len()) {
        Ok(0) => {}
        Err(error) => app.notice(format_args!(
            "note: borrowed addresses are not counted: {error}"
        )),
        Ok(count) => app.notice(format_args!(
            "note: {count} addresses are borrowed and stay so until they are released; \
             `calico-ipam show --show-borrowed` lists them"
        )),
    }
}

impl ConfigureArgs {
    fn change(&self) -> SettingsChange {
        SettingsChange {
            strict_affinity: self.strictaffinity,
            max_blocks_per_host: self.max_blocks_per_host,
            persistence: self.kubevirt_ip_persistence,
            cooldown: self.ip_cooldown_seconds,
        }
    }

    /// Returns the given settings, in upstream's order.
    fn rows(&self) -> Vec<Row> {
        let given = [
            (
                "StrictAffinity",
                self.strictaffinity.map(|value| json!(value)),
            ),
            (
                "MaxBlocksPerHost",
                self.max_blocks_per_host.map(|value| json!(value)),
            ),
            (
                "KubeVirtVMAddressPersistence",
                self.kubevirt_ip_persistence.map(|value| json!(value)),
            ),
            (
                "IPCooldownSeconds",
                self.ip_cooldown_seconds.map(|value| json!(value)),
            ),
        ];
        given
            .into_iter()
            .filter_map(|(property, value)| {
                Some(Row {
                    property,
                    value: value?,
                })
            })
            .collect()
    }
}

/// Returns the value without quotes.
fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

fn strict_affinity(text: &str) -> Result<bool, &'static str> {
    // Upstream's text.
    go_bool(text).ok_or("invalid value. Use true or false to set strictaffinity")
}

fn persistence(text: &str) -> Result<&'static str, &'static str> {
    match text {
        "Enabled" => Ok("Enabled"),
        "Disabled" => Ok("Disabled"),
        // Upstream's text.
        _ => Err("invalid value for --kubevirt-ip-persistence. Use Enabled or Disabled"),
    }
}

#[cfg(test)]
mod tests {
    use libcalico::api::{IpamConfiguration, ObjectKey};
    use libcalico::ipam::{IpamConfig, IpamConfigKey};
    use serde_json::json;

    use super::{persistence, strict_affinity};
    use crate::cli::testing::Shell;

    const V3: &str = "/calico/resources/v3/projectcalico.org/ipamconfigurations/default";

    #[test]
    fn configure_of_one_setting_keeps_the_others() {
        let shell = Shell::new();
        let line = [
            "configure",
            "--strictaffinity=true",
            "--max-blocks-per-host=4",
        ];
        let printed =
            "Successfully set StrictAffinity to: true\nSuccessfully set MaxBlocksPerHost to: 4\n";
        assert_eq!(shell.ok(&line), printed);
        shell.ok(&["configure", "--ip-cooldown-seconds=30"]);
        let rows = shell.json(&["configure", "--kubevirt-ip-persistence", "Disabled"]);
        assert_eq!(
            rows,
            json!([{"property": "KubeVirtVMAddressPersistence", "value": "Disabled"}])
        );
        let stored = shell.stored::<IpamConfig>(&IpamConfigKey).unwrap();
        let expected = concat!(
            r#"{"strict_affinity":true,"auto_allocate_blocks":true,"maxBlocksPerHost":4,"#,
            r#""kubeVirtVMAddressPersistence":"Disabled","ipCooldownSeconds":30}"#,
        );
        assert_eq!(serde_json::to_string(&stored).unwrap(), expected);
        assert_eq!(
            shell.stored::<IpamConfiguration>(&ObjectKey::global("default")),
            None
        );
    }

    #[test]
    fn configure_of_zero_blocks_names_the_limit_in_force() {
        let shell = Shell::new();
        let line = [
            "configure",
            "--strictaffinity=true",
            "--max-blocks-per-host=0",
        ];
        let notices = shell.run(&line).notices;
        assert!(
            notices.contains("MaxBlocksPerHost 0 is the built-in limit of 20 blocks"),
            "{notices}"
        );
        assert!(shell.ok(&["get", "ipamconfig"]).contains("0 (20)"));
        let other = shell.run(&["configure", "--max-blocks-per-host=4"]).notices;
        assert!(!other.contains("built-in"), "{other}");
        assert!(!shell.ok(&["get", "ipamconfig"]).contains("(20)"));
    }

    #[test]
    fn get_of_settings_names_objects_with_other_names() {
        let shell = Shell::new();
        shell.put(
            &V3.replace("/default", "/other"),
            r#"{"metadata":{"name":"other"},"spec":{"strictAffinity":true}}"#,
        );
        let notices = shell.run(&["get", "ipamconfig"]).notices;
        assert!(
            notices.contains("IPAMConfiguration(other) have no effect"),
            "{notices}"
        );
        assert!(notices.contains("no settings are stored"), "{notices}");
    }

    #[test]
    fn configure_writes_an_existing_v3_object_too() {
        let shell = Shell::new();
        shell.put(
            V3,
            r#"{"metadata":{"name":"default"},"spec":{"strictAffinity":false,"future":1}}"#,
        );
        shell.ok(&["configure", "--strictaffinity", "1"]);
        assert_eq!(shell.run(&["get", "ipamconfig"]).notices, "");
        let v3 = shell
            .stored::<IpamConfiguration>(&ObjectKey::global("default"))
            .unwrap();
        assert!(
            v3.spec.strict_affinity && v3.spec.unknown.contains_key("future"),
            "{v3:?}"
        );
    }

    #[test]
    fn configure_conflicts_are_refused() {
        let shell = Shell::new();
        let required = "MaxBlocksPerHost requires StrictAffinity to be enabled";
        assert!(
            shell
                .error(&["configure", "--max-blocks-per-host=3"])
                .starts_with(required)
        );
        let nothing = "at least one configuration option must be specified";
        assert!(shell.error(&["configure"]).starts_with(nothing));
        let error = shell.error(&["configure", "--ip-cooldown-seconds=1201"]);
        assert!(error.contains("ipCooldownSeconds"), "{error}");
        assert_eq!(shell.stored::<IpamConfig>(&IpamConfigKey), None);

        shell.ok(&[
            "configure",
            "--strictaffinity=true",
            "--max-blocks-per-host=3",
        ]);
        assert!(
            shell
                .error(&["configure", "--strictaffinity=false"])
                .starts_with(required)
        );
        shell.ok(&[
            "configure",
            "--strictaffinity=false",
            "--max-blocks-per-host=0",
        ]);
        shell.ok(&["delete", "ipamconfig", "default"]);
        shell.put("/calico/ipam/v2/config", r#"{"strict_affinity":true}"#);
        let error = shell.error(&["configure", "--strictaffinity=false"]);
        assert!(
            error.starts_with("Cannot disable 'StrictAffinity' and 'AutoAllocateBlocks'"),
            "{error}"
        );
    }

    #[test]
    fn configure_of_strict_affinity_names_the_number_of_borrowed_addresses() {
        let shell = Shell::new();
        shell.put(
            "/calico/ipam/v2/assignment/ipv4/block/10.0.0.8-31",
            r#"{"cidr":"10.0.0.8/31","affinity":"host:node1","allocations":[0,null],"unallocated":[1],
                "attributes":[{"handle_id":"h","secondary":{"node":"node2"}}]}"#,
        );
        let ran = shell.run(&["configure", "--strictaffinity=true"]);
        assert!(
            ran.notices.starts_with("note: 1 addresses are borrowed"),
            "{}",
            ran.notices
        );
        assert_eq!(
            shell.run(&["configure", "--strictaffinity=true"]).notices,
            ""
        );
    }

    #[test]
    fn values_of_configure_are_parsed_as_upstream_does() {
        assert_eq!(
            [strict_affinity("T"), strict_affinity("0")],
            [Ok(true), Ok(false)]
        );
        assert!(
            strict_affinity("perhaps")
                .unwrap_err()
                .contains("Use true or false")
        );
        assert_eq!(persistence("Enabled"), Ok("Enabled"));
        assert!(
            persistence("enabled")
                .unwrap_err()
                .contains("Use Enabled or Disabled")
        );
    }
}
