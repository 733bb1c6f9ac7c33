//! Host endpoints, labels and deletion of nodes, addresses of Services, pools and tiers: the controllers on a real API
//! server and etcd, with the named cases of upstream's FV suites.

mod api_server_address;
mod host_endpoints;
mod managers;
mod nodes;
mod pools;
mod scene;
mod services;
mod spoiled;
mod tiers;
