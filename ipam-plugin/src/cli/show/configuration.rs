//! Prints the settings of allocation.

use libcalico::ipam::IpamConfig;
use serde::Serialize;

use crate::cli::app::App;
use crate::cli::documents;
use crate::cli::error::CliError;
use crate::cli::settings::{PERSISTENCE_BY_DEFAULT, StoredSettings};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownSettings {
    strict_affinity: bool,
    auto_allocate_blocks: bool,
    max_blocks_per_host: i64,
    #[serde(rename = "kubeVirtVMAddressPersistence")]
    kube_virt_vm_address_persistence: String,
    #[serde(rename = "ipCooldownSeconds")]
    ip_cooldown_seconds: i64,
}

pub(super) async fn show(app: &mut App<'_>) -> Result<(), CliError> {
    let stored = StoredSettings::read(app.store).await?;
    if let Some(difference) = stored.difference() {
        app.notice(difference);
    }
    let shown = ShownSettings::from(
        stored
            .effective
            .map_or_else(IpamConfig::absent, |entry| entry.value),
    );
    if documents::print_document(app.format, app.out, &shown)? {
        return Ok(());
    }
    // The rows are those of calicoctl.
    let mut table = documents::new_table(["PROPERTY", "VALUE"]);
    for (property, value) in [
        ("StrictAffinity", shown.strict_affinity.to_string()),
        ("AutoAllocateBlocks", shown.auto_allocate_blocks.to_string()),
        ("MaxBlocksPerHost", shown.max_blocks_per_host.to_string()),
        (
            "KubeVirtVMAddressPersistence",
            shown.kube_virt_vm_address_persistence,
        ),
        ("IPCooldownSeconds", shown.ip_cooldown_seconds.to_string()),
    ] {
        table.add_row([
            documents::table_cell(property),
            documents::table_cell(value),
        ]);
    }
    documents::print_table(app.out, &table)
}

impl From<IpamConfig> for ShownSettings {
    fn from(config: IpamConfig) -> Self {
        ShownSettings {
            strict_affinity: config.strict_affinity,
            auto_allocate_blocks: config.auto_allocate_blocks,
            max_blocks_per_host: config.max_blocks_per_host,
            kube_virt_vm_address_persistence: config
                .kube_virt_vm_address_persistence
                .unwrap_or_else(|| PERSISTENCE_BY_DEFAULT.into()),
            ip_cooldown_seconds: config.ip_cooldown_seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::cli::testing::Shell;

    #[test]
    fn configuration_without_stored_settings_is_the_built_in_one() {
        let shell = Shell::new();
        let table = "\
+------------------------------+---------+
| PROPERTY                     | VALUE   |
+------------------------------+---------+
| StrictAffinity               | false   |
| AutoAllocateBlocks           | true    |
| MaxBlocksPerHost             | 0       |
| KubeVirtVMAddressPersistence | Enabled |
| IPCooldownSeconds            | 0       |
+------------------------------+---------+
";
        assert_eq!(shell.ok(&["show", "--show-configuration"]), table);
        let shown = shell.json(&["show", "--show-configuration"]);
        assert_eq!(shown["kubeVirtVMAddressPersistence"], "Enabled");
        assert_eq!(
            (&shown["strictAffinity"], &shown["ipCooldownSeconds"]),
            (&json!(false), &json!(0))
        );
    }

    #[test]
    fn configuration_of_stored_settings_names_a_different_v3_object() {
        let shell = Shell::new();
        shell.put(
            "/calico/ipam/v2/config",
            r#"{"auto_allocate_blocks":true,"ipCooldownSeconds":30}"#,
        );
        shell.put(
            "/calico/resources/v3/projectcalico.org/ipamconfigurations/default",
            r#"{"metadata":{"name":"default"},"spec":{"strictAffinity":true}}"#,
        );
        let ran = shell.run(&["show", "--show-configuration"]);
        assert!(
            ran.out
                .contains("| IPCooldownSeconds            | 30      |"),
            "{}",
            ran.out
        );
        assert!(
            ran.notices.contains("strictAffinity is false, not true"),
            "{}",
            ran.notices
        );
    }
}
