//! Garbage collection on real servers.

mod blocks;
mod claims;
mod flannel;
mod killed;
mod lab;
mod leaks;
mod nodes;
mod pools;
mod requests;
mod reused;
mod swallowed;
mod telling;
mod virtual_machines;

use integration_tests::tests_on;

// The tests of a datastore start one after another. The last of them, of virtual machines, change
// definitions, so no other test can use their control planes.
tests_on!(custom_resources, crate::lab::on, Some(libcalico::kubernetes::ApiGroup::CrdV1);
    blocks:
        empty_blocks_are_released_after_grace_except_the_last_of_each_family,
        empty_blocks_of_a_former_size_go_with_their_affinity,
        empty_blocks_stay_without_a_grace_period;
    claims:
        affinities_without_labels_of_a_deleted_node_are_released,
        incomplete_affinities_of_nodes_and_services_are_confirmed_or_deleted;
    flannel:
        blocks_are_released_after_the_label_says_calico,
        blocks_of_nodes_under_migration_stay;
    leaks:
        leaked_addresses_are_released_after_the_grace_period_only,
        deletion_of_a_pod_starts_the_grace_period_without_a_full_pass,
        addresses_with_a_shared_handle_are_released_together,
        pod_that_appears_within_the_grace_period_keeps_its_address,
        orphan_handles_are_deleted_and_wrong_counts_repaired,
        gc_does_not_write_until_the_datastore_is_ready;
    nodes:
        gc_releases_everything_of_deleted_nodes_without_grace,
        not_ready_node_keeps_addresses_and_blocks;
    pools:
        pool_tells_80_and_95_percent_once,
        restart_above_a_threshold_posts_no_second_event,
        settings_of_ipam_are_read_each_five_minutes_at_most,
        tenant_that_moves_the_use_of_a_pool_causes_one_event_in_ten_minutes;
    requests:
        release_of_a_thousand_leaks_costs_one_write_per_block_and_handle;
    swallowed:
        gc_with_an_unanswered_block_write_reads_the_block_again_and_releases,
        gc_with_an_unanswered_pod_lookup_releases_the_address_in_a_later_pass;
    telling:
        event_on_the_pod_of_a_tenant_names_no_pod_of_another_namespace,
        gc_in_report_mode_lists_leaks_and_releases_none,
        gc_metrics_equal_those_of_upstream,
        gc_writes_only_while_leader;
    virtual_machines:
        vmi_addresses_are_released_after_kubevirt_and_the_pods_are_removed,
        vmi_or_launcher_that_outlives_its_vm_keeps_the_address;
);

tests_on!(etcd, crate::lab::on, None;
    blocks:
        empty_blocks_are_released_after_grace_except_the_last_of_each_family,
        empty_blocks_of_a_former_size_go_with_their_affinity,
        empty_blocks_stay_without_a_grace_period,
        gc_releases_leaks_beside_unreadable_objects_and_a_constant_writer;
    claims:
        incomplete_affinities_of_nodes_and_services_are_confirmed_or_deleted;
    leaks:
        address_in_an_endpoint_is_released_only_after_the_endpoint_is_deleted,
        leaked_addresses_are_released_after_the_grace_period_only,
        deletion_of_a_pod_starts_the_grace_period_without_a_full_pass,
        addresses_with_a_shared_handle_are_released_together,
        pod_that_appears_within_the_grace_period_keeps_its_address,
        orphan_handles_are_deleted_and_wrong_counts_repaired,
        gc_does_not_write_until_the_datastore_is_ready;
    nodes:
        addresses_of_nodes_outside_kubernetes_are_kept,
        gc_releases_everything_of_deleted_nodes_without_grace,
        node_with_another_name_in_kubernetes_keeps_its_addresses,
        not_ready_node_keeps_addresses_and_blocks;
    pools:
        pool_tells_80_and_95_percent_once,
        restart_above_a_threshold_posts_no_second_event,
        tenant_that_moves_the_use_of_a_pool_causes_one_event_in_ten_minutes;
    requests:
        release_of_a_thousand_leaks_in_etcd_completes;
    telling:
        gc_metrics_equal_those_of_upstream,
        gc_writes_only_while_leader;
    virtual_machines:
        vmi_addresses_are_released_after_kubevirt_and_the_pods_are_removed,
        vmi_or_launcher_that_outlives_its_vm_keeps_the_address;
);

tests_on!(v3, crate::lab::on, Some(libcalico::kubernetes::ApiGroup::V3);
    claims:
        affinities_without_labels_of_a_deleted_node_are_released;
    flannel:
        blocks_are_released_after_the_label_says_calico,
        blocks_of_nodes_under_migration_stay;
    requests:
        gc_without_leaks_writes_nothing;
);
