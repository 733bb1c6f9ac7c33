//! Each family of a Service gets its address independently of the other family.

use libcalico::ipam::{IpamConfig, IpamConfigKey};

use super::*;

pub(super) fn service_of(families: Value) -> Value {
    let mut service = stored_service(json!({}));
    service["spec"]["ipFamilies"] = families;
    service
}

pub(super) fn pool_of(name: &str, cidr: &str, block_size: u8) -> IpPool {
    let spec = json!({"cidr": cidr, "blockSize": block_size, "allowedUses": ["LoadBalancer"]});
    IpPool::new(name, serde_json::from_value(spec).unwrap())
}

impl Serving {
    /// Returns the revisions of all blocks: each write of a block changes them.
    async fn revisions(&self) -> Vec<String> {
        let blocks = self.calico.list::<Block>(&None).await.unwrap();
        blocks
            .iter()
            .map(|block| format!("{} {:?}", block.key, block.revision))
            .collect()
    }
}

#[tokio::test]
async fn ipv6_address_is_assigned_without_a_pool_of_ipv4() {
    for families in [json!(["IPv6"]), json!(["IPv6", "IPv4"])] {
        let serving = Serving::new(
            service_of(families.clone()),
            &[pool_of("v6", "fd00::/112", 122)],
        )
        .await;
        serving.look().await;
        let held = serving.held().await;
        assert!(
            held.len() == 1 && held[0].starts_with("fd00::"),
            "{families}: {held:?}"
        );
        assert_eq!(serving.shown(), held, "{families}");
    }
}

#[tokio::test]
async fn assignment_of_ipv6_writes_no_block_of_ipv4() {
    let pools = [stored_pool().value, pool_of("v6", "fd00::/112", 122)];
    let serving = Serving::new(service_of(json!(["IPv6"])), &pools).await;
    serving.look().await;
    assert_eq!(serving.held().await.len(), 1);
    let blocks = serving.calico.list::<Block>(&None).await.unwrap();
    assert!(
        blocks
            .iter()
            .all(|block| block.key.version() == libcalico::net::IpVersion::V6),
        "{blocks:?}"
    );
}

#[tokio::test]
async fn service_that_waits_in_a_full_ipv6_pool_writes_no_block() {
    let pools = [stored_pool().value, pool_of("v6", "fd00::5/128", 128)];
    // With a cooldown, each IPv4 address that was assigned and released again would be lost for
    // that time.
    for cooldown in [0, 600] {
        let serving = Serving::new(service_of(json!(["IPv4", "IPv6"])), &pools).await;
        let config = IpamConfig {
            ip_cooldown_seconds: cooldown,
            ..IpamConfig::absent()
        };
        serving
            .calico
            .create(&IpamConfigKey, &config)
            .await
            .unwrap();
        serving.take("fd00::5", "n").await;
        serving.look().await;
        let (held, before) = (serving.held().await, serving.revisions().await);
        assert_eq!((held.len(), serving.shown()), (1, held.clone()));
        for _ in 0..3 {
            serving.look().await;
            assert_eq!(
                (serving.held().await, serving.revisions().await),
                (held.clone(), before.clone())
            );
        }
        let blocks = serving.calico.list::<Block>(&None).await.unwrap();
        let cooling = blocks.iter().map(|block| {
            block
                .value
                .allocated()
                .filter(|held| held.is_cooling())
                .count()
        });
        assert_eq!(cooling.sum::<usize>(), 0);
    }
}
