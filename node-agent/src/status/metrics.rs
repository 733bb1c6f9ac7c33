//! The metrics of the agent, made of its status.

use node_process::metrics;
use node_process::metrics::prometheus::core::Collector;
use node_process::metrics::prometheus::{
    IntCounter, IntCounterVec, IntGauge, IntGaugeVec, TextEncoder,
};

use super::{Counts, RepairStatus, Status};

metrics! {
    /// The metrics of one agent. A metric of a type for labels has none, and is left out until it
    /// has a value.
    struct AgentMetrics {
        /// Expiry of the plugins' token in seconds since 1970; 0 without a token, or with
        /// a rejected one.
        token_expiry: IntGauge = "calico_cni_token_expiry_timestamp_seconds",
        /// Tokens that were requested and written to the kubeconfig.
        token_refreshes: IntCounter = "calico_cni_token_refreshes_total",
        /// Failed attempts to renew the token.
        token_refresh_failures: IntCounter = "calico_cni_token_refresh_failures_total",
        /// Tests that found the plugins' token rejected or missing.
        token_refused: IntCounter = "calico_cni_token_refused_total",
        /// Detected jumps of the node's clock.
        clock_jumps: IntCounter = "calico_cni_clock_jumps_total",
        /// Checks of the installed files.
        file_checks: IntCounter = "calico_cni_file_checks_total",
        /// Installed files that were missing or changed and have been restored.
        files_restored: IntCounter = "calico_cni_files_restored_total",
        /// 1 if this agent renews the plugins' token, else 0.
        token_managed: IntGauge = "calico_cni_token_managed",
        /// 0 if the last check of the installed files left a problem; else 1, also before
        /// the first check and while the agent restores no file.
        install_ok: IntGauge = "calico_cni_install_ok",
        /// 1 if the agent restores no file, because another installation replaced that of
        /// its pod, else 0.
        restoration_suspended: IntGauge = "calico_cni_restoration_suspended",
        /// 1 if container runtimes use the configuration, 0 if another network's sorts
        /// before it.
        config_chosen: IntGaugeVec = "calico_cni_config_chosen",
        /// 1 if the node has a network according to its Ready condition, else 0.
        node_network_ready: IntGaugeVec = "calico_cni_node_network_ready",
        /// Interfaces of this node that no container uses, in the last look.
        dead_interfaces: IntGaugeVec = "calico_cni_dead_interfaces",
        /// Removed interfaces that no container used.
        dead_interfaces_removed: IntCounterVec = "calico_cni_dead_interfaces_removed_total",
        /// 1 if the last look left it open whether containers use some interfaces, else 0.
        repair_unknown: IntGaugeVec = "calico_cni_repair_unknown",
    }
}

impl AgentMetrics {
    fn of(status: &Status) -> Self {
        let metrics = AgentMetrics::new();
        let expires = status.expires.filter(|_| !status.is_rejected);
        metrics.token_expiry.set(expires.unwrap_or(0));
        metrics.count(status.counts);
        metrics.token_managed.set(status.manages_token.into());
        // The series always exists, because the alert `CalicoCniAgentMissing` fires without it.
        metrics.install_ok.set(status.file_problem.is_none().into());
        let is_suspended = status.suspension.is_some();
        metrics.restoration_suspended.set(is_suspended.into());
        for (gauge, value) in [
            (&metrics.config_chosen, status.selection.is_calico()),
            (&metrics.node_network_ready, status.has_network),
        ] {
            if let Some(value) = value {
                set(gauge, value.into());
            }
        }
        if let Some(repair) = status.repair {
            metrics.add_repair(repair);
        }
        metrics
    }

    fn count(&self, counts: Counts) {
        let Counts {
            refreshes,
            failures,
            rejected,
            clock_jumps,
            file_checks,
            restored,
        } = counts;
        self.token_refreshes.inc_by(refreshes);
        self.token_refresh_failures.inc_by(failures);
        self.token_refused.inc_by(rejected);
        self.clock_jumps.inc_by(clock_jumps);
        self.file_checks.inc_by(file_checks);
        self.files_restored.inc_by(restored);
    }

    fn add_repair(&self, repair: RepairStatus) {
        let RepairStatus {
            dead,
            is_unknown,
            removed,
        } = repair;
        set(&self.dead_interfaces, dead.try_into().unwrap_or(i64::MAX));
        let counter = self.dead_interfaces_removed.with_label_values::<&str>(&[]);
        counter.inc_by(removed);
        set(&self.repair_unknown, is_unknown.into());
    }
}

fn set(gauge: &IntGaugeVec, value: i64) {
    gauge.with_label_values::<&str>(&[]).set(value);
}

/// Returns the metrics in Prometheus' text format, in the order of their declaration.
pub(super) fn text(status: &Status) -> String {
    let mut families = AgentMetrics::of(status).collect();
    families.retain(|family| !family.get_metric().is_empty());
    TextEncoder::new()
        .encode_to_string(&families)
        .unwrap_or_default()
}
