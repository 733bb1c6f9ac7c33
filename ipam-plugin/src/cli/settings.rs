//! The IPAM settings, which are stored under two keys: one for the v3 API, and one that the
//! allocators use (DS-26).

use datastore::Datastore;
use libcalico::api::{IpamConfiguration, IpamConfigurationSpec, Object, ObjectKey, ObjectSelect};
use libcalico::failure::Failure;
use libcalico::ipam::{IpamConfig, IpamConfigKey};
use libcalico::store::{Entry, Kind, ReadBatch, Store, StoreError, Write};
use libcalico::validation::{admit_ipam_configuration, validate_ipam_config};

use super::error::{CliError, invalid};
use super::store_object::{self, Applied};

const NAME: &str = "default";

/// The persistence of the addresses of virtual machines if the settings do not name it.
pub(super) const PERSISTENCE_BY_DEFAULT: &str = "Enabled";

#[derive(Debug)]
pub(super) struct StoredSettings {
    pub(super) effective: Option<Entry<IpamConfig>>,
    pub(super) v3: Option<Entry<IpamConfiguration>>,
}

impl StoredSettings {
    pub(super) async fn read(store: &Datastore) -> Result<Self, StoreError> {
        let mut batch = ReadBatch::new();
        let (effective, v3) = (
            batch.get(&IpamConfigKey),
            batch.get(&ObjectKey::global(NAME)),
        );
        let answers = store.read(&batch).await?;
        Ok(StoredSettings {
            effective: answers.get(&effective)?,
            v3: answers.get(&v3)?,
        })
    }

    /// Returns a note about stored objects with settings that no program reads, because of their
    /// names.
    pub(super) async fn ignored(store: &Datastore) -> Result<Option<String>, StoreError> {
        let objects = store
            .list::<IpamConfiguration>(&ObjectSelect::default())
            .await?;
        let names: Vec<String> = objects
            .into_iter()
            .map(|entry| entry.value.metadata.name)
            .collect();
        let names: Vec<&str> = names
            .iter()
            .map(String::as_str)
            .filter(|name| *name != NAME)
            .collect();
        Ok((!names.is_empty()).then(|| {
            format!(
                "note: the settings in {} have no effect; only the object with the name {NAME} is \
                 read",
                names
                    .iter()
                    .map(|name| format!("IPAMConfiguration({name})"))
                    .collect::<Vec<_>>()
                    .join(", ")
            )
        }))
    }

    /// Returns the effective settings in the v3 form. Without a stored object, these are the
    /// defaults (IPAM-77).
    pub(super) fn effective_settings(&self) -> IpamConfiguration {
        let config = self
            .effective
            .as_ref()
            .map_or_else(IpamConfig::absent, |entry| entry.value.clone());
        let stored = self.v3.as_ref().map(|entry| entry.value.clone());
        let mut shown =
            stored.unwrap_or_else(|| Object::new(NAME, IpamConfigurationSpec::default()));
        let unknown = std::mem::take(&mut shown.spec.unknown);
        shown.spec = IpamConfigurationSpec {
            unknown,
            ..spec_of(&config)
        };
        shown
    }

    /// Returns a description of the differences between the v3 object and the effective settings,
    /// if there are any.
    pub(super) fn difference(&self) -> Option<String> {
        let v3 = &self.v3.as_ref()?.value.spec;
        let config = self
            .effective
            .as_ref()
            .map_or_else(IpamConfig::absent, |entry| entry.value.clone());
        let (v3, effective) = (fields(v3), fields(&spec_of(&config)));
        let differing: Vec<String> = std::iter::zip(v3, effective)
            .filter(|(v3, effective)| v3 != effective)
            .map(|((name, v3), (_, effective))| format!("{name} is {effective}, not {v3}"))
            .collect();
        (!differing.is_empty()).then(|| {
            format!(
                "note: allocation uses {}, and the v3 object {} differs: {}; `calico-ipam apply` \
                 writes both",
                IpamConfig::path(&IpamConfigKey),
                IpamConfiguration::path(&ObjectKey::global(NAME)),
                differing.join(", ")
            )
        })
    }
}

pub(super) async fn apply(
    store: &Datastore,
    wanted: &IpamConfiguration,
) -> Result<Applied, CliError> {
    let stored = StoredSettings::read(store).await?;
    let refuse = |cause| invalid("IPAMConfiguration", &wanted.metadata.name, cause);
    let admitted = admit_ipam_configuration(wanted.clone()).map_err(refuse)?;
    let unknown = stored
        .effective
        .as_ref()
        .map(|entry| entry.value.unknown.clone())
        .unwrap_or_default();
    let config = IpamConfig {
        unknown,
        ..IpamConfig::of_v3(&admitted.spec)
    };
    validate_ipam_config(&config).map_err(refuse)?;

    let (of_config, write) = match &stored.effective {
        None => (
            Applied::Created,
            Some(Write::create(&IpamConfigKey, &config)?),
        ),
        Some(entry) if entry.value == config => (Applied::Unchanged, None),
        Some(entry) => (
            Applied::Configured,
            Some(Write::update(&IpamConfigKey, &config, &entry.revision)?),
        ),
    };
    let (of_v3, v3_write) = store_object::plan(stored.v3, admitted, |spec| &mut spec.unknown)?;
    let writes: Vec<Write> = write.into_iter().chain(v3_write).collect();
    if !writes.is_empty() {
        store.write(&writes).await.map_err(|error| error.cause)?;
    }
    Ok(match (of_config, of_v3) {
        (Applied::Unchanged, Applied::Unchanged) => Applied::Unchanged,
        // `Created` is returned only if neither object existed.
        (Applied::Created, Applied::Created) => Applied::Created,
        _ => Applied::Configured,
    })
}

/// Settings to change; `None` keeps a setting.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SettingsChange {
    pub(super) strict_affinity: Option<bool>,
    pub(super) max_blocks_per_host: Option<i64>,
    pub(super) persistence: Option<&'static str>,
    /// In seconds.
    pub(super) cooldown: Option<i64>,
}

impl SettingsChange {
    /// A persistence that is not stored becomes the default, as in upstream.
    fn apply_to(&self, config: &mut IpamConfig) {
        config.strict_affinity = self.strict_affinity.unwrap_or(config.strict_affinity);
        config.max_blocks_per_host = self
            .max_blocks_per_host
            .unwrap_or(config.max_blocks_per_host);
        config.ip_cooldown_seconds = self.cooldown.unwrap_or(config.ip_cooldown_seconds);
        let stored = config.kube_virt_vm_address_persistence.take();
        let stored = stored.unwrap_or_else(|| PERSISTENCE_BY_DEFAULT.into());
        config.kube_virt_vm_address_persistence =
            Some(self.persistence.map_or(stored, str::to_owned));
    }
}

/// Tries once to change settings. Returns the settings before the change. Writes the v3 object only
/// if it exists besides the settings of the allocators.
pub(super) async fn change(
    store: &Datastore,
    change: &SettingsChange,
) -> Result<IpamConfig, CliError> {
    let stored = StoredSettings::read(store).await?;
    let before = stored
        .effective
        .as_ref()
        .map_or_else(IpamConfig::absent, |entry| entry.value.clone());
    let mut config = before.clone();
    change.apply_to(&mut config);
    check_combination(&config)?;
    validate_ipam_config(&config).map_err(|cause| invalid("IPAMConfiguration", NAME, cause))?;

    let mut writes = Vec::new();
    match &stored.effective {
        None => writes.push(Write::create(&IpamConfigKey, &config)?),
        Some(entry) if entry.value == config => {}
        Some(entry) => writes.push(Write::update(&IpamConfigKey, &config, &entry.revision)?),
    }
    let separate = match store {
        Datastore::Etcd(_) | Datastore::Local(_) => stored.v3,
        // Both are one object.
        Datastore::Kubernetes(_) => None,
    };
    if let Some(mut v3) = separate {
        let unknown = v3.value.spec.unknown.clone();
        let spec = IpamConfigurationSpec {
            unknown,
            ..spec_of(&config)
        };
        if spec != v3.value.spec {
            v3.value.spec = spec;
            writes.push(Write::update(&v3.key, &v3.value, &v3.revision)?);
        }
    }
    if !writes.is_empty() {
        store.write(&writes).await.map_err(|error| error.cause)?;
    }
    Ok(before)
}

/// Refuses conflicting settings in upstream's words.
fn check_combination(config: &IpamConfig) -> Result<(), Failure> {
    if config.strict_affinity {
        return Ok(());
    }
    if !config.auto_allocate_blocks {
        // Upstream's text.
        return Err(Failure::new(
            "Cannot disable 'StrictAffinity' and 'AutoAllocateBlocks' at the same time",
        )
        .way_out("apply an IPAMConfiguration with `autoAllocateBlocks: true` first"));
    }
    if config.max_blocks_per_host > 0 {
        // Upstream's text.
        return Err(
            Failure::new("MaxBlocksPerHost requires StrictAffinity to be enabled")
                .way_out("add `--strictaffinity true` or `--max-blocks-per-host 0`"),
        );
    }
    Ok(())
}

/// Returns `false` if neither object exists.
pub(super) async fn delete(store: &Datastore) -> Result<bool, CliError> {
    let stored = StoredSettings::read(store).await?;
    let mut writes = Vec::new();
    writes.extend(
        stored
            .effective
            .map(|entry| Write::delete::<IpamConfig>(&IpamConfigKey, Some(&entry.revision))),
    );
    writes.extend(
        stored
            .v3
            .map(|entry| Write::delete::<IpamConfiguration>(&entry.key, Some(&entry.revision))),
    );
    if writes.is_empty() {
        return Ok(false);
    }
    store.write(&writes).await.map_err(|error| error.cause)?;
    Ok(true)
}

fn spec_of(config: &IpamConfig) -> IpamConfigurationSpec {
    IpamConfigurationSpec {
        strict_affinity: config.strict_affinity,
        max_blocks_per_host: config.max_blocks_per_host,
        auto_allocate_blocks: Some(config.auto_allocate_blocks),
        kube_virt_vm_address_persistence: config.kube_virt_vm_address_persistence.clone(),
        ip_cooldown_seconds: config.ip_cooldown_seconds,
        ..IpamConfigurationSpec::default()
    }
}

/// An unset value appears as its default, or as `unset`.
fn fields(spec: &IpamConfigurationSpec) -> [(&'static str, String); 5] {
    let persistence = spec.kube_virt_vm_address_persistence.clone();
    [
        ("strictAffinity", spec.strict_affinity.to_string()),
        ("maxBlocksPerHost", spec.max_blocks_per_host.to_string()),
        (
            "autoAllocateBlocks",
            spec.auto_allocate_blocks.unwrap_or(true).to_string(),
        ),
        (
            "kubeVirtVMAddressPersistence",
            persistence.unwrap_or_else(|| "unset".into()),
        ),
        ("ipCooldownSeconds", spec.ip_cooldown_seconds.to_string()),
    ]
}
