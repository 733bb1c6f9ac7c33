//! The controllers of nodes, Services, pools and tiers, with the named cases of upstream's FV
//! suites.

mod api_server_address;
mod controlled_cluster;
mod host_endpoints;
mod managers;
mod nodes;
mod pools;
mod services;
mod services_waiting;
mod tiers;
mod unreadable_objects;
