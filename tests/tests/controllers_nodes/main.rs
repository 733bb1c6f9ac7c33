//! The controllers of nodes, Services, pools and tiers, with the named cases of upstream's FV
//! suites.

mod api_server_address;
mod host_endpoints;
mod managers;
mod nodes;
mod pools;
mod scene;
mod services;
mod services_waiting;
mod spoiled;
mod tiers;

use integration_tests::tests_on;

tests_on!(crd_v1, crate::scene::on, crate::scene::V1;
    host_endpoints:
        host_endpoints_follow_nodes_and_foreign_ones_stay;
    services_waiting:
        services_say_why_they_wait,
        served_services_post_no_event,
        missing_role_is_told_to_services_if_a_pool_exists;
);

tests_on!(etcd, crate::scene::on, crate::scene::ETCD;
    host_endpoints:
        host_endpoints_follow_nodes_and_foreign_ones_stay,
        host_endpoints_follow_their_templates;
    nodes:
        labels_of_a_calico_node_follow_the_kubernetes_node,
        calico_node_of_a_deleted_kubernetes_node_stays_while_pods_exist,
        calico_nodes_are_deleted_with_their_kubernetes_node;
    services:
        services_get_requested_addresses_and_release_them_with_the_pools,
        each_family_of_a_dual_stack_service_gets_an_address,
        dual_stack_service_with_pools_of_one_family_is_written_once,
        changed_load_balancer_ip_replaces_the_address_of_a_service,
        two_racing_controllers_assign_one_address_per_service,
        recreated_service_of_the_same_name_gets_a_new_address,
        foreign_entries_in_a_service_status_are_kept,
        service_status_converges_against_conflicting_writers;
    services_waiting:
        services_say_why_they_wait,
        served_services_post_no_event,
        waiting_service_is_told_once_across_replicas,
        missing_role_is_told_to_services_if_a_pool_exists,
        services_of_a_tenant_learn_no_foreign_holder;
    spoiled:
        unreadable_objects_do_not_block_work_for_readable_ones,
        node_controllers_converge_against_a_conflicting_writer;
);

tests_on!(v3, crate::scene::on, crate::scene::V3;
    host_endpoints:
        host_endpoints_follow_nodes_and_foreign_ones_stay,
        host_endpoints_follow_their_templates;
    managers:
        objects_written_by_controllers_name_calico_as_field_manager;
    pools:
        overlapping_pools_are_not_allocatable_until_the_first_is_deleted,
        deleted_pool_stays_until_its_addresses_are_released,
        split_pool_keeps_its_blocks_in_v3;
    services:
        services_get_requested_addresses_and_release_them_with_the_pools,
        each_family_of_a_dual_stack_service_gets_an_address,
        dual_stack_service_with_pools_of_one_family_is_written_once,
        changed_load_balancer_ip_replaces_the_address_of_a_service,
        two_racing_controllers_assign_one_address_per_service;
    services_waiting:
        services_say_why_they_wait,
        served_services_post_no_event,
        waiting_service_is_told_once_across_replicas,
        missing_role_is_told_to_services_if_a_pool_exists,
        services_of_a_tenant_learn_no_foreign_holder;
    spoiled:
        pool_and_tier_controllers_converge_against_a_conflicting_writer;
    tiers:
        deleted_tier_stays_until_its_policies_are_removed;
);
